"""Timing of several functions in alternating turns, so that disturbances affect all of them equally."""

from __future__ import annotations

import ctypes
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch

__all__ = ["cpu_clock", "keep_freed_memory", "least_times", "median_times"]


def median_times(
    functions: Sequence[Callable[[], object]], repeats: int, block: int = 1, device: str = "cpu"
) -> list[float]:
    """Return the median seconds of each function over ``repeats * block`` calls, after a warm-up.

    The functions alternate in turns of ``block`` calls. If ``block`` > 1, one call before each turn is not counted, to
    refill the caches. On a CUDA device, CUDA events measure the time on the device. Host overhead counts only while the
    device waits for the host. On a CPU with one thread it is CPU time, see :func:`cpu_clock`.
    """
    clock = cpu_clock(torch.get_num_threads())
    run = _run_on_gpu if torch.device(device).type == "cuda" else lambda function: _run(function, clock)
    for function in functions:
        function()
    times: list[list[Callable[[], float]]] = [[] for _ in functions]
    for _ in range(repeats):
        for function, spent in zip(functions, times, strict=True):
            if block > 1:
                function()
            spent += [run(function) for _ in range(block)]
    return [statistics.median(seconds() for seconds in spent) for spent in times]


def cpu_clock(threads: int) -> Callable[[], float]:
    """Return the clock for functions on a CPU: the thread's CPU time if there is one thread, else the wall clock.

    CPU time does not count the time that other programs take. Of several threads it would count the time that they wait
    for each other.
    """
    return time.thread_time if threads == 1 else time.perf_counter


def least_times(functions: Sequence[Callable[[], object]], seconds: float, threads: int) -> list[float]:
    """Return the least seconds of each function on a CPU, over 3 to 200 alternating calls after a warm-up.

    Other work on the machine only ever adds time, so the least time of several calls is close to the time without it.

    Args:
        functions: what is measured.
        seconds: about how long to measure. It decides the number of calls of each function.
        threads: the number of threads that the functions use; see :func:`cpu_clock`.
    """
    clock = cpu_clock(threads)
    for function in functions:
        function()
    found, spent = [math.inf] * len(functions), 0.0
    for turn in range(200):
        if turn >= 3 and spent >= seconds:
            break
        for index, function in enumerate(functions):
            one = _run(function, clock)()
            found[index], spent = min(found[index], one), spent + one
    return found


def _run(function: Callable[[], object], clock: Callable[[], float]) -> Callable[[], float]:
    start = clock()
    function()
    spent = clock() - start
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
    """Make glibc keep freed memory in this process, and return a description of the allocator's setting.

    By default glibc returns large blocks to the system, and the pages of new blocks are zeroed at the first access.
    This makes some calls take twice as long, and by chance they may all be calls of one of the functions compared.
    """
    if sys.platform != "linux":
        return "system default"
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return "system default"
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # the values of the constants in malloc.h
    settings = ((trim_threshold, 2**31 - 1), (top_pad, 2**26), (mmap_threshold, 2**30))
    kept = [mallopt(name, value) for name, value in settings]
    return "freed memory is kept (mallopt)" if all(kept) else "system default"
