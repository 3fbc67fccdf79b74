"""Numbers over the seeds of an arm, and an arm's row in a table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from noisyact_lab.analysis.noise_records import hardly_drawn
from noisyact_lab.analysis.statistics.intervals import LEAST_SEEDS, Pooled, mean_interval

__all__ = ["Estimate", "Row", "short", "with_error"]

_VAST = 1e9
"""From here on numbers are written with an exponent."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number over seeds: None for each that did not reach it.

    >>> str(Estimate((1.0, 2.0, 3.0))), str(Estimate((7.0,))), str(Estimate((7.0, None)))
    ('2.0 ± 2.5', '7', '7 (1 of 2 reached)')
    >>> str(Estimate((6.0, 8.0), pooled=Pooled(1.0, freedom=4, p=0.5)))
    '7.0 ± 2.0*'
    """

    values: tuple[float | None, ...]
    seeds: tuple[str, ...] = ()
    """The seed of each value, where it is known."""
    pooled: Pooled | None = None
    """The standard deviation over the arms of a table, for the interval of an arm with few seeds."""

    @property
    def reached(self) -> list[float]:
        """The numbers there are."""
        return [value for value in self.values if value is not None]

    @property
    def by_seed(self) -> dict[str, float]:
        """The numbers there are, by their seeds."""
        return {seed: value for seed, value in zip(self.seeds, self.values, strict=True) if value is not None}

    @property
    def mean(self) -> float | None:
        """The mean over the runs that reached it."""
        return mean_interval(self.reached)[0]

    @property
    def own_interval(self) -> tuple[float, float] | None:
        """The 95% interval of the mean by Student's t from these runs alone, two at least.

        The rules of agreement, which were written before the runs, are about this one.
        """
        _, low, high = mean_interval(self.reached)
        return None if low is None or high is None else (low, high)

    @property
    def is_pooled(self) -> bool:
        """Whether the interval has the pooled standard deviation."""
        return 0 < len(self.reached) < LEAST_SEEDS and self.pooled is not None and self.pooled.usable

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the mean. Fewer than three runs have one only with a pooled standard deviation."""
        if len(self.reached) < LEAST_SEEDS and not self.is_pooled:
            return None
        _, low, high = mean_interval(self.reached, self.pooled if self.is_pooled else None)
        return None if low is None or high is None else (low, high)

    def __str__(self) -> str:
        if not self.values:
            return "-"
        if self.mean is None:
            return "not reached"
        text = short(self.mean) if self.interval is None else with_error(self.mean, self.interval)
        text += "*" if self.is_pooled and self.interval is not None else ""
        reached = len(self.reached)
        return text if reached == len(self.values) else f"{text} ({reached} of {len(self.values)} reached)"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "mean": self.mean, "interval": self.interval, "pooled": self.is_pooled, "values": list(self.values),
            "seeds": list(self.seeds),
        }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """An arm: how many runs of each kind, and its numbers over the finished ones."""

    name: str
    title: str
    paper: float | None
    finished: int
    diverged: int
    partial: int
    numbers: dict[str, Estimate]
    papers: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The paper's numbers beside its headline, by name."""
    updates: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The updates of each finished run, by seed."""
    noise: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    """What was measured of each nonlinearity at the end, averaged over the finished runs that recorded it."""

    @property
    def hardly_drawn(self) -> bool:
        """Whether the arm has noise that was hardly ever drawn."""
        return hardly_drawn(self.noise)

    @property
    def marked_name(self) -> str:
        """The name, with a dagger if noise was hardly ever drawn."""
        return f"{self.name} †" if self.hardly_drawn else self.name

    @property
    def runs(self) -> str:
        """The counts in words."""
        others = [f"{n} {what}" for n, what in ((self.diverged, "diverged"), (self.partial, "partial")) if n]
        total = self.finished + self.diverged + self.partial
        return f"{total} ({', '.join(others)})" if others else str(total)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        counts = {"finished": self.finished, "diverged": self.diverged, "partial": self.partial}
        numbers = {name: estimate.as_json() for name, estimate in self.numbers.items()}
        return {
            "arm": self.name, "title": self.title, "paper": self.paper, "papers": dict(self.papers),
            "runs": sum(counts.values()), **counts, "numbers": numbers,
            "noise": {unit: dict(numbers) for unit, numbers in self.noise.items()},
            "hardly_drawn": self.hardly_drawn if self.noise else None,
        }  # fmt: skip


def with_error(mean: float, ends: tuple[float, float]) -> str:
    """The mean with half its interval: two digits of that, and as many places of the mean."""
    half = ends[1] / 2 - ends[0] / 2  # of vast numbers the whole may be more than a float can hold
    if half == 0:
        return f"{short(mean)} ± 0"
    places = max(0, 1 - math.floor(math.log10(half)))
    if places > 6 or max(abs(mean), half) >= _VAST:
        return f"{short(mean)} ± {short(half)}"
    return f"{mean:.{places}f} ± {half:.{places}f}"


def short(value: float) -> str:
    """Three digits, and all those before the point where it is not a vast number."""
    return f"{value:.0f}" if 1000 <= abs(value) < _VAST else f"{value:.3g}"
