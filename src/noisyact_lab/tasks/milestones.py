"""How far a run had come on its way: what it measured at parts of its budget, and when a number was low enough."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

__all__ = ["at_parts", "updates_to"]

PARTS = (10, 25, 50)
"""Of the budget, in per cent."""


def at_parts(evaluations: Sequence[Mapping[str, float]], name: str, budget: int) -> dict[str, float]:
    """What was measured at 10%, 25% and 50% of the budget's updates, or last before: also of a run that ended sooner.

    NaN where nothing had been measured yet.

    >>> at_parts([{"update": 20, "error": 9.0}, {"update": 40, "error": 3.0}], "error", 100)
    {'error_at_10%': nan, 'error_at_25%': 9.0, 'error_at_50%': 3.0}
    """
    found = {}
    for part in PARTS:
        before = [line[name] for line in evaluations if line["update"] <= budget * part // 100]
        found[f"{name}_at_{part}%"] = before[-1] if before else math.nan
    return found


def updates_to(evaluations: Sequence[Mapping[str, float]], name: str, level: float) -> float:
    """The updates after which a number was first at most `level`; infinite where it never was.

    >>> updates_to([{"update": 20, "error": 9.0}, {"update": 40, "error": 3.0}], "error", 5.0)
    40.0
    """
    return next((float(line["update"]) for line in evaluations if line[name] <= level), math.inf)
