"""One run of one arm: its folder, its training loop, its record.

The folder has `config.json` (every effective setting), `metrics.jsonl` (one line an evaluation), `timing.jsonl` (when),
`checkpoints/`, and at the end `result.json`, the numbers with their signature; `samples.json` and `pictures/`, of a
task that has such.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import time
import warnings
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import torch

from noisyact_lab.engine.distributed import ALONE, Team, check_spreading
from noisyact_lab.engine.experiment import Experiment, UnknownName
from noisyact_lab.engine.folder import checkpoint, journal
from noisyact_lab.engine.folder.files import (
    Damaged,
    alone_in,
    append_line,
    read_json,
    remove,
    remove_leftovers,
    write_json,
)
from noisyact_lab.engine.folder.provenance import signature
from noisyact_lab.engine.intervals import is_finite
from noisyact_lab.engine.task import Task
from noisyact_lab.loops.cuda_graph import check_kernels

__all__ = ["DEVICES", "Progress", "clear", "folder_of", "resolve", "run", "to_end", "training"]

DEVICES = ("auto", "cpu", "cuda")

Progress = Callable[[int, int, dict[str, float]], None]
"""Called at the start and after every evaluation: the updates done, those in all, and the last evaluation."""


def folder_of(out: Path, experiment: str, preset: str, arm: str, seed: int) -> Path:
    """Where a run is kept."""
    return out / experiment / preset / arm / f"seed-{seed}"


def run(
    experiment: Experiment, arm: str, preset: str, seed: int, out: Path, *, device: str = "auto",
    changes: Mapping[str, Any] | None = None, force: bool = False, progress: Progress | None = None, team: Team = ALONE,
) -> dict[str, Any]:  # fmt: skip
    """Train one arm, or go on where a killed run stopped; a finished run is not done again unless forced.

    Returns: the record as in result.json. Its status is "finished", or "diverged" for a run that stopped being finite.
    """
    updates = training(
        experiment, arm, preset, seed, out, device=device, changes=changes, force=force, progress=progress, team=team
    )
    return to_end(updates)


def to_end(updates: Generator[None, None, dict[str, Any]]) -> dict[str, Any]:
    """Do all updates of a training; returns its record."""
    while True:
        try:
            next(updates)
        except StopIteration as end:
            return end.value


def training(
    experiment: Experiment, arm: str, preset: str, seed: int, out: Path, *, device: str = "auto",
    changes: Mapping[str, Any] | None = None, force: bool = False, progress: Progress | None = None, team: Team = ALONE,
) -> Generator[None, None, dict[str, Any]]:  # fmt: skip
    """As :func:`run`, one update at a time: yields after each, and returns the record."""
    settings = experiment.effective(arm, preset, changes)
    chosen = resolve(device) if team.device is None else team.device
    folder = folder_of(out, experiment.name, preset, arm, seed)
    config = {
        "experiment": experiment.name, "arm": arm, "preset": preset, "seed": seed, "device": chosen.type,
        **({"devices": team.size} if team.size > 1 else {}), "settings": dataclasses.asdict(settings),
    }  # fmt: skip
    config = json.loads(json.dumps(config))  # as it will be read: a tuple comes back as a list
    with contextlib.ExitStack() as held:
        team.decided(lambda: held.enter_context(alone_in(folder)))
        known = team.decided(lambda: _known(folder, config, force))
        if known is not None:
            return known
        began = time.monotonic()
        torch.manual_seed(seed)
        task = experiment.start(settings, seed, chosen)
        for name in ("updates", "evaluate_every"):
            if getattr(task, name) < 1:
                raise ValueError(f"{experiment.name}: {name}={getattr(task, name)}: must be at least 1")
        if team.size > 1:
            check_spreading(experiment, task)
            task.spread(team)
        done, evaluations, seconds = team.decided(lambda: _begun(folder, config, task))
        if done and team.size > 1:
            checkpoint.restore(task, team.decided(lambda: checkpoint.state_of(task)))
        team.reseed(seed, done)
        status = yield from _train(task, seed, done, began - seconds, evaluations, folder, progress, team)
        return team.decided(lambda: _ended(folder, config, task, status, evaluations))


def _begun(folder: Path, config: dict[str, Any], task: Task) -> tuple[int, list[dict[str, float]], float]:
    """Bring the task to where the run stopped: the updates done, their evaluations and the seconds they took."""
    remove_leftovers(folder)
    write_json(folder / "config.json", config)  # now that a task could be made of it
    done, evaluations, timing = _stopped(folder, task)
    checkpoint.tidy(folder / "checkpoints", done)  # after a kill in the last save there is no other that would
    journal.rewrite(folder, evaluations, timing)  # what was recorded after the checkpoint will be recorded again
    return done, evaluations, timing[-1]["seconds"] if timing else 0.0


def _stopped(folder: Path, task: Task) -> tuple[int, journal.Lines, journal.Lines]:
    """Bring the task to the last checkpoint that is whole and whose records are: its updates, evaluations and times."""
    changed: Damaged | None = None
    found = checkpoint.paths(folder / "checkpoints")
    for path, state in checkpoint.whole(found):
        done = state["update"]
        try:
            evaluations, timing = journal.recorded(folder, done, state["records"])
        except Damaged as error:
            changed = changed or error
            continue
        checkpoint.restore(task, state, path)
        if changed is not None:
            warnings.warn(
                f"{changed.path} was changed while the run was stopped ({changed.why}); it resumes from the checkpoint "
                f"before, at update {done}",
                stacklevel=2,
            )
        return done, evaluations, timing
    if changed is not None:  # the checkpoints are whole: they are not given up for a file that may be somewhere still
        raise changed
    if found:
        warnings.warn(f"{folder}: its checkpoints cannot be used; the run starts again from update 0", stacklevel=2)
    return 0, [], []


def _ended(
    folder: Path, config: dict[str, Any], task: Task, status: str, evaluations: list[dict[str, float]]
) -> dict[str, Any]:
    numbers = {name: _finite(value) for name, value in task.result(evaluations).items()} if evaluations else {}
    record = {**config, "status": status, "updates": task.updates, "result": numbers, "signature": signature(config)}
    if status == "finished" and (samples := task.samples()):
        write_json(folder / "samples.json", samples)
    if status == "finished" and (pictures := task.pictures()):
        from noisyact_lab.engine.folder import picture  # imports matplotlib, which only tasks with pictures need

        for name, figure in pictures.items():
            picture.save(figure, folder / "pictures", name)
    write_json(folder / "result.json", record)
    return record


def resolve(device: str) -> torch.device:
    """The device of that name; "auto" is the GPU where there is one."""
    if device not in DEVICES:
        raise UnknownName("device", device, DEVICES)
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda': there is none here; allowed are auto, cpu")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


def clear(folder: Path) -> None:
    """Remove a run, with what its loggers keep of it."""
    # The settings last: until the checkpoints are gone they say whose those are.
    for name in ("checkpoints", "logs", "pictures", "result.json", "samples.json", *journal.FILES, "config.json"):
        remove(folder / name)


def _known(folder: Path, config: dict[str, Any], force: bool) -> dict[str, Any] | None:
    """The record of a finished run; an unfinished one must have been begun with the same settings."""
    if force:
        clear(folder)
        return None
    finished, path = (folder / "result.json").exists(), folder / "config.json"
    if path.exists():
        before = read_json(path, dict)
        if before != config:
            raise ValueError(
                f"{folder} has a run with other settings ({_differences(before, config)}); use --force to do it again, "
                "or another --out"
            )
    elif finished or checkpoint.paths(folder / "checkpoints"):
        raise Damaged(path, "it is gone, so it is not known what settings the run had")
    return _finished(folder / "result.json", config) if finished else None


def _finished(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The record of a finished run, if it is one."""
    record = read_json(path, dict)
    if {name: record.get(name) for name in config} != config:
        raise Damaged(path, "its settings are not those of config.json")
    if record.get("status") not in ("finished", "diverged"):
        raise Damaged(path, f"its status is {record.get('status')!r}, neither 'finished' nor 'diverged'")
    numbers = record.get("result")
    if not isinstance(numbers, dict) or not all(value is None or is_finite(value) for value in numbers.values()):
        raise Damaged(path, "its result is not a number for each name")
    return record


