"""Times several functions in turn, so that whatever the machine does meets all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

__all__ = ["median_times"]


def median_times(functions: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """The median seconds of each function, measured in rotation after a warm-up."""
    for function in functions:
        function()
        function()
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for function, spent in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            spent.append(time.perf_counter() - start)
    return [statistics.median(spent) for spent in times]
