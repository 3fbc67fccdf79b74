"""Many runs at once in a few processes, each of which does one run after the other.

The processes are spawned, not forked, and have one thread each: with more, small models mostly wait for threads. A run
that fails is reported and the others continue, even if it takes its process with it. All state is in the runs' folders,
so jobs that are killed at any moment resume when they are run again.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from noisyact_lab.engine.job import Job
from noisyact_lab.engine.parallel.events import Event, Outcome, Watch, check_folders, in_a_line
from noisyact_lab.engine.run import run

__all__ = ["run_all"]


def run_all(jobs: Sequence[Job], at_once: int, watch: Watch | None = None) -> list[Outcome]:
    """Do all jobs, `at_once` of them at a time.

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
        # Also after Ctrl-C, in the middle of runs: they are left as if killed, and can be resumed.
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()
            worker.pipe.close()
    return [outcomes[i] for i in range(len(jobs))]


class _Worker:
    """A process, this end of its pipe, and the job it is doing."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process: BaseProcess = spawn.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # else the pipe would outlive the process
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
    """Do the jobs that come through the pipe, and send back their events: the main function of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C comes to all processes: the parent ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.showwarning = lambda message, *_, **__: pipe.send(Event("warning", text=str(message)))
    torch.set_num_threads(1)
    while True:
        job: Job = pipe.recv()
        try:
            record = run(job, lambda done, total, _: pipe.send(Event("progress", done, total)))
        except Exception as error:
            pipe.send(Event("failed", text=in_a_line(error)))
        else:
            pipe.send(Event("ended", record=record))


def _end_with_parent() -> None:
    """End this process if its parent is killed: else it would still hold its run when that is started again."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
