"""The commands that train: `run`, `reproduce`, `sweep`. What they need is imported inside them; help is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noisyact_cli import changes
from noisyact_cli.answers import EXIT_CODES, RUNS, AsJson, Out, Preset, print_json, user_errors
from noisyact_cli.progress import View

if TYPE_CHECKING:
    from noisyact.experiments.grid import Event, Job, Outcome
    from noisyact.experiments.table import Table

__all__ = ["app"]

app = typer.Typer()

Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]
Jobs = Annotated[int | None, typer.Option(help="runs at once (default: one a CPU core; one on a GPU)")]
Seeds = Annotated[int, typer.Option(help="runs of each arm, with seeds 0, 1, ...")]
Force = Annotated[bool, typer.Option(help="do finished and begun runs again from the start")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="change a setting; repeatable")]


@app.command("run", epilog=EXIT_CODES)
def run_one(
    experiment: Annotated[str, typer.Argument(help="see: noisyact list")],
    arm: Annotated[str | None, typer.Option(help="see: noisyact list")] = None,
    seed: Annotated[int | None, typer.Option(help="default 0")] = None,
    preset: Annotated[str | None, typer.Option(help="smoke, short (default) or paper")] = None,
    device: Annotated[str | None, typer.Option(help="auto (default), cpu or cuda")] = None,
    out: Annotated[Path | None, typer.Option(help=f"folder the runs are kept in (default {RUNS})")] = None,
    settings: Set = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML with arm, seed, preset, device, out and a table [settings]; flags beat it")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train one arm, or go on where a killed run stopped; a finished run is not done again."""
    with user_errors():
        from noisyact.experiments import registry
        from noisyact.experiments.grid import Job

        file = {} if config is None else changes.from_file(config)
        flags = {"arm": arm, "seed": seed, "preset": preset, "device": device, "out": out}
        chosen = {"seed": 0, "preset": "short", "device": "auto", "out": RUNS, **file}
        chosen |= {name: value for name, value in flags.items() if value is not None}
        names = ", ".join(a.name for a in registry.load(experiment).arms)
        if "arm" not in chosen:
            raise ValueError(f"--arm is missing; {experiment} has {names}")
        _at_least(0, seed=chosen["seed"])
        merged = {**file.get("settings", {}), **changes.from_flags(settings or [])}
        job = Job(
            experiment, chosen["arm"], chosen["preset"], chosen["seed"], Path(chosen["out"]), chosen["device"], merged,
            force,
        )  # fmt: skip
        _check([job])
        with View(1, "runs") as view:
            name = _name(job)
            record = job.do(lambda done, total, _: view.at(name, done, total))
            view.ended(name, _ending(record))
    if as_json:
        print_json(record)
    else:
        print("\n".join(f"{key}: {_number(value)}" for key, value in record["result"].items()))
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
    as_json: AsJson = False,
) -> None:
    """Do all arms and seeds of experiments, several at once, and print each one's table beside the paper's numbers."""
    with user_errors():
        from noisyact.experiments import registry
        from noisyact.experiments.grid import Job
        from noisyact.experiments.table import table_of

        _at_least(1, seeds=seeds, jobs=jobs)
        chosen = [registry.load(name) for name in dict.fromkeys(experiments or registry.names())]
        only = None if arms is None else list(dict.fromkeys(arms.split(",")))
        changed = changes.from_flags(settings or [])
        grid = [
            Job(e.name, arm, preset, seed, out, device, changed, force)
            for e in chosen
            for arm in (only or [arm.name for arm in e.arms])
            for seed in range(seeds)
        ]
        outcomes = _run_grid(grid, jobs, device)
        _finish([table_of(e, out, preset, only) for e in chosen], outcomes, as_json)


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
    as_json: AsJson = False,
) -> None:
    """Do one arm at several values of settings; each value's runs are kept in DIR/sweep/NAME=VALUE."""
    with user_errors():
        from urllib.parse import quote

        from noisyact.experiments import registry
        from noisyact.experiments.grid import Job
        from noisyact.experiments.table import sweep_table_of

        _at_least(1, seeds=seeds, jobs=jobs)
        chosen = registry.load(experiment)
        points = [
            (",".join(f"{name}={value}" for name, value in point.items()), point)
            for point in changes.combinations(settings)
        ]
        folders = [out / "sweep" / quote(name, safe="=,") for name, _ in points]
        grid = [
            Job(experiment, arm, preset, seed, folder, device, point, force)
            for (_, point), folder in zip(points, folders, strict=True)
            for seed in range(seeds)
        ]
        outcomes = _run_grid(grid, jobs, device)
        named = [(name, folder) for (name, _), folder in zip(points, folders, strict=True)]
        _finish([sweep_table_of(chosen, arm, preset, named)], outcomes, as_json)


def _at_least(least: int, **flags: int | None) -> None:
    for name, value in flags.items():
        if value is not None and value < least:
            raise ValueError(f"--{name} {value}: must be at least {least}")


def _check(jobs: list[Job]) -> None:
    """Whatever is wrong with the settings of any job is said before the first begins."""
    from noisyact.data import locate
    from noisyact.experiments import registry
    from noisyact.experiments.run import resolve

    for job in jobs:
        experiment = registry.load(job.experiment)
        experiment.effective(job.arm, job.preset, job.changes)
        resolve(job.device)
    for name in dict.fromkeys(name for job in jobs for name in registry.load(job.experiment).data):
        locate.find(name)


def _run_grid(jobs: list[Job], at_once: int | None, device: str) -> list[Outcome]:
    from noisyact.experiments.grid import run_all
    from noisyact.experiments.run import resolve

    _check(jobs)
    if at_once is None:
        at_once = 1 if resolve(device).type == "cuda" else _cores()
    with View(len(jobs), "runs") as view:

        def watch(job: Job, event: Event) -> None:
            name = _name(job)
            if event.kind == "progress":
                view.at(name, event.done, event.total)
            elif event.kind == "warning":
                view.say(f"{name}: warning: {event.text}")
            else:
                view.ended(name, f"FAILED: {event.text}" if event.record is None else _ending(event.record))

        return run_all(jobs, at_once, watch)


def _finish(tables: list[Table], outcomes: list[Outcome], as_json: bool) -> None:
    """Print the tables and what failed."""
    failed = [outcome for outcome in outcomes if outcome.record is None]
    if as_json:
        failures = [{"folder": str(outcome.job.folder), "error": outcome.error} for outcome in failed]
        print_json({"tables": [table.as_json() for table in tables], "failed": failures})
    else:
        print("\n\n".join(map(str, tables)))
    for outcome in failed:
        print(f"FAILED {outcome.job.folder}: {outcome.error}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def _name(job: Job) -> str:
    point = "".join(f" {name}={value}" for name, value in job.changes.items())
    return f"{job.experiment} {job.arm} seed {job.seed}{point}"


def _ending(record: dict[str, Any]) -> str:
    from noisyact.experiments import registry

    metric = registry.load(record["experiment"]).metric
    value = record["result"].get(metric)
    return record["status"] + ("" if record["status"] == "diverged" else f", {metric} {_number(value)}")


def _number(value: float | None) -> str:
    return "not reached" if value is None else f"{value:.6g}"


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
