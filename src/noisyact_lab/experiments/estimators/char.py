"""Ways to train hard gates in the character GRU of `ptb-char`.

Test bits are those of the weights that were best in validation, as in `ptb-char`.
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
from noisyact_lab.experiments.ptb_char import PTB_CHAR, Characters, Training
from noisyact_lab.models.language_model import LanguageModel

__all__ = ["ESTIMATORS_CHAR", "CharacterGateSettings", "CharacterGates"]

_EXAMINED = 20
"""Sequences of the validation text on which gates are looked at."""
_MARGIN = 0.02
"""Bits per character that differ by less count as equal, as in `ptb-char`."""


@dataclasses.dataclass(frozen=True)
class CharacterGateSettings(Training, GateSettings):
    """The defaults are the preset `paper`."""


class CharacterGates(GateTask[LanguageModel], Characters):  # pyright: ignore[reportIncompatibleMethodOverride]
    """One run."""

    settings: CharacterGateSettings  # pyright: ignore[reportIncompatibleVariableOverride]
    test_metric = "test_bpc"

    def examined(self) -> tuple[Tensor]:
        """Some sequences of the validation text."""
        return (self.valid[:, :_EXAMINED],)


ESTIMATORS_CHAR = Experiment(
    name="estimators-char",
    title="Predict the next character of the Penn Treebank: ways to train hard gates",
    reproduces="nothing in the paper; it compares the paper's noise with other estimators in the network of ptb-char",
    settings=CharacterGateSettings,
    presets=PTB_CHAR.presets,
    arms=gate_arms(0.15),
    metric="test_bpc",
    unit="test bits per character",
    agreement=gate_agreement("number of test bits per character", f"{_MARGIN:g} bits"),
    start=CharacterGates,
    data=("ptb",),
    comparisons=gate_comparisons("rounded_test_bpc", _MARGIN),
    choice=choice_by("valid_bpc"),
    cost_of="hard",
    minutes={"smoke": 0.1, "short": 1.3, "paper": 72.0},
)
