"""Zoneout and recurrent dropout in the paper's LSTM on the Penn Treebank: do they do what their papers say?

The small model of `ptb-word` overfits, and these two regularise the recurrence: zoneout (Krueger et al. 2016) lets
units keep their state, recurrent dropout (Gal and Ghahramani 2016) drops the same units of h at all steps of a call.
Both papers report a lower perplexity of unseen text than the same LSTM has without it. Everything but the two rates is
as in `ptb_word.py`: text, initialisation, learning rates and epochs.

Zoneout has the rates that Krueger et al. use for words, 0.025 for h and 0.25 for c. The rate of recurrent dropout,
0.25, is ours. Nothing was tuned. The arms with NAN have its noise and the masks together, in one call of a layer.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from noisyact_lab.engine.experiment import Arm, Experiment, compared_with
from noisyact_lab.experiments.ptb_word import PTB_WORD, Settings, Words

__all__ = ["PTB_WORD_ZONEOUT", "MaskSettings"]


@dataclasses.dataclass(frozen=True)
class MaskSettings(Settings):
    """Those of `ptb-word`, and the rates of the two masks."""

    zoneout: float = 0.0
    """The probability that a unit of h keeps its value."""
    cell_zoneout: float = 0.0
    """The same for c."""
    recurrent_dropout: float = 0.0
    """The probability that a unit of h is dropped from the recurrent product."""

    def layer_arguments(self) -> dict[str, Any]:
        """The arguments of a noisy layer.

        >>> MaskSettings(hard=False, zoneout=0.1).layer_arguments()["zoneout"]
        (0.1, 0.0)
        """
        masks = {"zoneout": (self.zoneout, self.cell_zoneout), "recurrent_dropout": self.recurrent_dropout}
        return super().layer_arguments() | masks


_ZONEOUT = {"zoneout": 0.025, "cell_zoneout": 0.25}
_DROPOUT = {"recurrent_dropout": 0.25}

PTB_WORD_ZONEOUT = Experiment(
    name="ptb-word-zoneout",
    title="Predict the next word of the Penn Treebank: the small LSTM with zoneout or recurrent dropout",
    reproduces="what Krueger et al. (2016) and Gal and Ghahramani (2016) say of zoneout and of recurrent dropout",
    settings=MaskSettings,
    presets=PTB_WORD.presets,
    arms=(
        Arm("reference", "LSTM", {"hard": False}),
        Arm("zoneout", "LSTM with zoneout", {"hard": False, **_ZONEOUT}),
        Arm("recurrent-dropout", "LSTM with recurrent dropout", {"hard": False, **_DROPOUT}),
        Arm("nan", "NAN", {"scheme": "nan"}),
        Arm("nan-zoneout", "NAN with zoneout", {"scheme": "nan", **_ZONEOUT}),
        Arm("nan-recurrent-dropout", "NAN with recurrent dropout", {"scheme": "nan", **_DROPOUT}),
    ),
    metric="test_perplexity",
    unit="test perplexity",
    agreement="Zoneout and recurrent dropout each have a lower test perplexity than the reference by more than the 95% "
    "intervals. The papers' own numbers are of larger models and longer training.",
    start=Words,
    data=("ptb",),
    comparisons=(
        *compared_with("reference", "zoneout", "recurrent-dropout"),
        *compared_with("nan", "nan-zoneout", "nan-recurrent-dropout"),
    ),
    minutes={"smoke": 0.1, "short": 2.5, "paper": 50.0},
)
