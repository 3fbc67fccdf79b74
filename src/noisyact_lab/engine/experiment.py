"""What an experiment is: arms to compare, settings, presets of different size, and a task to train."""

from __future__ import annotations

import dataclasses
import importlib
import math
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from noisyact_lab.data import locate
from noisyact_lab.engine.task import Task

__all__ = [
    "Arm", "Choice", "Comparison", "Experiment", "UnknownName", "check_at_least", "compared_with", "experiment_names",
    "load_experiment", "names_in",
]  # fmt: skip

PRESETS = ("smoke", "short", "paper")
"""Sizes of an experiment: seconds on a CPU; minutes on a CPU; the paper's own."""
_PLACES = {
    "caption": "noisyact_lab.experiments.caption.caption:CAPTION",
    "caption-bias": "noisyact_lab.experiments.caption.caption:CAPTION_BIAS",
    "estimators-char": "noisyact_lab.experiments.estimators.char:ESTIMATORS_CHAR",
    "estimators-unique": "noisyact_lab.experiments.estimators.unique:ESTIMATORS_UNIQUE",
    "estimators-word": "noisyact_lab.experiments.estimators.word:ESTIMATORS_WORD",
    "europarl-word": "noisyact_lab.experiments.europarl_word:EUROPARL_WORD",
    "execute": "noisyact_lab.experiments.execute.execute:EXECUTE",
    "mixture": "noisyact_lab.experiments.mixture.mixture:MIXTURE",
    "mnist": "noisyact_lab.experiments.mnist:MNIST",
    "unique": "noisyact_lab.experiments.unique:UNIQUE",
    "unique-plateau": "noisyact_lab.experiments.unique:UNIQUE_PLATEAU",
    "ptb-word": "noisyact_lab.experiments.ptb_word:PTB_WORD",
    "ptb-word-medium": "noisyact_lab.experiments.ptb_word:PTB_WORD_MEDIUM",
    "ptb-word-zoneout": "noisyact_lab.experiments.ptb_word:PTB_WORD_ZONEOUT",
    "ptb-char": "noisyact_lab.experiments.ptb_char:PTB_CHAR",
    "recall": "noisyact_lab.experiments.recall:RECALL",
    "recall-saturated": "noisyact_lab.experiments.recall:RECALL_SATURATED",
    "translate": "noisyact_lab.experiments.translate.translate:TRANSLATE",
    "translate-adam": "noisyact_lab.experiments.translate.adam:TRANSLATE_ADAM",
    "translate-multi30k": "noisyact_lab.experiments.translate.adam:TRANSLATE_MULTI30K",
}
_GROUPS = {"estimators": ("estimators-word", "estimators-char", "estimators-unique")}
"""Names for several experiments."""
_SCHEMES = ("nan", "nah", "nani", "nanil", "nanis")


class UnknownName(ValueError):
    """A name that is not one of those allowed; the message lists them."""

    def __init__(self, what: str, given: object, allowed: Iterable[str]) -> None:
        super().__init__(f"{what} {given!r} is unknown; allowed are {', '.join(allowed)}")


def check_at_least(least: int, experiment: str, settings: Any, *names: str) -> None:
    """Raise an error that names the first of these settings which is less."""
    for name in names:
        if getattr(settings, name) < least:
            raise ValueError(f"{experiment}: {name}={getattr(settings, name)}: must be at least {least}")


