"""What the leak, the noise, its mean and its randomness each change, in every experiment, from the records.

Two arms that differ in one of these are an effect: the leak alone against the hard function, noise with a leak against
the leak alone, noise without a leak against the hard function. Arms are recognised by their settings. The differences
are paired by seed, as in an experiment's table. To stand in one figure they are relative: the mean difference in per
cent of the mean of the arm compared with, turned so that more is better. Standardised differences would have no unit
either, but the seeds of many arms hardly differ, and then a negligible difference is many standard deviations. The
interval is that of the difference, divided by the same mean, which is taken as known. p is that of a paired t-test, or
of the log-rank test where all comparisons of the experiment are of times.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import noisyact as na
from noisyact_lab.analysis.comparisons import compare
from noisyact_lab.analysis.estimates import Estimate, short, with_error
from noisyact_lab.analysis.results_table import Table, table_of
from noisyact_lab.analysis.statistics.differences import holm, paired_difference
from noisyact_lab.analysis.statistics.intervals import LEAST_SEEDS, Interval, missing, residual_deviation
from noisyact_lab.analysis.sweeps import section_id, sweeps_of
from noisyact_lab.engine.experiment import Comparison, Experiment, experiment_names, load_experiment
from noisyact_lab.engine.folder.files import is_finite, read_json

__all__ = ["KINDS", "SATURATED_START", "Effect", "Unit", "effects_of", "saturated_start"]

KINDS = {
    "leak": "the leak, against the hard function",
    "part leak": "the leak in some of the units only, against the hard function",
    "on leak": "noise, against the leak alone",
    "no leak": "noise without a leak, against the hard function",
    "input": "noise at the input, against the hard function",
    "mean": "the noise's mean alone, against no noise",
    "centred": "the noise's randomness alone, against no noise",
    "on mean": "the noise's randomness, against its mean alone",
}
"""The kinds of effects, in the order in which they are shown, and what each compares."""
SATURATED_START = "saturated_start.json"
"""The record that examples/saturated_start.py writes, beside the folders of the experiments."""
_OF_NOISE = frozenset((
    "hard", "scheme", "activation", "c", "gate_c", "alpha", "gate_alpha", "clip", "gate_clip", "sigma", "annealed",
    "draw", "patience",
))  # fmt: skip
"""The settings in which the arms of an effect may differ: those of the noise, and when a run gives up, since it is
tested with its best weights."""


@dataclasses.dataclass(frozen=True)
class Unit:
    """The nonlinearities of an arm, as far as effects depend on them.

    Args:
        scheme: the name of the scheme, or "hard" without one; soft functions are no part of any effect.
        alpha: of the tanhs and of the sigmoids; empty where no leak is possible.
        noisy: whether its noise, or its mean, is more than 0.
        draw: "sample", "mean" or "centred".
        clip: whether the outputs of the tanhs are clipped to their range.
        annealed: whether the scale of the noise falls.
    """

    scheme: str
    alpha: tuple[float, ...] = ()
    noisy: bool = True
    draw: str = "sample"
    clip: bool = True
    annealed: bool = False

    @property
    def leaks(self) -> bool:
        """Whether some alpha is not 1."""
        return any(alpha != 1.0 for alpha in self.alpha)

    def kind_against(self, other: Unit) -> str | None:
        """The kind of effect that this arm has against another; None if they differ in more than that.

        >>> leak, noise = Unit("nan", (1.15,), noisy=False), Unit("nah", (1.15,))
        >>> leak.kind_against(Unit("hard")), noise.kind_against(leak), noise.kind_against(Unit("hard"))
        ('leak', 'on leak', None)
        >>> Unit("nah", (1.0,), draw="mean").kind_against(Unit("hard"))
        'mean'
        """
        if not self.noisy:
            if other.scheme != "hard" or not self.leaks:
                return None
            return "part leak" if 1.0 in self.alpha else "leak"
        if self.draw == "sample" and other.noisy and other.draw == "mean":
            return "on mean" if dataclasses.replace(other, draw="sample") == self else None
        bare = Unit(other.scheme, self.alpha, noisy=False, clip=self.clip)
        quiet = other == bare if self.leaks else other.scheme == "hard"
        if not quiet or self.scheme == "hard":
            return None
        if self.draw != "sample":
            return self.draw
        return "input" if not self.alpha else "on leak" if self.leaks else "no leak"


@dataclasses.dataclass(frozen=True)
class Effect:
    """One effect in one experiment. What the seeds do not give is None."""

    experiment: str
    """The name of the experiment, and the setting where it is not the preset's."""
    kind: str
    """A key of `KINDS`."""
    arm: str
    against: str
    metric: str
    seeds: int
    difference: float
    """The mean over seeds of arm - against, in the metric's unit."""
    interval: Interval | None
    """The 95% interval of the difference."""
    base: float
    """The mean of the arm compared with, over the same seeds."""
    estimate: float
    """The difference in per cent of `base`; positive is better."""
    low: float | None
    high: float | None
    p: float | None
    pooled: bool
    """Whether the standard deviation is that of the residuals of all arms, because there are fewer than 3 seeds."""
    section: str
    """The id of the experiment's section on the report page."""
    holm: float | None = None
    """p with Holm's correction over all effects that have one."""
    log_rank: bool = False
    """Whether p is that of a log-rank test of times, and not of a paired t-test."""

    @property
    def clear(self) -> bool:
        """Whether the corrected p is below 0.05."""
        return self.holm is not None and self.holm < 0.05

    @property
    def better(self) -> bool:
        """Whether the whole interval is on the better side of no change."""
        return self.low is not None and self.low > 0

    @property
    def worse(self) -> bool:
        """Whether the whole interval is on the worse side."""
        return self.high is not None and self.high < 0

    @property
    def shown(self) -> str:
        """The difference ± half its interval, in the metric's unit.

        A * marks a pooled deviation.
        """
        text = short(self.difference) if self.interval is None else with_error(self.difference, self.interval)
        return f"{text}*" if self.pooled else text

    @property
    def sentence(self) -> str:
        """The effect in one sentence that claims no more than the corrected p carries."""
        what = f"{self.experiment}: {self.arm} - {self.against} changes {self.metric.replace('_', ' ')} by {self.shown}"
        if self.holm is None:
            return f"{what} ({self.evidence}): too little for an interval."
        said = f"{'better' if self.estimate > 0 else 'worse'}" if self.clear else "not told apart from no change"
        return f"{what} ({self.evidence}): {said}."

    @property
    def evidence(self) -> str:
        """The number of seeds, and p with Holm's correction."""
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        if self.holm is None:
            return seeds
        return f"{seeds}, Holm p {'< 0.001' if self.holm < 0.001 else f'= {self.holm:.2g}'}"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return dataclasses.asdict(self) | {"clear": self.clear, "shown": self.shown, "sentence": self.sentence}


