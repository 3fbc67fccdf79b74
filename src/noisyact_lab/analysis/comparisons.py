"""An experiment's comparisons of its arms: differences paired by seed, equivalences, times, all corrected together.

The comparisons of one table are one family: Holm's correction is over all of them that have a p-value, of every kind.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from noisyact.text_table import text_table, wrapped
from noisyact_lab.analysis.estimates import Estimate, Row, short, with_error
from noisyact_lab.analysis.statistics.differences import Difference, equivalence, holm, paired_difference
from noisyact_lab.analysis.statistics.intervals import LEAST_SEEDS, missing, residual_deviation
from noisyact_lab.analysis.statistics.survival import Survival, Times, log_rank
from noisyact_lab.engine.experiment import Comparison

__all__ = ["Compared", "Kind", "as_text", "compare", "kinds"]

EFFECT_INTERVAL = "95% interval of d_z"


@dataclasses.dataclass(frozen=True)
class Compared:
    """A comparison and what the runs say of it. What they do not give is None."""

    comparison: Comparison
    metric: str
    difference: Difference | None = None
    """None for times, and where no seed is in both arms."""
    times: tuple[Times, Times] | None = None
    survival: Survival | None = None
    p: float | None = None
    corrected: float | None = None
    """p with Holm's correction for the family."""

    @property
    def name(self) -> str:
        """The two arms, and the number if it is not the headline."""
        metric = f", {self.comparison.metric}" if self.comparison.metric else ""
        return f"{self.comparison.arm} - {self.comparison.against}{metric}"

    @property
    def seeds(self) -> str:
        """The number of seeds that both arms have."""
        return "0" if self.difference is None else str(self.difference.seeds)

    @property
    def shown_difference(self) -> str:
        """The mean difference ± half its interval; with a * if the deviation is that of all arms' residuals."""
        found = self.difference
        if found is None or not math.isfinite(found.mean):
            return "-"
        text = short(found.mean) if found.interval is None else with_error(found.mean, found.interval)
        return f"{text}*" if found.pooled else text

    @property
    def effect(self) -> str:
        """Cohen's d_z."""
        return "-" if self.difference is None or self.difference.effect is None else f"{self.difference.effect:.2f}"

    @property
    def effect_interval(self) -> str:
        """The 95% interval of d_z."""
        ends = None if self.difference is None else self.difference.effect_interval
        return "-" if ends is None else f"{ends[0]:.2f} to {ends[1]:.2f}"

    @property
    def margin(self) -> str:
        """The margin of an equivalence."""
        return "-" if self.comparison.margin is None else f"±{self.comparison.margin:g}"

    @property
    def reached(self) -> str:
        """How many runs of each arm reached the threshold."""
        counts = (f"{len(t.reached)} of {len(t.reached) + len(t.censored)}" for t in self.times or ())
        return ", ".join(counts) or "-"

    @property
    def mean_times(self) -> str:
        """The restricted mean time of each arm."""
        return "-" if self.survival is None else ", ".join(short(mean) for mean in self.survival.means)

    @property
    def shown_p(self) -> str:
        """p in short."""
        return _probability(self.p)

    @property
    def shown_corrected(self) -> str:
        """The corrected p in short."""
        return _probability(self.corrected)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        about, found = self.comparison, self.difference
        record: dict[str, Any] = {
            "arm": about.arm, "against": about.against, "metric": self.metric, "p": self.p, "holm": self.corrected
        }  # fmt: skip
        if about.times:
            means = None if self.survival is None else list(self.survival.means)
            until = None if self.survival is None else self.survival.until
            medians = None if self.times is None else [times.median for times in self.times]
            return record | {"test": "log-rank", "restricted_means": means, "until": until, "medians": medians}
        record |= {"test": "difference" if about.margin is None else "equivalence", "margin": about.margin}
        if found is None:
            return record | {"seeds": 0}
        return record | {
            "seeds": found.seeds, "difference": found.mean if math.isfinite(found.mean) else None,
            "interval": found.interval, "d_z": found.effect, "d_z_interval": found.effect_interval,
            "pooled": found.pooled,
        }  # fmt: skip


def compare(family: Sequence[Comparison], rows: Sequence[Row], metric: str) -> tuple[Compared, ...]:
    """Make those comparisons of a family whose arms both have a row.

    Args:
        family: as the experiment declares it.
        rows: of the table.
        metric: the headline.
    """
    by_name = {row.name: row for row in rows}
    made = [
        _compared(about, by_name[about.arm], by_name[about.against], rows, about.metric or metric)
        for about in family
        if about.arm in by_name and about.against in by_name
    ]
    corrected = iter(holm([each.p for each in made if each.p is not None]))
    return tuple(each if each.p is None else dataclasses.replace(each, corrected=next(corrected)) for each in made)


