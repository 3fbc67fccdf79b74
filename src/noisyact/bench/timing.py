"""Times several functions in turn, so that whatever the machine does meets all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

__all__ = ["median_times"]


def median_times(functions: Sequence[Callable[[], object]], repeats: int, block: int = 1) -> list[float]:
    """The median seconds of each function over ``repeats * block`` runs, after a warm-up.

    The functions take turns of ``block`` runs; before each turn one run is not counted, since what the others left in
    the caches is not theirs to pay for.
    """
    for function in functions:
        function()
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for function, spent in zip(functions, times, strict=True):
            if block > 1:
                function()
            for _ in range(block):
                start = time.perf_counter()
                function()
                spent.append(time.perf_counter() - start)
    return [statistics.median(spent) for spent in times]
