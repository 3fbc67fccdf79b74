"""Comparison with the paper in words: each arm's number, and the order of each pair of arms."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal

from noisyact_lab.analysis.estimates import Estimate, Row
from noisyact_lab.analysis.results_table import Table

__all__ = ["Pair", "against_paper", "pairs", "summary"]

Verdict = Literal["as in the paper", "contrary to the paper", "not decided"]


def against_paper(ours: Estimate, paper: float | None) -> str:
    """Say where the paper's number lies relative to our 95% confidence interval.

    >>> against_paper(Estimate((1.0, 2.0, 3.0)), 2.2)
    "the paper's value is inside our interval"
    >>> against_paper(Estimate((1.0, 1.1, 1.2)), 9.0)
    "ours is lower: the paper's value is above our interval"
    >>> against_paper(Estimate((1.0, 1.1)), 9.0)
    'ours is lower; too few runs for an interval'
    """
    if paper is None:
        return "the paper gives no number"
    if ours.mean is None:
        return "we have no number"
    side = "lower" if ours.mean < paper else "higher" if ours.mean > paper else "the same"
    if ours.interval is None:
        return f"ours is {side}; too few runs for an interval"
    low, high = ours.interval
    if low <= paper <= high:
        return "the paper's value is inside our interval"
    return f"ours is {side}: the paper's value is {'above' if paper > high else 'below'} our interval"


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two arms with different numbers in the paper. `lower` is the arm with the lower number in the paper."""

    lower: Row
    higher: Row
    verdict: Verdict
    why: str


def pairs(table: Table) -> list[Pair]:
    """Compare every pair of arms that the paper orders: do our intervals have the same order without overlap?

    The rule was written before the runs and is about the arms' own intervals, of two runs or more. It is kept as it
    was; :mod:`noisyact_lab.analysis.comparisons` has the tests. A pair is not decided if the intervals overlap, or if
    one of the arms has no finished run or only one.
    """
    known = [row for row in table.rows if row.paper is not None]
    known.sort(key=lambda row: row.paper or 0.0)
    ordered = [(a, b) for a, b in itertools.combinations(known, 2) if a.paper != b.paper]
    return [Pair(a, b, *_verdict(_headline(a, table), _headline(b, table))) for a, b in ordered]


def summary(found: Sequence[Pair]) -> str:
    """Count the pairs by verdict in a sentence. Returns an empty string if there are no pairs.

    >>> summary([])
    ''
    """
    if not found:
        return ""
    kinds: tuple[Verdict, ...] = ("as in the paper", "contrary to the paper", "not decided")
    count = {kind: sum(pair.verdict == kind for pair in found) for kind in kinds}
    said = ", ".join(f"{number} {kind}" for kind, number in count.items() if number)
    pairs = "one pair" if len(found) == 1 else f"{len(found)} pairs"
    return f"Of the {pairs} of arms that the paper orders: {said}."


def _headline(row: Row, table: Table) -> Estimate:
    return row.numbers.get(table.metric, Estimate(()))


def _verdict(lower: Estimate, higher: Estimate) -> tuple[Verdict, str]:
    if lower.mean is None or higher.mean is None:
        return "not decided", "an arm has no finished run"
    if lower.own_interval is None or higher.own_interval is None:
        return "not decided", "an arm has only one run, so no interval"
    if lower.own_interval[1] < higher.own_interval[0]:
        return "as in the paper", "the intervals do not overlap, in the paper's order"
    if higher.own_interval[1] < lower.own_interval[0]:
        return "contrary to the paper", "the intervals do not overlap, in the other order"
    return "not decided", "the intervals overlap"
