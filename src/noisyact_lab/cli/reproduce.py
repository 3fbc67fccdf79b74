"""The commands that train many runs, `reproduce` and `sweep`. What they need is imported inside them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noisyact_lab.cli.options import EXIT_CODES, RUNS, AsJson, Force, Log, Out, Preset, Set, print_json, width
from noisyact_lab.cli.progress import View
from noisyact_lab.cli.run import changes_of, check_at_least, ending, name_of

if TYPE_CHECKING:
    from noisyact_lab.analysis.results_table import Table
    from noisyact_lab.engine.experiment import Experiment
    from noisyact_lab.engine.job import Job
    from noisyact_lab.engine.parallel.events import Event, Outcome

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
Names = Annotated[list[str] | None, typer.Argument(help="default: all; see: noisyact list. `estimators` is a group")]
Engine = Annotated[str, typer.Option(help="where the runs are done: local, or ray for a Ray cluster")]
Address = Annotated[
    str | None,
    typer.Option(
        help="of the Ray cluster, HOST:PORT or ray://HOST:PORT (default: RAY_ADDRESS, else one found or started here)"
    ),
]


@app.command("reproduce", epilog=EXIT_CODES)
def reproduce(
    experiments: Names = None,
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
    """Do all arms and seeds of experiments, several at once, and print each one's table beside the paper's numbers.

    Some experiments choose a setting for each arm on validation data first, with runs of another seed.
    """
    from noisyact_lab.analysis.results_table import table_of
    from noisyact_lab.engine.choice import check_choice, choice_jobs, choose
    from noisyact_lab.engine.experiment import experiment_names, load_experiment, names_in
    from noisyact_lab.engine.job import Job

    check_at_least(1, seeds=seeds, jobs=jobs)
    chosen = [load_experiment(name) for name in names_in(experiments or experiment_names())]
    skipped = {} if experiments or engine != "local" else _without_data(chosen, preset)
    chosen = [e for e in chosen if e.name not in skipped]
    only = None if arms is None else list(dict.fromkeys(arms.split(",")))
    changes, loggers = changes_of(settings or []), tuple(log or ())

    def jobs_with(values: dict[str, dict[str, float]]) -> list[Job]:
        """All runs, with the values that were chosen, by experiment and arm."""
        return [
            Job(e.name, arm, preset, seed, out, device, _with_choice(e, arm, changes, values), force, loggers)
            for e in chosen
            for seed in range(seeds)  # so that what is done when time is up has all arms
            for arm in only or [arm.name for arm in e.arms]
        ]

    choosing = {}
    for e in chosen:
        if e.choice is not None:
            check_choice(e, seeds, changes)
            tried = only or [arm.name for arm in e.arms]
            choosing[e.name] = choice_jobs(e, tried, preset, out, device, changes, force, loggers)
    values = {}
    if choosing:
        for job in jobs_with({}):  # before hours of choosing
            job.check(elsewhere=engine != "local")
        first = _run_all([job for by_arm in choosing.values() for each in by_arm.values() for job in each],
                         jobs, engine, address)  # fmt: skip
        if any(outcome.record is None for outcome in first):
            _print([], first, as_json, skipped)
        values = {e.name: choose(e, choosing[e.name], preset, out, force) for e in chosen if e.name in choosing}
    outcomes = _run_all(jobs_with(values), jobs, engine, address)
    _print([table_of(e, out, preset, only) for e in chosen], outcomes, as_json, skipped)


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
    from noisyact_lab.engine.experiment import load_experiment
    from noisyact_lab.engine.job import Job

    check_at_least(1, seeds=seeds, jobs=jobs)
    chosen = load_experiment(experiment)
    points = {",".join(f"{name}={value}" for name, value in point.items()): point for point in _combinations(settings)}
    folders = {name: out / "sweep" / quote(name, safe="=,") for name in points}
    todo = [
        Job(experiment, arm, preset, seed, folders[name], device, point, force, tuple(log or ()))
        for name, point in points.items()
        for seed in range(seeds)
    ]
    outcomes = _run_all(todo, jobs, engine, address)
    _print([sweep_table_of(chosen, arm, preset, list(folders.items()))], outcomes, as_json)


def _with_choice(
    experiment: Experiment, arm: str, changes: dict[str, str], values: dict[str, dict[str, float]]
) -> dict[str, Any]:
    """The changes of an arm's settings, with the value that was chosen for it."""
    if experiment.choice is None or experiment.name not in values:
        return changes
    return {**changes, experiment.choice.setting: values[experiment.name][arm]}


def _combinations(flags: Sequence[str]) -> list[dict[str, str]]:
    """Every combination of the values in flags ``--set name=v1,v2``.

    >>> _combinations(["c=0.5,1", "hidden=16"])
    [{'c': '0.5', 'hidden': '16'}, {'c': '1', 'hidden': '16'}]
    """
    lists = {}
    for name, text in changes_of(flags).items():
        lists[name] = text.split(",")
        if "" in lists[name] or len(set(lists[name])) < len(lists[name]):
            raise ValueError(f"--set {name}={text}: a value is empty or there twice")
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def _without_data(experiments: list[Experiment], preset: str) -> dict[str, str]:
    """Name the experiments whose data are missing, at once since the others take long; returns how to get the data."""
    from noisyact_lab.data import locate

    skipped = {}
    for experiment in experiments:
        try:
            experiment.find_data(experiment.effective(experiment.arms[0].name, preset))
        except locate.Missing as missing:
            skipped[experiment.name] = str(missing)
            print(f"SKIPPED {experiment.name}: {missing}", file=sys.stderr)
    return skipped


def _run_all(jobs: list[Job], at_once: int | None, engine: str, address: str | None) -> list[Outcome]:
    """Do the jobs, and show their progress."""
    from noisyact_lab.engine.many_runs import run_all

    with View(len(jobs), "runs") as view:

        def watch(job: Job, event: Event) -> None:
            name = name_of(job)
            if event.kind == "progress":
                view.at(name, event.done, event.total)
            elif event.kind == "warning":
                view.say(f"{name}: warning: {event.text}")
            else:
                view.ended(name, f"FAILED: {event.text}" if event.record is None else ending(job, event.record))

        return run_all(jobs, at_once, watch, engine, address)


def _print(tables: list[Table], outcomes: list[Outcome], as_json: bool, skipped: dict[str, str] | None = None) -> None:
    """Print the tables, the failed runs and the skipped experiments."""
    left_out = [{"experiment": name, "reason": reason} for name, reason in (skipped or {}).items()]
    failed = [outcome for outcome in outcomes if outcome.record is None]
    if as_json:
        failures = [{"folder": str(outcome.job.folder), "error": outcome.error} for outcome in failed]
        print_json({"tables": [table.as_json() for table in tables], "failed": failures, "skipped": left_out})
    else:
        print("\n\n".join(table.text(width()) for table in tables))
    for outcome in failed:
        print(f"FAILED {outcome.job.folder}: {outcome.error}", file=sys.stderr)
    for entry in left_out:
        print(f"SKIPPED {entry['experiment']}: {entry['reason']}", file=sys.stderr)
    if failed or left_out:
        raise typer.Exit(1 if failed else 3)
