"""The experiments by name, each imported when it is asked for."""

from __future__ import annotations

import importlib

from noisyact_lab.engine.experiment import Experiment, UnknownName

__all__ = ["load", "names"]

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


def names() -> list[str]:
    """The names of all experiments."""
    return list(_PLACES)


def load(name: str) -> Experiment:
    """The experiment of that name.

    >>> load("unique").metric
    'test_error'
    """
    if name not in _PLACES:
        raise UnknownName("experiment", name, names())
    module, attribute = _PLACES[name].split(":")
    return getattr(importlib.import_module(module), attribute)
