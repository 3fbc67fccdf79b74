"""Many runs at once in one process, each in a lane of its own: how a GPU does several small runs side by side.

A GPU shared by several processes is given to one after the other, and a small model uses a small part of it in its
turn. The streams of one process run at the same time: while one run's graph is executed, those of the others are
launched. The lanes take turns of some updates, in one thread; each has its own random numbers and, on a GPU, its own
stream, so a run ends as it does alone.

A run that fails is reported and the others go on. What takes the process with it ends all; nothing is kept here that
is not in the runs' folders, so all of them go on when they are done again.
"""

from __future__ import annotations

import contextlib
import gc
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from noisyact_lab.engine.parallel.processes import Event, Job, Outcome, Watch, check_folders, in_a_line
from noisyact_lab.engine.run import resolve

__all__ = ["MOST", "run_all"]

MOST = 8
"""Lanes at once by default: beyond these the host, which launches for all, is no longer ahead of the GPU."""
_TURN = 16
"""Updates of a turn. The host launches them faster than the GPU does them, so the lanes' streams are never empty."""
_MARGIN = 1.25


def run_all(jobs: Sequence[Job], at_once: int = MOST, watch: Watch | None = None) -> list[Outcome]:
    """Do all jobs, up to `at_once` at a time, as far as the GPU's memory allows; as :func:`grid.run_all` otherwise."""
    if at_once < 1:
        raise ValueError(f"at_once={at_once}: must be at least 1")
    check_folders(jobs)
    waiting = list(enumerate(jobs))[::-1]
    outcomes: dict[int, Outcome] = {}
    on_gpu = any(resolve(job.device).type == "cuda" for job in jobs)
    # As many queues to the GPU as there can be: two lanes in one queue would wait for each other.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    free: list[Any] = [torch.cuda.Stream() if on_gpu else None for _ in range(min(at_once, len(jobs)))]
    lanes: list[_Lane] = []
    try:
        while waiting or lanes:
            if waiting and free and (not lanes or not on_gpu or _has_room(len(lanes))):
                lanes.append(_Lane(*waiting.pop(), free.pop(), watch))
            for lane in list(lanes):
                ending = lane.turn()
                if ending is not None:
                    outcomes[lane.index] = Outcome(lane.job, ending.record, ending.text)
                    lanes.remove(lane)
                    free.append(lane.stream)
                    lane.tell(ending)
                    del lane
                    gc.collect()  # the run's graphs and what they hold of the GPU's memory
    finally:
        for lane in lanes:  # also after Ctrl-C: they are left as a kill leaves them, which they survive
            lane.updates.close()
    return [outcomes[i] for i in range(len(jobs))]


def _has_room(running: int) -> bool:
    """Whether one more run, as large as those that are running, has room in the GPU's memory."""
    free, total = torch.cuda.mem_get_info()
    return free > _MARGIN * (total - free) / running


class _Lane:
    """A run in progress, with random numbers and a stream of its own."""

    def __init__(self, index: int, job: Job, stream: torch.cuda.Stream | None, watch: Watch | None) -> None:
        self.index, self.job, self.stream, self._watch = index, job, stream, watch
        self.updates = job.training(lambda done, total, _: self.tell(Event("progress", done, total)))
        self._random = torch.get_rng_state()
        self._random_on_gpu = None if stream is None else _gpu_generator().clone_state()

    def tell(self, event: Event) -> None:
        """Say something of the run."""
        if self._watch is not None:
            self._watch(self.job, event)

    def turn(self) -> Event | None:
        """Some updates; returns how the run ended, if it did."""
        with self._in_lane():
            try:
                for _ in range(_TURN):
                    next(self.updates)
            except StopIteration as end:
                return Event("ended", record=end.value)
            except Exception as error:
                return Event("failed", text=in_a_line(error))
        return None

    @contextlib.contextmanager
    def _in_lane(self) -> Iterator[None]:
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