def _compared(about: Comparison, ours: Row, theirs: Row, rows: Sequence[Row], metric: str) -> Compared:
    arms = [row.numbers.get(metric, Estimate(())) for row in (ours, theirs)]
    if about.times:
        times = [_times(arm, row) for arm, row in zip(arms, (ours, theirs), strict=True)]
        if times[0] is None or times[1] is None:
            return Compared(about, metric)
        found = log_rank(times[0], times[1])
        # With one or two runs the normal approximation of p is no approximation.
        enough = all(len(arm.reached) + len(arm.censored) >= LEAST_SEEDS for arm in times if arm is not None)
        return Compared(about, metric, times=(times[0], times[1]), survival=found, p=found.p if enough else None)
    mine, other = (arm.by_seed for arm in arms)
    if not mine.keys() & other.keys():
        return Compared(about, metric)
    all_arms = [row.numbers[metric].by_seed for row in rows if metric in row.numbers]
    residuals = None if missing() else residual_deviation(all_arms)
    if about.margin is None:
        difference = paired_difference(mine, other, residuals)
        return Compared(about, metric, difference, p=difference.p)
    equal = equivalence(mine, other, about.margin, residuals)
    return Compared(about, metric, equal.difference, p=equal.p)


def _times(arm: Estimate, row: Row) -> Times | None:
    """The times of an arm's runs; None if it has none, or if it is unknown when one that is censored ended."""
    by_seed = dict(zip(arm.seeds, arm.values, strict=True))
    censored = [row.updates.get(seed) for seed, value in by_seed.items() if value is None]
    if not by_seed or None in censored or any(value is not None and value < 0 for value in by_seed.values()):
        return None
    return Times(tuple(arm.reached), tuple(float(end) for end in censored if end is not None))


@dataclasses.dataclass(frozen=True)
class Kind:
    """Comparisons of one kind, what is to be said above them, and their columns by name."""

    said: str
    rows: tuple[Compared, ...]
    columns: dict[str, Callable[[Compared], str]]


def kinds(compared: Sequence[Compared], metric: str) -> list[Kind]:
    """The comparisons as tables: one for each kind that there is."""
    count = sum(each.p is not None for each in compared)
    family = f"Holm: p corrected for the {count} comparisons of this table that have one"
    first: dict[str, Callable[[Compared], str]] = {"comparison": lambda each: each.name}
    by_seed = first | {"seeds": lambda each: each.seeds, "difference": lambda each: each.shown_difference}
    last: dict[str, Callable[[Compared], str]] = {
        "p": lambda each: each.shown_p, "Holm": lambda each: each.shown_corrected
    }  # fmt: skip
    pooled = any(each.difference is not None and each.difference.pooled for each in compared)
    star = "; *: too few seeds, so the deviation is that of the residuals of all arms" if pooled else ""
    everything = [
        Kind(
            f"Differences of {metric} paired by seed: mean ± half the 95% interval; p of a paired t-test; {family}; "
            f"d_z: the mean in standard deviations of the differences{star}",
            tuple(each for each in compared if not each.comparison.times and each.comparison.margin is None),
            by_seed | last | {"d_z": lambda each: each.effect, EFFECT_INTERVAL: lambda each: each.effect_interval},
        ),
        Kind(
            "Equivalence by two one-sided paired t-tests: a small p says that the difference is inside the margin, "
            f"which was stated beforehand; {family}",
            tuple(each for each in compared if each.comparison.margin is not None),
            by_seed | {"margin": lambda each: each.margin} | last,
        ),
        Kind(
            "Updates to a threshold: runs that reached it, restricted means, p of a log-rank test with the others "
            f"censored, if both arms have at least {LEAST_SEEDS} runs; not paired; {family}",
            tuple(each for each in compared if each.comparison.times),
            first | {"reached": lambda each: each.reached, "mean updates": lambda each: each.mean_times} | last,
        ),
    ]
    return [kind for kind in everything if kind.rows]


def as_text(compared: Sequence[Compared], metric: str, width: int | None) -> list[str]:
    """The comparisons in lines of at most `width`. None of them is left out, also if nothing is known of it.

    The interval of d_z is only on the page and in JSON: a table of 80 columns has no room for it.
    """
    lines = []
    for kind in kinds(compared, metric):
        columns = {name: column for name, column in kind.columns.items() if name != EFFECT_INTERVAL}
        cells = [[column(each) for column in columns.values()] for each in kind.rows]
        lines += [wrapped(kind.said, width), "", text_table(list(columns), cells, width), ""]
    return lines


def _probability(p: float | None) -> str:
    """A p-value in two digits.

    >>> _probability(0.0312), _probability(0.00001), _probability(0.999), _probability(None)
    ('0.031', '<0.001', '1', '-')
    """
    return "-" if p is None else "<0.001" if p < 0.001 else f"{p:.2g}"
