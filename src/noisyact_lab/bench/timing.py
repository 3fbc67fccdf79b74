"""Times several functions in turn, so that whatever the machine does meets all of them alike."""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch

__all__ = ["keep_freed_memory", "median_times"]


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


def keep_freed_memory() -> str:
    """Have this process's C library keep what is freed, and say so; elsewhere say that nothing was done.

    glibc gives large blocks back to the system and gets others, whose pages the system fills with zeros at first touch:
    one call in a few then takes as long again, and by luck it falls on one of two functions that are compared.
    """
    if sys.platform != "linux":
        return "the system's"
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return "the system's"
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # as malloc.h has them
    settings = ((trim_threshold, 2**31 - 1), (top_pad, 2**26), (mmap_threshold, 2**30))
    kept = [mallopt(name, value) for name, value in settings]
    return "freed memory is kept (mallopt)" if all(kept) else "the system's"
