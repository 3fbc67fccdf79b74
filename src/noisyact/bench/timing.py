"""Times several functions in turn, so that whatever the machine does meets all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

__all__ = ["median_times"]


def median_times(
    functions: Sequence[Callable[[], object]], repeats: int, block: int = 1, device: str = "cpu"
) -> list[float]:
    """The median seconds of each function over ``repeats * block`` runs, after a warm-up.

    The functions take turns of ``block`` runs; before each turn one run is not counted, since what the others left in
    the caches is not theirs to pay for. On a CUDA device it is the device's own clock that is read, between the work
    before the function's and the end of it: the host runs ahead and its time is in it only where the device waits.
    """
    run = _run_on_gpu if torch.device(device).type == "cuda" else _run
    for function in functions:
        function()
    times: list[list[Callable[[], float]]] = [[] for _ in functions]
    for _ in range(repeats):
        for function, spent in zip(functions, times, strict=True):
            if block > 1:
                function()
            spent += [run(function) for _ in range(block)]
    return [statistics.median(seconds() for seconds in spent) for spent in times]


def _run(function: Callable[[], object]) -> Callable[[], float]:
    start = time.perf_counter()
    function()
    spent = time.perf_counter() - start
    return lambda: spent


def _run_on_gpu(function: Callable[[], object]) -> Callable[[], float]:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    function()
    end.record()

    def seconds() -> float:
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    return seconds
