"""Many runs at once: a few processes, each doing one run after the other.

The processes are started anew, not forked, and one thread each: small models only wait for each other's threads. A run
that fails is reported and the others go on, also where it takes its process with it. Nothing is kept here that is not
in the runs' folders, so a grid that is killed at any moment goes on when it is run again.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import torch

from noisyact_lab.engine import registry
from noisyact_lab.engine.distributed import ALONE, Team
from noisyact_lab.engine.folder.files import Damaged, in_words
from noisyact_lab.engine.logging.run_log import Logs
from noisyact_lab.engine.run import Progress, folder_of, to_end, training

__all__ = ["Event", "Job", "Outcome", "Watch", "check_folders", "in_a_line", "run_all"]


@dataclasses.dataclass(frozen=True)
class Job:
    """One run to be done; the arguments of :func:`noisyact_lab.engine.run.run`, and loggers."""

    experiment: str
    arm: str
    preset: str
    seed: int
    out: Path
    device: str = "auto"
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    force: bool = False
    log: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Where the run is kept."""
        return folder_of(self.out, self.experiment, self.preset, self.arm, self.seed)

    def do(self, progress: Progress | None = None, team: Team = ALONE) -> dict[str, Any]:
        """Do it in this process; returns the record."""
        return to_end(self.training(progress, team))

    def training(self, progress: Progress | None = None, team: Team = ALONE) -> Generator[None, None, dict[str, Any]]:
        """As :meth:`do`, one update at a time."""
        logs = Logs(self.log if team.leads else (), self.folder)

        def told(done: int, total: int, line: dict[str, float]) -> None:
            if progress is not None:
                progress(done, total, line)
            logs.follow()

        try:
            record = yield from training(
                registry.load(self.experiment), self.arm, self.preset, self.seed, self.out, device=self.device,
                changes=self.changes, force=self.force, progress=told, team=team,
            )  # fmt: skip
        except BaseException:
            logs.end(None)
            raise
        logs.end(record)
        return record


@dataclasses.dataclass(frozen=True)
class Event:
    """Something a run says: how far it is, how it ended (`record`), why it failed, or a warning (`text`)."""

    kind: Literal["progress", "ended", "failed", "warning"]
    done: int = 0
    total: int = 0
    record: dict[str, Any] | None = None
    text: str = ""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended: with a record, or with the last line of what went wrong."""

    job: Job
    record: dict[str, Any] | None
    error: str = ""


Watch = Callable[[Job, Event], None]


def run_all(jobs: Sequence[Job], at_once: int, watch: Watch | None = None) -> list[Outcome]:
    """Do all jobs, `at_once` of them at a time; `watch` is called in this process with all that the runs say.

    Returns: how each ended, in the order of the jobs.
    """
    if at_once < 1:
        raise ValueError(f"at_once={at_once}: must be at least 1")
    check_folders(jobs)
    waiting = list(enumerate(jobs))[::-1]
    outcomes: dict[int, Outcome] = {}
    workers = [_Worker() for _ in range(min(at_once, len(jobs)))]
    try:
        for worker in workers:
            worker.take(*waiting.pop())
        while len(outcomes) < len(jobs):
            busy = {worker.pipe: worker for worker in workers if worker.job is not None}
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # pyright: ignore[reportArgumentType]
                assert worker.job is not None
                event = worker.hear()
                if watch is not None:
                    watch(worker.job, event)
                if event.kind in ("ended", "failed"):
                    outcomes[worker.index] = Outcome(worker.job, event.record, event.text)
                    worker.job = None
                    if not worker.process.is_alive():
                        workers[workers.index(worker)] = worker = _Worker() if waiting else worker
                    if waiting:
                        worker.take(*waiting.pop())
    finally:
        # Also after Ctrl-C, in the middle of runs: they are left as a kill leaves them, which they survive.
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()
            worker.pipe.close()
    return [outcomes[i] for i in range(len(jobs))]


def check_folders(jobs: Sequence[Job]) -> None:
    """Every run has a folder of its own."""
    if len({job.folder for job in jobs}) < len(jobs):
        raise ValueError("two jobs have the same folder")


def in_a_line(error: Exception) -> str:
    """What went wrong.

    >>> in_a_line(ValueError("c=-1: must not be negative"))
    'ValueError: c=-1: must not be negative'
    >>> in_a_line(OSError(28, "No space left on device"))
    'No space left on device; make room on that disk. What was saved before is kept'
    """
    if isinstance(error, (Damaged, OSError)):
        return in_words(error)
    return " ".join(traceback.format_exception_only(error)[-1].split())


class _Worker:
    """A process, the end of its pipe, and the job it is at."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process: BaseProcess = spawn.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # else the pipe would not end with the process
        self.index, self.job = -1, None

    def take(self, index: int, job: Job) -> None:
        self.index, self.job = index, job
        self.pipe.send(job)

    def hear(self) -> Event:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return Event("failed", text=f"its process ended with exit code {self.process.exitcode}")


def _work(pipe: Connection) -> None:
    """What a process does: jobs as they come, telling of each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C comes to all processes: the parent ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.showwarning = lambda message, *_, **__: pipe.send(Event("warning", text=str(message)))
    torch.set_num_threads(1)
    while True:
        job: Job = pipe.recv()
        try:
            record = job.do(lambda done, total, _: pipe.send(Event("progress", done, total)))
        except Exception as error:
            pipe.send(Event("failed", text=in_a_line(error)))
        else:
            pipe.send(Event("ended", record=record))


def _end_with_parent() -> None:
    """A parent that was killed cannot end its processes, and a second grid would find them at its runs."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
