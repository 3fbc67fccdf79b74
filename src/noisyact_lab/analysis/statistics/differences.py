"""Differences of two arms paired by seed, equivalence within a margin, and Holm's correction for a family of tests."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from noisyact_lab.analysis.statistics.intervals import (
    LEAST_SEEDS,
    LEVEL,
    Interval,
    Pooled,
    missing,
    scale_of,
    scipy_module,
    t_quantile,
)
from noisyact_lab.engine.folder.files import is_finite

__all__ = ["Difference", "Equivalence", "equivalence", "holm", "paired_difference"]


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of two arms over the seeds that both have. What the seeds do not give is None."""

    seeds: int
    mean: float
    interval: Interval | None
    p: float | None
    """Two-sided, for a mean difference of 0."""
    effect: float | None
    """Cohen's d_z: the mean difference in standard deviations of the differences."""
    effect_interval: Interval | None
    pooled: bool = False
    """Whether the standard deviation is that of the residuals of all arms."""


def paired_difference(
    ours: Mapping[str, float], theirs: Mapping[str, float], residuals: Pooled | None = None
) -> Difference:
    """Compare two arms, given by seed, with a paired t-test over the n seeds that both have.

    With d the differences, s their standard deviation and ``t = mean(d) sqrt(n) / s``: the interval is ``mean(d) ±
    t(n - 1) s / sqrt(n)``, p is the probability of a larger abs(t), and ``d_z = mean(d) / s``. The interval of d_z has
    the ends delta for which t is a 2.5% or 97.5% quantile of the noncentral t with noncentrality ``delta sqrt(n)``.

    Assumes that the differences are independent and normal. With fewer than three of them, s is sqrt(2) times the
    deviation of `residuals` with its degrees of freedom, if that is usable; otherwise there is only the mean.
    Differences that are all 0 have p = 1; those that are all the same number give no test.

    >>> found = paired_difference({"0": 3.0, "1": 5.0, "2": 7.0}, {"0": 2.0, "1": 3.0, "2": 4.0, "3": 9.0})
    >>> found.seeds, found.mean, round(found.p, 4), found.effect
    (3, 2.0, 0.0742, 2.0)
    >>> [round(end, 3) for end in found.interval], [round(end, 2) for end in found.effect_interval]
    ([-0.484, 4.484], [-0.14, 4.11])
    """
    shared = [seed for seed in ours if seed in theirs]
    if not shared:
        raise ValueError(f"no seed is in both arms: {sorted(ours)} and {sorted(theirs)}")
    scale = 4 * scale_of([arm[seed] for arm in (ours, theirs) for seed in shared])
    parts = [ours[seed] / scale - theirs[seed] / scale for seed in shared]
    count, mean = len(parts), statistics.fmean(parts)
    whole = mean * scale if is_finite(mean * scale) else math.copysign(math.inf, mean)
    pooled = count < LEAST_SEEDS
    if not pooled:
        deviation, freedom = statistics.stdev(parts), count - 1
    elif residuals is not None and residuals.usable:
        deviation, freedom = math.sqrt(2) * residuals.deviation / scale, residuals.freedom
    else:
        deviation, freedom = None, 0
    if missing() or deviation is None or not is_finite(whole):
        return Difference(count, whole, None, None, None, None)
    half = scale * (t_quantile(freedom) * deviation / math.sqrt(count))
    ends = (whole - half, whole + half)
    interval = ends if all(map(is_finite, ends)) else None
    if deviation == 0:
        return Difference(count, whole, interval, 1.0 if mean == 0 else None, None, None, pooled)
    t = mean * math.sqrt(count) / deviation
    p = float(2 * scipy_module("special").stdtr(freedom, -abs(t)))
    return Difference(count, whole, interval, p, mean / deviation, _effect_interval(t, freedom, count), pooled)


def _effect_interval(t: float, freedom: int, count: int) -> Interval:
    """The interval of d_z: the noncentralities at which t is a 97.5% and a 2.5% quantile, divided by sqrt(count)."""
    special, brentq = scipy_module("special"), scipy_module("optimize").brentq
    ratios = _deviation_ratios(freedom)
    reach = abs(t) * float(ratios.max()) + 9  # beyond it the probability is 0 or 1

    def end(tail: float) -> float:
        # The noncentral t is (z + shift) / r with z standard normal and r a ratio of deviations.
        found = brentq(lambda shift: float(special.ndtr(t * ratios - shift).mean()) - tail, -reach, reach)
        return float(found) / math.sqrt(count)

    return end((1 + LEVEL) / 2), end((1 - LEVEL) / 2)


@functools.cache
def _deviation_ratios(freedom: int) -> Any:
    """Equally likely values of ``sqrt(chi²(freedom) / freedom)``, for a mean over them.

    scipy's own noncentral t is NaN in its far tails, through which a search for an end must pass.
    """
    import numpy as np

    tails = (np.arange(4000) + 0.5) / 4000
    return np.sqrt(scipy_module("special").chdtri(freedom, tails) / freedom)


@dataclasses.dataclass(frozen=True)
class Equivalence:
    """Whether two arms differ by less than a margin."""

    difference: Difference
    margin: float
    p: float | None
    """For a mean difference of the margin or more, on either side: small where the arms are equivalent."""


def equivalence(
    ours: Mapping[str, float], theirs: Mapping[str, float], margin: float, residuals: Pooled | None = None
) -> Equivalence:
    """Two one-sided paired t-tests (TOST): is the mean difference inside ``(-margin, margin)``?

    p is the larger of the two one-sided p-values, ``P(T > (margin - abs(mean(d))) sqrt(n) / s)``. p < 0.05 says the
    same as a 90% interval inside the margins. The margin must be stated before the runs. The assumptions are those of
    :func:`paired_difference`. A large p does not show a difference: it shows that too little is known.

    >>> a, b = {"0": 1.0, "1": 2.0, "2": 3.0}, {"0": 1.1, "1": 1.9, "2": 3.0}
    >>> round(equivalence(a, b, margin=0.5).p, 4), round(equivalence(a, b, margin=0.1).p, 4)
    (0.0065, 0.1127)
    """
    if not (is_finite(margin) and margin > 0):
        raise ValueError(f"margin={margin}: must be a finite number above 0")
    found = paired_difference(ours, theirs, residuals)
    if found.interval is None:
        return Equivalence(found, margin, None)
    freedom = residuals.freedom if found.pooled and residuals is not None else found.seeds - 1
    error = (found.interval[1] - found.interval[0]) / 2 / t_quantile(freedom)
    room = margin - abs(found.mean)
    if error == 0:
        return Equivalence(found, margin, 0.0 if room > 0 else 1.0)
    return Equivalence(found, margin, float(scipy_module("special").stdtr(freedom, -room / error)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: of m p-values in ascending order, the i-th becomes ``max_{j <= i} min(1, (m - j + 1) p_j)``.

    A family is the set of comparisons that one table makes. If those with a corrected p below 0.05 are called
    different, then the probability of one or more wrong calls in the family is below 5%, however the tests depend on
    each other.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03, 0.5])]
    [0.04, 0.09, 0.09, 0.5]
    """
    for p in p_values:
        if not (is_finite(p) and 0 <= p <= 1):
            raise ValueError(f"p={p}: must be between 0 and 1")
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected
