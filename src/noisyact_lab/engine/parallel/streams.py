"""Many runs at once in one process, each on its own CUDA stream, so that small runs share a GPU.

Several processes get a GPU in turns, and a small model uses a small part of it in its turn. The streams of one process
run concurrently: while the graph of one run is executed, those of the others are launched. The runs take turns of some
updates, in one thread. Each has its own random state and, on a GPU, its own stream, so its result is bit-identical to
that of the run in a process without others.

A run that fails is reported and the others continue. What ends the process ends all runs; all state is in their
folders, so they resume when they are run again.
"""

from __future__ import annotations

import contextlib
import gc
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from noisyact_lab.engine.job import Job
from noisyact_lab.engine.parallel.events import Event, Outcome, Watch, check_folders, in_a_line
from noisyact_lab.engine.run import training

__all__ = ["MOST", "run_all"]

MOST = 8
"""Runs at once by default: with more, the host, which launches for all, is no longer ahead of the GPU."""
_TURN = 16
"""Updates of a turn. The host launches them faster than the GPU does them, so no stream runs empty."""
_MARGIN = 1.25


def run_all(jobs: Sequence[Job], at_once: int = MOST, watch: Watch | None = None) -> list[Outcome]:
    """Do all jobs, up to `at_once` of them at a time, or fewer if the GPU's memory does not allow that.

    Returns: how each ended, in the order of the jobs.
    """
    if at_once < 1:
        raise ValueError(f"at_once={at_once}: must be at least 1")
    check_folders(jobs)
    waiting = list(enumerate(jobs))[::-1]
    outcomes: dict[int, Outcome] = {}
    on_gpu = any(job.torch_device.type == "cuda" for job in jobs)
    # As many queues to the GPU as there can be: two streams in one queue would wait for each other.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    free: list[Any] = [torch.cuda.Stream() if on_gpu else None for _ in range(min(at_once, len(jobs)))]
    runs: list[_StreamedRun] = []
    try:
        while waiting or runs:
            if waiting and free and (not runs or not on_gpu or _has_room(len(runs))):
                runs.append(_StreamedRun(*waiting.pop(), free.pop(), watch))
            for run in list(runs):
                ending = run.turn()
                if ending is not None:
                    outcomes[run.index] = Outcome(run.job, ending.record, ending.text)
                    runs.remove(run)
                    free.append(run.stream)
                    run.tell(ending)
                    del run
                    gc.collect()  # the run's graphs and what they hold of the GPU's memory
    finally:
        for run in runs:  # also after Ctrl-C: they are left as if killed, and can be resumed
            run.updates.close()
    return [outcomes[i] for i in range(len(jobs))]


def _has_room(running: int) -> bool:
    """Whether one more run, as large as those that are running, has room in the GPU's memory."""
    free, total = torch.cuda.mem_get_info()
    return free > _MARGIN * (total - free) / running


class _StreamedRun:
    """A run in progress, with its random state and its stream."""

    def __init__(self, index: int, job: Job, stream: torch.cuda.Stream | None, watch: Watch | None) -> None:
        self.index, self.job, self.stream, self._watch = index, job, stream, watch
        self.updates = training(job, lambda done, total, _: self.tell(Event("progress", done, total)))
        self._random = torch.get_rng_state()
        self._random_on_gpu = None if stream is None else _gpu_generator().clone_state()

    def tell(self, event: Event) -> None:
        """Pass an event on to whoever watches."""
        if self._watch is not None:
            self._watch(self.job, event)

    def turn(self) -> Event | None:
        """Do some updates; returns how the run ended, if it did."""
        with self._current():
            try:
                for _ in range(_TURN):
                    next(self.updates)
            except StopIteration as end:
                return Event("ended", record=end.value)
            except Exception as error:
                return Event("failed", text=in_a_line(error))
        return None

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        outside, show = torch.get_rng_state(), warnings.showwarning
        torch.set_rng_state(self._random)
        warnings.showwarning = lambda message, *_, **__: self.tell(Event("warning", text=str(message)))
        try:
            with _on_gpu(self.stream, self._random_on_gpu):
                yield
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(outside)
            warnings.showwarning = show


def _gpu_generator() -> torch.Generator:
    torch.cuda.init()
    return torch.cuda.default_generators[torch.cuda.current_device()]


@contextlib.contextmanager
def _on_gpu(stream: torch.cuda.Stream | None, random: torch.Generator | None) -> Iterator[None]:
    """The stream and the state of torch's generator on the GPU; graphs keep the state they were recorded with."""
    if stream is None or random is None:
        yield
        return
    generator = _gpu_generator()
    outside = generator.graphsafe_get_state()
    generator.graphsafe_set_state(random)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        generator.graphsafe_set_state(outside)
