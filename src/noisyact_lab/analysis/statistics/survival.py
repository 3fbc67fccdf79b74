"""Times until runs reach a threshold: those that never did are censored, and two arms are compared by log-rank."""

from __future__ import annotations

import dataclasses

from noisyact_lab.analysis.statistics.intervals import missing, scipy_module
from noisyact_lab.engine.folder.files import is_finite

__all__ = ["Survival", "Times", "log_rank"]


@dataclasses.dataclass(frozen=True)
class Times:
    """When each run of an arm reached a threshold, and up to when the others were watched without reaching it."""

    reached: tuple[float, ...]
    censored: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not (self.reached or self.censored):
            raise ValueError("an arm has no run")
        for time in (*self.reached, *self.censored):
            if not (is_finite(time) and time >= 0):
                raise ValueError(f"time={time}: must be a finite number of at least 0")

    def surviving(self) -> list[tuple[float, float]]:
        """Kaplan and Meier's estimate of the share that has not reached the threshold, from each time on.

        >>> Times((2.0, 4.0), censored=(3.0,)).surviving()
        [(0.0, 1.0), (2.0, 0.6666666666666667), (4.0, 0.0)]
        """
        share, steps, ends = 1.0, [(0.0, 1.0)], (*self.reached, *self.censored)
        for time in sorted(set(self.reached)):
            share *= 1 - self.reached.count(time) / sum(end >= time for end in ends)
            steps.append((time, share))
        return steps

    @property
    def median(self) -> float | None:
        """The first time at which at most half have not reached it; None if that was never so."""
        return next((time for time, share in self.surviving() if share <= 0.5), None)

    def restricted_mean(self, until: float) -> float:
        """The mean of min(time, until): the area under :meth:`surviving` up to there.

        >>> Times((2.0, 4.0), censored=(8.0,)).restricted_mean(8.0)
        4.666666666666667
        """
        steps = [*((time, share) for time, share in self.surviving() if time < until), (until, 0.0)]
        return sum(share * (steps[i + 1][0] - time) for i, (time, share) in enumerate(steps[:-1]))


@dataclasses.dataclass(frozen=True)
class Survival:
    """The times of two arms: p of the log-rank test, and the mean of min(time, until) of each."""

    p: float | None
    until: float
    means: tuple[float, float]


def log_rank(ours: Times, theirs: Times) -> Survival:
    """The log-rank test that two arms reach a threshold at the same rate, with restricted mean times.

    At each time at which a run reaches it, the number of our runs among those that do is compared with its expectation
    E if all runs still without it were equally likely: ``z = sum(O - E) / sqrt(sum(V))`` with V the hypergeometric
    variance. A run that never reached it counts among those still without it up to its end (right-censored). Assumes
    that an end does not depend on when the run would have reached it. The runs are not paired by seed, and p is from
    the normal approximation, which is rough for few runs. Without any difference that could be seen, p = 1.

    >>> found = log_rank(Times((200.0, 300.0, 300.0)), Times((400.0, 700.0), censored=(1000.0,)))
    >>> round(found.p, 4), found.until, [round(mean) for mean in found.means]
    (0.0295, 1000.0, [267, 700])
    """
    until = _last_known(ours, theirs)
    means = ours.restricted_mean(until), theirs.restricted_mean(until)
    if missing():
        return Survival(None, until, means)
    if not any(_tells(ours, theirs, time) for time in {*ours.reached, *theirs.reached}):
        return Survival(1.0, until, means)
    stats = scipy_module("stats")
    x, y = (stats.CensoredData(uncensored=times.reached, right=times.censored) for times in (ours, theirs))
    return Survival(float(stats.logrank(x, y).pvalue), until, means)


def _last_known(*arms: Times) -> float:
    """The time up to which the share without the threshold is known in all arms; where it is 0, it stays so."""
    open_ended = [max(arm.censored) for arm in arms if arm.surviving()[-1][1] > 0]
    return min(open_ended) if open_ended else max(time for arm in arms for time in arm.reached)


def _tells(ours: Times, theirs: Times, time: float) -> bool:
    """Whether runs that reach it at this time could have been others: both arms have some left, and not all do."""
    left = [sum(end >= time for end in (*arm.reached, *arm.censored)) for arm in (ours, theirs)]
    return all(left) and sum(left) > ours.reached.count(time) + theirs.reached.count(time)
