"""The experiments by name, each imported when it is asked for."""

from __future__ import annotations

import importlib

from noisyact.experiments.experiment import Experiment, UnknownName

__all__ = ["load", "names"]

_PLACES = {
    "caption": "noisyact.experiments.caption:CAPTION",
    "execute": "noisyact.experiments.execute:EXECUTE",
    "mixture": "noisyact.experiments.mixture:MIXTURE",
    "mnist": "noisyact.experiments.mnist:MNIST",
    "unique": "noisyact.experiments.unique:UNIQUE",
    "ptb-word": "noisyact.experiments.ptb_word:PTB_WORD",
    "ptb-word-medium": "noisyact.experiments.ptb_word:PTB_WORD_MEDIUM",
    "ptb-char": "noisyact.experiments.ptb_char:PTB_CHAR",
    "recall": "noisyact.experiments.recall:RECALL",
    "translate": "noisyact.experiments.translate:TRANSLATE",
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
