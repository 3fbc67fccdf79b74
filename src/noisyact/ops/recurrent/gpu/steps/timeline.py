"""The order of the steps of a call, and what a kernel needs to know about the rows of each."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Step", "rows_of", "timeline"]


class Step(NamedTuple):
    """One step of a recurrence."""

    t: int
    """The step's index in the sequence."""
    before: int
    """The index of the step before it in the order of the recurrence; without meaning if `known` is 0."""
    size: int
    """The number of rows."""
    known: int
    """The number of rows that have a step before; the others begin with the initial state."""
    position: tuple[int, ...]
    """The last arguments of the kernels: POSITION in forward.py."""


def rows_of(steps: Sequence[Step]) -> slice:
    """The rows of consecutive steps.

    >>> rows_of(timeline([3, 2, 1], reverse=True)[:2])
    slice(3, 6, None)
    """
    ends = steps[0], steps[-1]
    return slice(min(s.position[1] for s in ends), max(s.position[1] + s.size for s in ends))


def timeline(sizes: Sequence[int], reverse: bool, first_step: int = 0) -> list[Step]:
    """The steps that have rows, in the order of the recurrence.

    Args:
        sizes: the number of rows at each step.
        first_step: the position of the noise of step 0.

    >>> [(step.t, step.size, step.known) for step in timeline([2, 1], reverse=True)]
    [(1, 1, 0), (0, 2, 1)]
    """
    return _timeline(tuple(sizes), reverse, first_step)


@functools.lru_cache(maxsize=16)
def _timeline(sizes: tuple[int, ...], reverse: bool, first_step: int) -> list[Step]:
    offsets = [*itertools.accumulate(sizes, initial=0)]
    order = [t for t in range(len(sizes)) if sizes[t] > 0]
    if reverse:
        order.reverse()
    steps: list[Step] = []
    for i, t in enumerate(order):
        before, after = order[max(i - 1, 0)], order[min(i + 1, len(order) - 1)]
        known = min(sizes[t], sizes[before]) if i > 0 else 0
        later = min(sizes[t], sizes[after]) if i < len(order) - 1 else 0
        position = (first_step + t, offsets[t], sizes[t], offsets[before], known, offsets[after], later)
        steps.append(Step(t, before, sizes[t], known, position))
    return steps
