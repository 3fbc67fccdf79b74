"""The order of the steps of a call, and what a kernel needs to know about the rows of each."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["Step", "Timeline", "rows_of", "timeline"]


class Step(NamedTuple):
    """One step of a recurrence."""

    t: int
    """The step's index in the sequence."""
    size: int
    """The number of rows."""
    known: int
    """The number of rows that have a step before; the others begin with the initial state."""
    position: tuple[int, ...]
    """The last arguments of the kernels: POSITION in forward.py."""


def rows_of(steps: Sequence[Step]) -> slice:
    """The rows of consecutive steps.

    >>> rows_of(timeline((3, 2, 1), reverse=True).steps[:2])
    slice(3, 6, None)
    """
    ends = steps[0], steps[-1]
    return slice(min(s.position[1] for s in ends), max(s.position[1] + s.size for s in ends))


class Timeline:
    """The steps that have rows, in the order of the recurrence.

    Args:
        sizes: the number of rows at each step.
        first_step: the position of the noise of step 0.

    >>> [(step.t, step.size, step.known) for step in Timeline((2, 1), reverse=True).steps]
    [(1, 1, 0), (0, 2, 1)]
    """

    def __init__(self, sizes: tuple[int, ...], reverse: bool, first_step: int = 0) -> None:
        offsets = [*itertools.accumulate(sizes, initial=0)]
        order = [t for t in range(len(sizes)) if sizes[t] > 0]
        if reverse:
            order.reverse()
        self.steps: list[Step] = []
        self._positions: dict[tuple[int | None, int | None, bool], Any] = {}
        for i, t in enumerate(order):
            before, after = order[max(i - 1, 0)], order[min(i + 1, len(order) - 1)]
            known = min(sizes[t], sizes[before]) if i > 0 else 0
            later = min(sizes[t], sizes[after]) if i < len(order) - 1 else 0
            position = (first_step + t, offsets[t], sizes[t], offsets[before], known, offsets[after], later)
            self.steps.append(Step(t, sizes[t], known, position))

    def positions(self, part: slice, backwards: bool) -> Any:
        """The positions of consecutive steps as a C array of 32-bit numbers."""
        key = part.start, part.stop, backwards
        if key not in self._positions:
            steps = self.steps[part]
            numbers = [number for step in (steps[::-1] if backwards else steps) for number in step.position]
            self._positions[key] = (ctypes.c_int32 * len(numbers))(*numbers)
        return self._positions[key]


timeline = functools.lru_cache(maxsize=16)(Timeline)
"""The timeline of these sizes, which is made once."""
