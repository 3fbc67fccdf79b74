"""The mean over seeds with its 95% interval, and standard deviations pooled over arms that have few seeds."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from noisyact.extras import how_to_install
from noisyact_lab.engine.folder.files import is_finite

__all__ = [
    "LEAST_SEEDS", "LEVEL", "Interval", "Pooled", "mean_interval", "missing", "pooled_deviation", "residual_deviation",
    "scale_of", "scipy_module", "t_quantile",
]  # fmt: skip

LEVEL = 0.95
"""The confidence level of all intervals."""
LEAST_SEEDS = 3
"""The fewest seeds whose own variance gives an interval. With two, Student's t is 12.7."""
_UNEQUAL = 0.05
"""Variances are not pooled where Bartlett's test has a p-value below this."""

Interval = tuple[float, float]


def missing() -> str:
    """What to install before there are intervals and tests; an empty string if nothing is missing."""
    if importlib.util.find_spec("scipy") is not None:
        return ""
    return f"intervals and comparisons need scipy, which is not installed: {how_to_install('experiments')}"


def scipy_module(name: str) -> Any:
    """A module of scipy, or a ValueError that says how to install it."""
    if said := missing():
        raise ValueError(said)
    return importlib.import_module(f"scipy.{name}")


@functools.cache
def t_quantile(freedom: float, tail: float = (1 - LEVEL) / 2) -> float:
    """Student's t: the quantile that is exceeded with the probability `tail`."""
    return float(scipy_module("special").stdtrit(freedom, 1 - tail))


def scale_of(values: Sequence[float]) -> float:
    """A power of two near the largest number: divided by it, no sum or square is more than a float can hold."""
    return math.ldexp(0.5, math.frexp(max(map(abs, values), default=1.0))[1]) or 1.0


@dataclasses.dataclass(frozen=True)
class Pooled:
    """A standard deviation estimated from several arms together, if it may be taken as the same in all of them."""

    deviation: float
    freedom: int
    """Degrees of freedom."""
    p: float
    """Of Bartlett's test that the arms' variances are equal."""

    @property
    def usable(self) -> bool:
        """Whether it gives an interval: enough degrees of freedom, and variances that do not visibly differ."""
        return self.freedom >= LEAST_SEEDS - 1 and self.p >= _UNEQUAL


def mean_interval(
    values: Sequence[float], pooled: Pooled | None = None
) -> tuple[float | None, float | None, float | None]:
    """The mean of n numbers, and the ends of its 95% interval, ``mean ± t(f) s / sqrt(n)``; None for what is unknown.

    s is the standard deviation of the numbers, and f = n - 1. If `pooled` is given, s and f are its deviation and its
    degrees of freedom. Assumes that the numbers are independent and normal, and a pooled s that they have its variance.
    Without scipy there is only the mean.

    >>> [round(number, 3) for number in mean_interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    >>> [round(number, 3) for number in mean_interval([2.0], Pooled(1.0, freedom=4, p=0.5))]
    [2.0, -0.776, 4.776]
    >>> mean_interval([5.0]), mean_interval([])
    ((5.0, None, None), (None, None, None))
    """
    if not values:
        return None, None, None
    scale = scale_of(values)
    parts = [value / scale for value in values]
    mean = scale * statistics.fmean(parts)
    if missing() or (pooled is None and len(values) == 1):
        return mean, None, None
    if pooled is None:
        half = scale * (t_quantile(len(values) - 1) * statistics.stdev(parts) / math.sqrt(len(values)))
    else:
        half = t_quantile(pooled.freedom) * pooled.deviation / math.sqrt(len(values))
    low, high = mean - half, mean + half
    return (mean, low, high) if is_finite(low) and is_finite(high) else (mean, None, None)


def pooled_deviation(arms: Sequence[Sequence[float]]) -> Pooled | None:
    """The standard deviation pooled over arms, ``s² = sum_a (n_a - 1) s_a² / sum_a (n_a - 1)``.

    Arms with one number have no part in it. None if fewer than two arms have several numbers: there is nothing to pool.
    It is that of each arm only if all have the same variance. Bartlett's test looks for evidence against that. It has
    little power with few seeds, so a difference that it does not see may still make an interval too wide or too narrow.

    >>> pooled = pooled_deviation([[1.0, 3.0], [2.0, 3.0, 4.0], [9.0]])
    >>> round(pooled.deviation, 4), pooled.freedom, pooled.usable
    (1.1547, 3, True)
    """
    several = [list(arm) for arm in arms if len(arm) > 1]
    if len(several) < 2:
        return None
    scale = scale_of([value for arm in several for value in arm])
    several = [[value / scale for value in arm] for arm in several]
    freedom = sum(len(arm) - 1 for arm in several)
    variance = sum((len(arm) - 1) * statistics.variance(arm) for arm in several) / freedom
    return Pooled(scale * math.sqrt(variance), freedom, _equal_variances(several))


def _equal_variances(arms: Sequence[Sequence[float]]) -> float:
    """The p-value of Bartlett's test. Arms that do not vary at all are unequal to those that do."""
    still = sum(statistics.variance(arm) == 0 for arm in arms)
    if still:
        return 1.0 if still == len(arms) else 0.0
    return float(scipy_module("stats").bartlett(*arms).pvalue)


def residual_deviation(arms: Sequence[Mapping[str, float]]) -> Pooled | None:
    """The standard deviation of the residuals e of ``y_as = arm_a + seed_s + e_as``, fitted by least squares.

    The model says that a seed shifts all arms alike. The difference of two arms at one seed then has the standard
    deviation sqrt(2) times this. Where each pair of arms has few seeds, all arms together still have many residuals.
    Assumes that e has the same variance in all arms, which is checked on the arms' own variances as in
    :func:`pooled_deviation`. None if there is nothing to pool.

    >>> arms = [{"0": 1.0, "1": 2.0}, {"0": 3.0, "1": 5.0}, {"0": 0.0, "1": 1.0}]
    >>> residuals = residual_deviation(arms)  # the differences between seeds are 1, 2 and 1
    >>> round(residuals.deviation, 4), residuals.freedom
    (0.4082, 2)
    """
    import numpy as np

    own = pooled_deviation([list(arm.values()) for arm in arms])
    if own is None:
        return None
    seeds = {seed: i for i, seed in enumerate(sorted({seed for arm in arms for seed in arm}))}
    places = [(a, seeds[seed], y) for a, arm in enumerate(arms) for seed, y in arm.items()]
    scale = scale_of([y for _, _, y in places])
    design = np.zeros((len(places), len(arms) + len(seeds)))
    for row, (a, s, _) in enumerate(places):
        design[row, [a, len(arms) + s]] = 1.0
    y = np.array([y for _, _, y in places]) / scale
    fit, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    freedom = len(places) - int(rank)
    if freedom < 1:
        return None
    squares = float(((y - design @ fit) ** 2).sum())
    return Pooled(scale * math.sqrt(squares / freedom), freedom, own.p)