def effects_of(out: Path, preset: str = "paper") -> list[Effect]:
    """The effects in all experiments, sweeps and the saturated start that have records under `out`.

    Holm's correction is over all of them together: they are read together. They are in the order of `KINDS`, then of
    the experiments. An experiment whose comparisons are all of times has no effect of fewer than three seeds.
    """
    if said := missing():
        raise ValueError(said)
    found = [effect for name in experiment_names() for effect in _of_experiment(name, out, preset, "")]
    for sweep in sweeps_of(out):
        if sweep.preset == preset and not sweep.arm:
            ((setting, folder),) = sweep.points
            found += _of_experiment(sweep.experiment, folder, preset, setting)
    if (out / SATURATED_START).exists():
        found += _of_saturated_start(out / SATURATED_START)
    corrected = iter(holm([effect.p for effect in found if effect.p is not None]))
    found = [effect if effect.p is None else dataclasses.replace(effect, holm=next(corrected)) for effect in found]
    return sorted(found, key=lambda effect: list(KINDS).index(effect.kind))


def saturated_start(path: Path) -> dict[str, dict[str, Any]]:
    """The arms of a record of examples/saturated_start.py: the `scheme` and the `test_error` of each seed, by name.

    Raises: ValueError, if the file is not such a record.
    """
    record = read_json(path, dict)
    try:
        arms = {str(arm["name"]): arm for arm in record["arms"]}
        counts = {len(arm["test_error"]) for arm in arms.values()}
        if len(counts) != 1 or not all(is_finite(error) for arm in arms.values() for error in arm["test_error"]):
            raise ValueError
        for arm in arms.values():
            _unit_of_text(arm["scheme"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a record of examples/saturated_start.py: {error}") from None
    return arms


def _of_experiment(name: str, out: Path, preset: str, setting: str) -> Iterator[Effect]:
    experiment = load_experiment(name)
    present = [arm.name for arm in experiment.arms if any((out / name / preset / arm.name).glob("seed-*"))]
    if len(present) < 2:
        return
    table = table_of(experiment, out, preset, present)
    metric = experiment.effects_metric or table.metric
    settings = {arm: experiment.effective(arm, preset) for arm in present}
    units = {arm: _unit_of_settings(some) for arm, some in settings.items()}
    rest = {arm: _without_noise(some) for arm, some in settings.items()}
    numbers = {row.name: row.numbers.get(metric, Estimate(())).by_seed for row in table.rows}
    title = f"{name}, {setting}" if setting else name
    times = _times(experiment)
    # Times that a budget cuts off are not normal, so no deviation is pooled for arms with few seeds.
    fewest = LEAST_SEEDS if times else 1
    for arm, against in itertools.permutations(present, 2):
        kind = units[arm].kind_against(units[against])
        if kind is not None and rest[arm] == rest[against]:
            section = section_id(name, preset, setting)
            for effect in _effect(title, kind, (arm, against), metric, numbers, experiment.higher_is_better, section):
                if effect.seeds >= fewest:
                    yield _by_log_rank(effect, times, table) if times else effect


def _times(experiment: Experiment) -> str:
    """The times that all comparisons of an experiment are of; an empty string where some are of something else."""
    family = experiment.family()
    return family[0].metric if family and all(each.times for each in family) else ""


def _by_log_rank(effect: Effect, times: str, table: Table) -> Effect:
    """The effect with the p of the log-rank test, if it has one."""
    (found,) = compare([Comparison(effect.arm, effect.against, times, times=True)], table.rows, table.metric)
    return effect if effect.p is None else dataclasses.replace(effect, p=found.p, log_rank=True)


def _of_saturated_start(path: Path) -> Iterator[Effect]:
    arms = saturated_start(path)
    units = {name: _unit_of_text(arm["scheme"]) for name, arm in arms.items()}
    numbers = {name: {str(seed): error for seed, error in enumerate(arm["test_error"])} for name, arm in arms.items()}
    for arm, against in itertools.permutations(arms, 2):
        kind = units[arm].kind_against(units[against])
        if kind is not None:
            yield from _effect("saturated start", kind, (arm, against), "test_error", numbers, False, "saturated-start")


def _effect(
    title: str, kind: str, arms: tuple[str, str], metric: str, numbers: Mapping[str, Mapping[str, float]],
    higher_is_better: bool, section: str,
) -> Iterator[Effect]:  # fmt: skip
    """The effect, if both arms have a seed in common and there is something to be in per cent of."""
    mine, other = (numbers[arm] for arm in arms)
    shared = [other[seed] for seed in mine if seed in other]
    base = sum(shared) / len(shared) if shared else 0.0
    if not base:
        return
    found = paired_difference(mine, other, residual_deviation([arm for arm in numbers.values() if arm]))
    percent = (100 if higher_is_better else -100) / abs(base)
    interval = None if found.p is None else found.interval  # equal differences of all seeds are no precision
    low, high = sorted(percent * end + 0.0 for end in interval) if interval else (None, None)
    yield Effect(
        title, kind, *arms, metric, found.seeds, found.mean, interval, base, percent * found.mean + 0.0, low, high,
        found.p, found.pooled and interval is not None, section,
    )  # fmt: skip


def _unit_of_settings(settings: Any) -> Unit:
    """The unit of an experiment's settings: those of recurrent networks, or those with an `activation`."""
    if not getattr(settings, "hard", True):
        return Unit("soft", noisy=False)
    scheme = getattr(settings, "scheme", None) or getattr(settings, "activation", "hard")
    if scheme in ("hard", "tanh"):
        return Unit("hard" if scheme == "hard" else "soft", noisy=False)
    if scheme in ("nani", "nanil", "nanis"):
        return Unit(scheme, draw=getattr(settings, "draw", "sample"))
    alpha = (settings.alpha, getattr(settings, "gate_alpha", settings.alpha))
    noisy = any((settings.c, getattr(settings, "gate_c", settings.c)))
    draw, clip = getattr(settings, "draw", "sample"), getattr(settings, "clip", True)
    return Unit(scheme, alpha, noisy, draw, clip, getattr(settings, "annealed", False))


def _unit_of_text(text: str | None) -> Unit:
    """The unit of a scheme's text form."""
    if text is None:
        return Unit("hard", noisy=False)
    scheme = na.scheme(text)
    alpha = () if scheme.at_input else (1 - scheme.leak,)
    return Unit(scheme.name, alpha, scheme.scale > 0, getattr(scheme, "draw", "sample"))


def _without_noise(settings: Any) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(settings).items() if name not in _OF_NOISE}
