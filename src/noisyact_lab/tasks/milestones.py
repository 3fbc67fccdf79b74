"""How far a run had come: what it measured at shares of its budget, and when a number was first low enough."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

__all__ = ["at_budget_shares", "updates_to"]

SHARES = (10, 25, 50)
"""Shares of the budget at which numbers are reported, in per cent."""


def at_budget_shares(evaluations: Sequence[Mapping[str, float]], name: str, budget: int) -> dict[str, float]:
    """The last number measured by 10%, 25% and 50% of the budget's updates; NaN where there was none yet.

    >>> at_budget_shares([{"update": 20, "error": 9.0}, {"update": 40, "error": 3.0}], "error", 100)
    {'error_at_10%': nan, 'error_at_25%': 9.0, 'error_at_50%': 3.0}
    """
    found = {}
    for share in SHARES:
        before = [line[name] for line in evaluations if line["update"] <= budget * share // 100]
        found[f"{name}_at_{share}%"] = before[-1] if before else math.nan
    return found


def updates_to(evaluations: Sequence[Mapping[str, float]], name: str, level: float) -> float:
    """The updates after which a number was first at most `level`; infinite where it never was.

    >>> updates_to([{"update": 20, "error": 9.0}, {"update": 40, "error": 3.0}], "error", 5.0)
    40.0
    """
    return next((float(line["update"]) for line in evaluations if line[name] <= level), math.inf)
