"""Ways to train hard gates in the small word LSTM of `ptb-word`, with its text, optimiser and epochs.

The preset `short` has the first 100,000 tokens, 1,000 words and half of the units: its perplexities are not those of
`paper`.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from noisyact_lab.engine.experiment import Experiment
from noisyact_lab.experiments.estimators.arms import (
    GateSettings,
    choice_by,
    gate_agreement,
    gate_arms,
    gate_comparisons,
)
from noisyact_lab.experiments.estimators.measures import GateTask
from noisyact_lab.experiments.ptb_word import PTB_WORD, Training, Words
from noisyact_lab.models.language_model import LanguageModel

__all__ = ["ESTIMATORS_WORD", "WordGateSettings", "WordGates"]

_EXAMINED = 200
"""Rows of the validation text on which gates are looked at."""
_MARGIN = 2.0
"""Perplexities that differ by less count as equal, as in `ptb-word`."""


@dataclasses.dataclass(frozen=True)
class WordGateSettings(Training, GateSettings):
    """The defaults are the preset `paper`."""


class WordGates(GateTask[LanguageModel], Words):  # pyright: ignore[reportIncompatibleMethodOverride]
    """One run."""

    settings: WordGateSettings  # pyright: ignore[reportIncompatibleVariableOverride]
    test_metric = "test_perplexity"

    def examined(self) -> tuple[Tensor]:
        """The first words of the columns of the validation text."""
        return (self.valid[:_EXAMINED],)


ESTIMATORS_WORD = Experiment(
    name="estimators-word",
    title="Predict the next word of the Penn Treebank: ways to train hard gates",
    reproduces="nothing in the paper; it compares the paper's noise with other estimators in the network of ptb-word",
    settings=WordGateSettings,
    presets={
        "smoke": PTB_WORD.presets["smoke"],
        "short": {"tokens": 100_000, "vocabulary": 1_000, "hidden": 100, "epochs": 4, "first_epochs": 3},
    },
    arms=gate_arms(0.15),
    metric="test_perplexity",
    unit="test perplexity",
    agreement=gate_agreement("test perplexity", f"{_MARGIN:g} perplexity"),
    start=WordGates,
    data=("ptb",),
    comparisons=gate_comparisons("rounded_test_perplexity", _MARGIN),
    choice=choice_by("valid_perplexity"),
    cost_of="hard",
    minutes={"smoke": 0.1, "short": 0.5, "paper": 37.0},
)
