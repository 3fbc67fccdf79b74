"""Many runs from the command line: what is checked before, what is seen of them, what is printed at the end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from noisyact_lab.cli.answers import print_json, width
from noisyact_lab.cli.progress import View

if TYPE_CHECKING:
    from noisyact_lab.analysis.results_table import Table
    from noisyact_lab.engine.experiment import Experiment
    from noisyact_lab.engine.parallel.processes import Event, Job, Outcome

__all__ = ["check", "do", "ending", "finish", "name_of", "number", "without_data"]

_ENGINES = ("local", "ray")


def check(jobs: list[Job], engine: str = "local") -> None:
    """Whatever is wrong with any job is said before the first begins; on a cluster device and data are elsewhere."""
    from noisyact_lab.engine import registry
    from noisyact_lab.engine.logging import loggers
    from noisyact_lab.engine.run import resolve

    for job in jobs:
        experiment = registry.load(job.experiment)
        settings = experiment.effective(job.arm, job.preset, job.changes)
        loggers.check(job.log)
        if engine == "local":
            resolve(job.device)
            experiment.find_data(settings)


def without_data(experiments: list[Experiment], preset: str) -> dict[str, str]:
    """The experiments whose data are missing, and how to get them; they are named at once: the others take long."""
    from noisyact_lab.data import locate

    skipped = {}
    for experiment in experiments:
        try:
            experiment.find_data(experiment.effective(experiment.arms[0].name, preset))
        except locate.Missing as missing:
            skipped[experiment.name] = str(missing)
            print(f"SKIPPED {experiment.name}: {missing}", file=sys.stderr)
    return skipped


def do(jobs: list[Job], at_once: int | None, engine: str, address: str | None) -> list[Outcome]:
    """Do the jobs with an engine, all of them in one view."""
    from noisyact_lab.engine.experiment import UnknownName
    from noisyact_lab.engine.parallel import mps, processes, streams
    from noisyact_lab.engine.ray import cluster, runs
    from noisyact_lab.engine.run import resolve

    if engine not in _ENGINES:
        raise UnknownName("engine", engine, _ENGINES)
    if engine == "ray":
        cluster.check_installed()
    elif address is not None:
        raise ValueError(f"--address {address}: is for --engine ray")
    check(jobs, engine)
    with View(len(jobs), "runs") as view:

        def watch(job: Job, event: Event) -> None:
            name = name_of(job)
            if event.kind == "progress":
                view.at(name, event.done, event.total)
            elif event.kind == "warning":
                view.say(f"{name}: warning: {event.text}")
            else:
                view.ended(name, f"FAILED: {event.text}" if event.record is None else ending(event.record))

        if engine == "ray":
            return runs.run_all(jobs, at_once, watch, address=address)
        on_gpu = any(resolve(job.device).type == "cuda" for job in jobs)
        if on_gpu and mps.serves():
            mps.prepare()
            return processes.run_all(jobs, at_once or min(mps.MOST, _cores()), watch)
        if on_gpu and at_once != 1:
            return streams.run_all(jobs, at_once or streams.MOST, watch)
        return processes.run_all(jobs, at_once or _cores(), watch)


def finish(tables: list[Table], outcomes: list[Outcome], as_json: bool, skipped: dict[str, str] | None = None) -> None:
    """Print the tables, what failed and what was skipped."""
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


def name_of(job: Job) -> str:
    """A job as the view has it."""
    point = "".join(f" {name}={value}" for name, value in job.changes.items())
    return f"{job.experiment} {job.arm} seed {job.seed}{point}"


def ending(record: dict[str, Any]) -> str:
    """How a run ended, in a few words."""
    from noisyact_lab.engine import registry

    metric = registry.load(record["experiment"]).metric
    value = record["result"].get(metric)
    return record["status"] + ("" if record["status"] == "diverged" else f", {metric} {number(value)}")


def number(value: float | None) -> str:
    """A number of a result.

    >>> number(31.1234567), number(None)
    ('31.1235', 'not reached')
    """
    return "not reached" if value is None else f"{value:.6g}"


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
