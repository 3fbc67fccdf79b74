"""The training loop of a run, which resumes from the last checkpoint in the run's folder.

Beside the records and the checkpoints the folder has `samples.json` and `pictures/`, if the task makes such.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch

from noisyact_lab.engine.distributed import check_spreading
from noisyact_lab.engine.folder import (
    checkpoint,
    records,
)
from noisyact_lab.engine.folder.files import Damaged, append_line, locked, remove_leftovers, write_json
from noisyact_lab.engine.folder.records import signature
from noisyact_lab.engine.job import Job
from noisyact_lab.engine.logging.run_log import Logs
from noisyact_lab.engine.task import SINGLE_PROCESS, ProcessGroup, Task
from noisyact_lab.gpu.cuda_graph import check_kernels

__all__ = ["Progress", "run", "training"]

Progress = Callable[[int, int, dict[str, float]], None]
"""Called at the start and after every evaluation with the updates done, the updates in all and the last evaluation."""


def run(job: Job, progress: Progress | None = None, group: ProcessGroup = SINGLE_PROCESS) -> dict[str, Any]:
    """Train a job, or resume it from its last checkpoint; a finished job is not trained again unless forced.

    Returns: the record as in result.json. Its status is "finished", or "diverged" if a number stopped being finite.
    """
    updates = training(job, progress, group)
    while True:
        try:
            next(updates)
        except StopIteration as end:
            return end.value


def training(
    job: Job, progress: Progress | None = None, group: ProcessGroup = SINGLE_PROCESS
) -> Generator[None, None, dict[str, Any]]:
    """As :func:`run`, one update at a time: yields after each, and returns the record."""
    if not job.log or not group.is_first:
        return (yield from _training(job, progress, group))
    logs = Logs(job.log, job.folder)

    def log(done: int, total: int, line: dict[str, float]) -> None:
        if progress is not None:
            progress(done, total, line)
        logs.follow()

    try:
        record = yield from _training(job, log, group)
    except BaseException:
        logs.end(None)
        raise
    logs.end(record)
    return record


def _training(job: Job, progress: Progress | None, group: ProcessGroup) -> Generator[None, None, dict[str, Any]]:
    folder, config = job.folder, job.config(group.size)
    with contextlib.ExitStack() as held:
        group.on_first(lambda: held.enter_context(locked(folder)))
        known = group.on_first(lambda: records.clear(folder) if job.force else records.finished(folder, config))
        if known is not None:
            return known
        began = time.monotonic()
        torch.manual_seed(job.seed)
        task = job.definition.start(job.settings, job.seed, job.torch_device if group.device is None else group.device)
        for name in ("updates", "evaluate_every"):
            if getattr(task, name) < 1:
                raise ValueError(f"{job.experiment}: {name}={getattr(task, name)}: must be at least 1")
        if group.size > 1:
            check_spreading(job.definition, task)
            task.spread(group)
        done, evaluations, seconds = group.on_first(lambda: _resume(folder, config, task))
        if done and group.size > 1:
            checkpoint.restore(task, group.on_first(lambda: checkpoint.state_of(task)))
        group.reseed(job.seed, done)
        status = yield from _train(task, job.seed, done, began - seconds, evaluations, folder, progress, group)
        return group.on_first(lambda: _ended(folder, config, task, status, evaluations))


def _resume(folder: Path, config: dict[str, Any], task: Task) -> tuple[int, list[dict[str, float]], float]:
    """Bring the task to where the run stopped. Returns: the updates done, their evaluations and the seconds taken."""
    remove_leftovers(folder)
    write_json(folder / "config.json", config)  # only now: these settings do make a task
    done, evaluations, timing = _last_usable(folder, task)
    checkpoint.tidy(folder / "checkpoints", done)  # a kill during the last save leaves files behind
    records.rewrite(folder, done, evaluations, timing)  # what was recorded after the checkpoint will be recorded again
    return done, evaluations, timing[-1]["seconds"] if timing else 0.0


def _last_usable(folder: Path, task: Task) -> tuple[int, records.Lines, records.Lines]:
    """Bring the task to the last intact checkpoint with intact records; returns its update, evaluations and times."""
    changed: Damaged | None = None
    found = checkpoint.paths(folder / "checkpoints")
    for path, state in checkpoint.whole(found):
        done = state["update"]
        try:
            evaluations, timing = records.recorded(folder, done, state["records"])
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
    if changed is not None:  # the checkpoints are intact: do not discard them for a file that may be restored
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


def _train(
    task: Task, seed: int, done: int, start: float, evaluations: list[dict[str, float]], folder: Path,
    progress: Progress | None, group: ProcessGroup,
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
            line = group.on_first(functools.partial(dict, line))  # what follows must be the same in all processes
        broken = _broken(line)
        when = {"update": count, "seconds": round(time.monotonic() - start, 3), "at": round(time.time(), 3)}
        if broken:
            if torch.cuda.is_available():
                check_kernels(torch.device("cuda"))
            if group.is_first:
                append_line(folder / records.TIMING, {**when, "diverged": broken})
            return "diverged"
        if due:
            evaluations.append(line)
            group.on_first(functools.partial(_keep, folder, task, evaluations, when))
            group.reseed(seed, count)
            if progress is not None:
                progress(count, task.updates, line)
        yield
    return "finished"


def _keep(folder: Path, task: Task, evaluations: list[dict[str, float]], when: dict[str, Any]) -> None:
    """Record the last evaluation and the noise drawn now, and then save the task."""
    records.append(folder, evaluations[-1], when, task.measure_noise())
    checkpoint.save(folder / "checkpoints", when["update"], task, records.seal(evaluations))


def _broken(line: dict[str, float]) -> list[str]:
    return [name for name, value in line.items() if not math.isfinite(value)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