@dataclasses.dataclass(frozen=True)
class Arm:
    """One of the things an experiment compares.

    Args:
        name: as on the command line.
        title: as in a table.
        settings: what differs from the experiment's settings.
        paper: the paper's number for the headline metric, if it has one.
        papers: its other numbers, by the name that ours has in a result.
    """

    name: str
    title: str
    settings: Mapping[str, Any]
    paper: float | None = None
    papers: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A comparison of two arms that an experiment makes, declared beside its arms.

    Args:
        arm: the one whose number is on the left of the difference.
        against: the other.
        metric: a key of the result; the headline if empty.
        margin: if given, the claim is that the arms differ by less than this, and equivalence is tested.
        times: the metric is the updates to a threshold; a run that never reached it is censored at its end.
    """

    arm: str
    against: str
    metric: str = ""
    margin: float | None = None
    times: bool = False

    def __post_init__(self) -> None:
        if self.arm == self.against:
            raise ValueError(f"comparison of {self.arm!r} with itself")
        if self.margin is not None and not (math.isfinite(self.margin) and self.margin > 0):
            raise ValueError(f"comparison of {self.arm} and {self.against}: margin={self.margin}: must be above 0")
        if self.times and (not self.metric or self.margin is not None):
            raise ValueError(f"comparison of {self.arm} and {self.against}: times need a metric and have no margin")


def compared_with(against: str, *arms: str) -> tuple[Comparison, ...]:
    """A comparison by the headline of each arm with the same other one.

    >>> [comparison.arm for comparison in compared_with("hard", "nan", "nah")]
    ['nan', 'nah']
    """
    return tuple(Comparison(arm, against) for arm in arms)


@dataclasses.dataclass(frozen=True)
class Choice:
    """A setting that is chosen for each arm before its runs, on validation data and with a seed of its own.

    :mod:`noisyact_lab.engine.choice` makes the choice.

    Args:
        setting: its name.
        factors: the values that are tried, as multiples of the preset's. They are the same for every arm.
        metric: the number of a result that is to be low; of validation.
        changes: other settings of the runs that choose.
        seed: of these runs. No other run may have it.
    """

    setting: str
    factors: tuple[float, ...]
    metric: str
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 1000


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment.

    Args:
        name: as on the command line.
        title: one line.
        reproduces: the table or figure of the paper.
        settings: a frozen dataclass whose defaults are the preset `paper`.
        presets: what the presets "smoke" and "short" change.
        arms: what is compared.
        metric: the headline, a key of the result.
        unit: of the headline.
        agreement: what counts as agreeing with the paper, stated before any run.
        start: makes the task of a run from its settings, seed and device.
        data: names of the data sets it needs.
        check_data: where that depends on the settings: raises :class:`locate.Missing` unless what a run
            with them needs is there.
        minutes: expected for one run, by preset, on a CPU.
        matched: an arm; all are compared where its mean, on the way, is nearest to the paper's number for it, since in
            the end nothing is left to compare.
        commentary: what agrees with the paper and what does not, by preset; plain text, a blank line between
            paragraphs. A file `commentary.txt` beside the runs takes its place.
        higher_is_better: whether a higher headline is better.
        effects_metric: the number by which its arms are compared in a figure of all experiments, if not the headline:
            for a task that every arm solves, the updates that it takes.
        ending_metric: a number that ends a run when it is low enough. In its mean over runs, one that ended so keeps
            its last value.
        comparisons: those that its table tests, stated before any run that they are to judge; None for the default of
            :meth:`family`.
        choice: a setting that `noisyact reproduce` chooses for each arm; None if all are given.
        cost_of: an arm; the table has the time of an update relative to that of this arm, if one is named.
    """

    name: str
    title: str
    reproduces: str
    settings: type
    presets: Mapping[str, Mapping[str, Any]]
    arms: tuple[Arm, ...]
    metric: str
    unit: str
    agreement: str
    start: Callable[[Any, int, torch.device], Task]
    data: tuple[str, ...] = ()
    check_data: Callable[[Any], None] | None = None
    minutes: Mapping[str, float] = dataclasses.field(default_factory=dict)
    matched: str | None = None
    commentary: Mapping[str, str] = dataclasses.field(default_factory=dict)
    higher_is_better: bool = False
    effects_metric: str = ""
    ending_metric: str = ""
    comparisons: tuple[Comparison, ...] | None = None
    choice: Choice | None = None
    cost_of: str = ""

    def family(self) -> tuple[Comparison, ...]:
        """The comparisons that a table of this experiment makes: p-values are corrected for all of them together.

        The default asks what is gained over the reference, over the hard functions without noise, and by the noise over
        the leak alone. The reference (or tanh), hard, leak, and each arm named after a scheme (nan, nah-annealed, ...)
        take part: hard, leak and noisy arms against the reference; leak and noisy arms against hard; noisy arms against
        leak.

        >>> [f"{c.arm} - {c.against}" for c in load_experiment("ptb-word-medium").family()]
        ['hard - reference', 'leak - reference', 'nan - reference', 'nah - reference',
         'leak - hard', 'nan - hard', 'nah - hard', 'nan - leak', 'nah - leak']
        """
        if self.comparisons is not None:
            return self.comparisons
        names = [arm.name for arm in self.arms]
        noisy = [name for name in names if name.split("-")[0] in _SCHEMES]
        controls = [next((name for name in ("reference", "tanh") if name in names), ""), "hard", "leak"]
        controls = [name for name in controls if name in names]
        return tuple(
            comparison
            for i, control in enumerate(controls)
            for comparison in compared_with(control, *controls[i + 1 :], *noisy)
        )

    def arm(self, name: str) -> Arm:
        """The arm of that name."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise UnknownName(f"{self.name}: arm", name, [arm.name for arm in self.arms])

    def effective(self, arm: str, preset: str, changes: Mapping[str, Any] | None = None) -> Any:
        """The settings of a run: defaults, then the preset's, the arm's, and the caller's changes.

        >>> from noisyact_lab.experiments.unique import UNIQUE
        >>> UNIQUE.effective("nan-annealed", "smoke", {"hidden": "16"}).hidden
        16
        """
        if preset not in PRESETS:
            raise UnknownName("preset", preset, PRESETS)
        chosen = {**self.presets.get(preset, {}), **self.arm(arm).settings, **(changes or {})}
        types = typing.get_type_hints(self.settings)
        for name, value in chosen.items():
            if name not in types:
                raise UnknownName(f"{self.name}: setting", name, types)
            chosen[name] = _converted(f"{self.name}: setting {name}", value, types[name])
        return self.settings(**chosen)

    def find_data(self, settings: Any) -> None:
        """Raise :class:`noisyact_lab.data.locate.Missing` unless the data of a run with these settings are there."""
        if self.check_data is not None:
            self.check_data(settings)
            return
        for name in self.data:
            locate.find(name)


def experiment_names() -> list[str]:
    """The names of all experiments."""
    return list(_PLACES)


def names_in(names: Iterable[str]) -> list[str]:
    """The names of experiments, with those of its members in the place of a group; none twice.

    >>> names_in(["unique", "estimators", "estimators-word"])
    ['unique', 'estimators-word', 'estimators-char', 'estimators-unique']
    """
    return list(dict.fromkeys(each for name in names for each in _GROUPS.get(name, (name,))))


def load_experiment(name: str) -> Experiment:
    """Import the experiment of that name.

    >>> load_experiment("unique").metric
    'test_error'
    """
    if name not in _PLACES:
        raise UnknownName("experiment", name, experiment_names())
    module, attribute = _PLACES[name].split(":")
    return getattr(importlib.import_module(module), attribute)


def _converted(what: str, value: Any, wanted: Any) -> Any:
    """The value in the setting's type; text from flags is parsed."""
    optional = type(None) in typing.get_args(wanted)
    if optional and (value is None or value == "none"):
        return None
    kind = next((k for k in typing.get_args(wanted) if k is not type(None)), wanted) if optional else wanted
    try:
        if kind is bool:
            if str(value).lower() not in ("true", "false"):
                raise ValueError
            return str(value).lower() == "true"
        if kind is int and (isinstance(value, bool) or int(value) != float(value)):
            raise ValueError
        converted = kind(value)
        if kind is float and not math.isfinite(converted):
            raise ValueError
        return converted
    except (TypeError, ValueError, OverflowError):
        names = {bool: "true or false", int: "a whole number", float: "a finite number"}
        raise ValueError(f"{what}={value!r}: must be {names.get(kind, kind)}{' or none' * optional}") from None
