"""The command `noisyact run`, which trains one run, and the settings that other commands read from flags as well.

What it needs is imported inside, so that help is quick.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from noisyact_lab.cli.options import EXIT_CODES, RUNS, AsJson, Force, Log, Set, print_json
from noisyact_lab.cli.progress import View

if TYPE_CHECKING:
    from noisyact_lab.engine.job import Job
    from noisyact_lab.engine.task import ProcessGroup

__all__ = ["app", "changes_of", "check_at_least", "ending", "name_of"]

app = typer.Typer()

_KEYS = ("arm", "seed", "preset", "device", "out", "settings")


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
    """Train one arm, or resume a killed run from its last checkpoint; a finished run is not done again."""
    _wait_without_spinning()
    from noisyact_lab.engine.job import Job
    from noisyact_lab.engine.run import run
    from noisyact_lab.engine.task import SINGLE_PROCESS

    flags = {"arm": arm, "seed": seed, "preset": preset, "device": device, "out": out}
    chosen = {"arm": "", "seed": 0, "preset": "short", "device": "auto", "out": RUNS, "settings": {}}
    chosen |= {} if config is None else _from_file(config)
    chosen |= {name: value for name, value in flags.items() if value is not None}
    changes = {**chosen["settings"], **changes_of(settings or [])}
    job = Job(
        experiment, chosen["arm"], chosen["preset"], chosen["seed"], Path(chosen["out"]), chosen["device"], changes,
        force, tuple(log or ()),
    )  # fmt: skip
    names = ", ".join(a.name for a in job.definition.arms)
    if not job.arm:
        raise ValueError(f"--arm is missing; {experiment} has {names}")
    check_at_least(0, seed=job.seed)
    check_at_least(1, devices=devices, num_nodes=num_nodes)
    job.check()
    several = devices or num_nodes or "TORCHELASTIC_RUN_ID" in os.environ  # which torchrun sets
    group = _process_group(job, devices, num_nodes) if several else SINGLE_PROCESS
    if not group.is_first:
        run(job, group=group)
        return
    with View(1, "runs") as view:
        record = run(job, lambda done, total, _: view.at(name_of(job), done, total), group)
        view.ended(name_of(job), ending(job, record))
    if as_json:
        print_json(record)
    else:
        print("\n".join(f"{key}: {_number(value)}" for key, value in record["result"].items()))
        print(f"folder: {job.folder}")


def name_of(job: Job) -> str:
    """A job as it is shown while it runs."""
    point = "".join(f" {name}={value}" for name, value in job.changes.items())
    return f"{job.experiment} {job.arm} seed {job.seed}{point}"


def ending(job: Job, record: dict[str, Any]) -> str:
    """How a run ended, in a few words."""
    metric, status = job.definition.metric, record["status"]
    if status == "diverged" or metric not in record["result"]:  # a run that chooses a setting has no test score
        return status
    return f"{status}, {metric} {_number(record['result'][metric])}"


def _number(value: float | None) -> str:
    """A number of a result.

    >>> _number(31.1234567), _number(None)
    ('31.1235', 'not reached')
    """
    return "not reached" if value is None else f"{value:.6g}"


def changes_of(flags: Sequence[str]) -> dict[str, str]:
    """The changes of settings in flags ``--set name=value``.

    >>> changes_of(["hidden=16", "scheme=none"])
    {'hidden': '16', 'scheme': 'none'}
    """
    changes = {}
    for flag in flags:
        name, equals, value = flag.partition("=")
        if not equals or not name or not value:
            raise ValueError(f"--set {flag!r}: must be name=value")
        if name in changes:
            raise ValueError(f"--set {flag!r}: {name} is set twice")
        changes[name] = value
    return changes


def check_at_least(least: int, **flags: int | None) -> None:
    """Raise an error that names the first of these flags whose value is less."""
    for name, value in flags.items():
        if value is not None and value < least:
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be at least {least}")


def _from_file(path: Path) -> dict[str, Any]:
    """Read a file that stands for flags of `run`, with changes of settings in a table `[settings]`."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"--config {path} is not TOML: {error}") from None
    for key in content:
        if key not in _KEYS:
            raise ValueError(f"--config {path}: {key!r} is unknown; allowed are {', '.join(_KEYS)}")
    kinds = {"seed": (int, "a whole number"), "settings": (dict, "a table")}
    for key, value in content.items():
        kind, words = kinds.get(key, (str, "text"))
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"--config {path}: {key}={value!r}: must be {words}")
    return content


def _process_group(job: Job, devices: int | None, num_nodes: int | None) -> ProcessGroup:
    """The processes that train the run, of which this is one.

    If several devices are asked for and torchrun has not started this process, the command is started again for each of
    them, and this process ends with them.
    """
    from noisyact_lab.engine.distributed import ProcessFailed, check_spreading, join, launch, started_by_torchrun

    if started_by_torchrun() or (devices or 1) * (num_nodes or 1) == 1:
        return join(job.torch_device, devices, num_nodes)
    check_spreading(job.definition)
    try:
        launch(devices or 1, num_nodes or 1, sys.argv[1:])
    except ProcessFailed as failure:
        print(f"noisyact: {failure}", file=sys.stderr)
        raise typer.Exit(failure.code if failure.code in (1, 2) else 1) from None
    raise typer.Exit


def _wait_without_spinning() -> None:
    """Let OpenMP's threads sleep soon while they wait; this must be set before torch is imported.

    They spin for milliseconds before they sleep. If another process needs the core, the thread they wait for cannot run
    meanwhile: on a busy machine small models took two to four times as long. The results are the same.
    """
    if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        os.environ["GOMP_SPINCOUNT"] = "1000"  # some 20 microseconds, as long as threads with equal work wait