def _differences(before: dict[str, Any], config: dict[str, Any]) -> str:
    flat = [{**{k: v for k, v in c.items() if k != "settings"}, **_settings(c)} for c in (before, config)]
    names = [name for name in {**flat[0], **flat[1]} if flat[0].get(name) != flat[1].get(name)]
    return ", ".join(f"{name} is {flat[0].get(name)} there and {flat[1].get(name)} here" for name in names)


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    settings = config.get("settings")
    return settings if isinstance(settings, dict) else {"settings": settings}


def _train(
    task: Task, seed: int, done: int, start: float, evaluations: list[dict[str, float]], folder: Path,
    progress: Progress | None, team: Team,
) -> Generator[None, None, str]:  # fmt: skip
    if progress is not None:
        progress(done, task.updates, evaluations[-1] if evaluations else {})
    count = done
    while count < task.updates:  # which an evaluation may have lowered
        line = task.update(count)
        count += 1
        due = task.due(count)
        if due and not _broken(line):
            line = {"update": count, **line, **task.evaluate(count)}
        if due:
            line = team.decided(functools.partial(dict, line))  # all go the way of the first
        broken = _broken(line)
        when = {"update": count, "seconds": round(time.monotonic() - start, 3), "at": round(time.time(), 3)}
        if broken:
            if torch.cuda.is_available():
                check_kernels(torch.device("cuda"))
            if team.leads:
                append_line(folder / journal.TIMING, {**when, "diverged": broken})
            return "diverged"
        if due:
            evaluations.append(line)
            team.decided(functools.partial(_keep, folder, task, evaluations, when))
            team.reseed(seed, count)
            if progress is not None:
                progress(count, task.updates, line)
        yield
    return "finished"


def _keep(folder: Path, task: Task, evaluations: list[dict[str, float]], when: dict[str, Any]) -> None:
    """Record the last evaluation, and then save the task."""
    journal.append(folder, evaluations[-1], when)
    checkpoint.save(folder / "checkpoints", when["update"], task, journal.seal(evaluations))


def _broken(line: dict[str, float]) -> list[str]:
    return [name for name, value in line.items() if not math.isfinite(value)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
