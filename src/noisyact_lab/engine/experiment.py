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

__all__ = ["Arm", "Experiment", "UnknownName", "check_at_least", "experiment_names", "load_experiment"]

PRESETS = ("smoke", "short", "paper")
"""Sizes of an experiment: seconds on a CPU; minutes on a CPU; the paper's own."""
_PLACES = {
    "caption": "noisyact_lab.experiments.caption.caption:CAPTION",
    "execute": "noisyact_lab.experiments.execute.execute:EXECUTE",
    "mixture": "noisyact_lab.experiments.mixture.mixture:MIXTURE",
    "mnist": "noisyact_lab.experiments.mnist:MNIST",
    "unique": "noisyact_lab.experiments.unique:UNIQUE",
    "ptb-word": "noisyact_lab.experiments.ptb_word:PTB_WORD",
    "ptb-word-medium": "noisyact_lab.experiments.ptb_word:PTB_WORD_MEDIUM",
    "ptb-char": "noisyact_lab.experiments.ptb_char:PTB_CHAR",
    "recall": "noisyact_lab.experiments.recall:RECALL",
    "translate": "noisyact_lab.experiments.translate.translate:TRANSLATE",
}


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
