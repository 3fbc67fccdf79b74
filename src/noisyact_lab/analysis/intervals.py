"""The mean over seeds and its 95% interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from noisyact_lab.engine.folder.files import is_finite

__all__ = ["interval"]

# Student's t for 95%, two-sided, by degrees of freedom; beyond the table the next entry below is used, which is wider.
_T = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179,
    15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000, 120: 1.980,
}  # fmt: skip


def interval(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """The mean, and the ends of its 95% interval by Student's t; None for what the values do not give.

    >>> [round(number, 3) for number in interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    >>> interval([5.0]), interval([])
    ((5.0, None, None), (None, None, None))
    """
    if not values:
        return None, None, None
    # Vast numbers have a mean too, only their sum is more than a float can hold. A power of two changes no digit.
    scale = math.ldexp(0.5, math.frexp(max(map(abs, values)))[1])
    parts = [value / scale for value in values]
    mean = scale * statistics.fmean(parts)
    if len(values) == 1:
        return mean, None, None
    t = _T[max(freedom for freedom in _T if freedom <= len(values) - 1)]
    half = scale * (t * statistics.stdev(parts) / math.sqrt(len(values)))
    low, high = mean - half, mean + half
    return (mean, low, high) if is_finite(low) and is_finite(high) else (mean, None, None)
