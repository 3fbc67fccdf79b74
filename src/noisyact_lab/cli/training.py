"""The commands that train: `run`, `reproduce`, `sweep`. What they need is imported inside them; help is quick."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from noisyact_lab.cli import changes, many_runs, one_run
from noisyact_lab.cli.answers import EXIT_CODES, RUNS, AsJson, Out, Preset, print_json
from noisyact_lab.cli.progress import View

__all__ = ["app"]

app = typer.Typer()

Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="runs at once (default: one a CPU core; up to 8 on a GPU; as many as a cluster has cores or GPUs)"
    ),
]
Seeds = Annotated[int, typer.Option(help="runs of each arm, with seeds 0, 1, ...")]
Force = Annotated[bool, typer.Option(help="do finished and begun runs again from the start")]
Engine = Annotated[str, typer.Option(help="where the runs are done: local, or ray for a Ray cluster")]
Address = Annotated[
    str | None,
    typer.Option(
        help="of the Ray cluster, HOST:PORT or ray://HOST:PORT (default: RAY_ADDRESS, else one found or started here)"
    ),
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log", metavar="NAME[:WHERE]",
        help="log to tensorboard[:FOLDER], wandb[:PROJECT], trackio[:PROJECT] or mlflow[:URI] too; repeatable",
    ),
]  # fmt: skip
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="change a setting; repeatable")]


@app.command("run", epilog=EXIT_CODES)
def run_one(
    experiment: Annotated[str, typer.Argument(help="see: noisyact list")],
    arm: Annotated[str | None, typer.Option(help="see: noisyact list")] = None,
    seed: Annotated[int | None, typer.Option(help="default 0")] = None,
    preset: Annotated[str | None, typer.Option(help="smoke, short (default) or paper")] = None,
    device: Annotated[str | None, typer.Option(help="auto (default), cpu or cuda")] = None,
    devices: Annotated[int | None, typer.Option(help="so many of this machine share each batch (default 1)")] = None,
    num_nodes: Annotated[
        int | None,
        typer.Option(help="machines; on each NODE_RANK, MASTER_ADDR and MASTER_PORT must be set (default 1)"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help=f"folder the runs are kept in (default {RUNS})")] = None,
    settings: Set = None,
    config: Annotated[
        Path | None,
        typer.Option(help=escape("TOML with arm, seed, preset, device, out and a table [settings]; flags beat it")),
    ] = None,
    force: Force = False,
    log: Log = None,
    as_json: AsJson = False,
) -> None:
    """Train one arm, or go on where a killed run stopped; a finished run is not done again."""
    _wait_without_spinning()
    from noisyact_lab.engine import registry
    from noisyact_lab.engine.parallel.processes import Job

    file = {} if config is None else changes.from_file(config)
    flags = {"arm": arm, "seed": seed, "preset": preset, "device": device, "out": out}
    chosen = {"seed": 0, "preset": "short", "device": "auto", "out": RUNS, **file}
    chosen |= {name: value for name, value in flags.items() if value is not None}
    names = ", ".join(a.name for a in registry.load(experiment).arms)
    if "arm" not in chosen:
        raise ValueError(f"--arm is missing; {experiment} has {names}")
    _at_least(0, seed=chosen["seed"])
    _at_least(1, devices=devices, num_nodes=num_nodes)
    merged = {**file.get("settings", {}), **changes.from_flags(settings or [])}
    job = Job(
        experiment, chosen["arm"], chosen["preset"], chosen["seed"], Path(chosen["out"]), chosen["device"], merged,
        force, tuple(log or ()),
    )  # fmt: skip
    many_runs.check([job])
    team = one_run.of_command(job, devices, num_nodes)
    if not team.leads:
        job.do(team=team)
        return
    with View(1, "runs") as view:
        name = many_runs.name_of(job)
        record = job.do(lambda done, total, _: view.at(name, done, total), team)
        view.ended(name, many_runs.ending(record))
    if as_json:
        print_json(record)
    else:
        print("\n".join(f"{key}: {many_runs.number(value)}" for key, value in record["result"].items()))
        print(f"folder: {job.folder}")


@app.command("reproduce", epilog=EXIT_CODES)
def reproduce(
    experiments: Annotated[list[str] | None, typer.Argument(help="default: all; see: noisyact list")] = None,
    preset: Preset = "short",
    seeds: Seeds = 5,
    arms: Annotated[str | None, typer.Option(help="only these, with commas between")] = None,
    out: Out = RUNS,
    jobs: Jobs = None,
    device: Device = "auto",
    settings: Set = None,
    force: Force = False,
    engine: Engine = "local",
    address: Address = None,
    log: Log = None,
    as_json: AsJson = False,
) -> None:
    """Do all arms and seeds of experiments, several at once, and print each one's table beside the paper's numbers."""
    from noisyact_lab.analysis.results_table import table_of
    from noisyact_lab.engine import registry
    from noisyact_lab.engine.parallel.processes import Job

    _at_least(1, seeds=seeds, jobs=jobs)
    chosen = [registry.load(name) for name in dict.fromkeys(experiments or registry.names())]
    skipped = {} if experiments or engine != "local" else many_runs.without_data(chosen, preset)
    chosen = [e for e in chosen if e.name not in skipped]
    only = None if arms is None else list(dict.fromkeys(arms.split(",")))
    changed = changes.from_flags(settings or [])
    todo = [
        Job(e.name, arm, preset, seed, out, device, changed, force, tuple(log or ()))
        for e in chosen
        for arm in (only or [arm.name for arm in e.arms])
        for seed in range(seeds)
    ]
    outcomes = many_runs.do(todo, jobs, engine, address)
    many_runs.finish([table_of(e, out, preset, only) for e in chosen], outcomes, as_json, skipped)


@app.command("sweep", epilog=EXIT_CODES)
def sweep(
    experiment: Annotated[str, typer.Argument(help="see: noisyact list")],
    arm: Annotated[str, typer.Option(help="see: noisyact list")],
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="NAME=V1,V2,...", help="values of a setting; repeatable: all combinations"),
    ],
    preset: Preset = "short",
    seeds: Seeds = 5,
    out: Out = RUNS,
    jobs: Jobs = None,
    device: Device = "auto",
    force: Force = False,
    engine: Engine = "local",
    address: Address = None,
    log: Log = None,
    as_json: AsJson = False,
) -> None:
    """Do one arm at several values of settings; each value's runs are kept in DIR/sweep/NAME=VALUE."""
    from urllib.parse import quote

    from noisyact_lab.analysis.results_table import sweep_table_of
    from noisyact_lab.engine import registry
    from noisyact_lab.engine.parallel.processes import Job

    _at_least(1, seeds=seeds, jobs=jobs)
    chosen = registry.load(experiment)
    points = [
        (",".join(f"{name}={value}" for name, value in point.items()), point)
        for point in changes.combinations(settings)
    ]
    folders = [out / "sweep" / quote(name, safe="=,") for name, _ in points]
    todo = [
        Job(experiment, arm, preset, seed, folder, device, point, force, tuple(log or ()))
        for (_, point), folder in zip(points, folders, strict=True)
        for seed in range(seeds)
    ]
    outcomes = many_runs.do(todo, jobs, engine, address)
    named = [(name, folder) for (name, _), folder in zip(points, folders, strict=True)]
    many_runs.finish([sweep_table_of(chosen, arm, preset, named)], outcomes, as_json)


def _wait_without_spinning() -> None:
    """Threads that wait for each other soon leave their core; it must be said before torch is imported.

    OpenMP's threads spin for milliseconds before they sleep. Where another process needs the core, the one they wait
    for cannot run meanwhile: small models took two to four times as long on a busy machine. The results are the same.
    """
    if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        os.environ["GOMP_SPINCOUNT"] = "1000"  # some 20 microseconds, as long as threads of equal work wait


def _at_least(least: int, **flags: int | None) -> None:
    for name, value in flags.items():
        if value is not None and value < least:
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be at least {least}")
