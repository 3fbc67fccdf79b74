"""Penn Treebank, character by character: a GRU over sequences of 200 characters with every kind of noise.

The paper shows training curves and says in words what they show: NAN and NANI learn alike; NANIS learns faster at the
start and then stops improving. It says that sigma of NANI and NANIS was the best of 8 values in [0.01, 1] by validation
bits per character, everything else the same in all arms. So here::

    noisyact sweep ptb-char --preset paper --arm nani --set epochs=4 \\
        --set sigma=0.01,0.0193,0.0373,0.072,0.139,0.268,0.518,1

With one seed that gave 0.268, and so did the same with nanis.

What the paper leaves open is chosen once for all arms: one layer of 512 units, characters embedded in 64 numbers, Adam
with a rate of 0.002, the gradient clipped, batches of 64 columns, 10 epochs, all weights uniform as torch initialises
its recurrent layers. alpha and c are those of the authors' code. Every sequence, also in validation and test, begins
with a state of zeros: carried through a whole epoch, the state went where no reader that begins anew could follow, and
validation was 3 bits above training in the first epoch. Test bits are those of the weights that were best in
validation.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

import noisyact as na
from noisyact.ops import triton
from noisyact_lab.data.text import CHARACTERS, penn_treebank
from noisyact_lab.engine.experiment import Arm, Comparison, Experiment, compared_with
from noisyact_lab.models.language_model import LanguageModel, mean_nll
from noisyact_lab.tasks.best_weights import BestWeights
from noisyact_lab.tasks.noise_settings import NoiseSettings
from noisyact_lab.tasks.text_task import TextTask, columns

__all__ = ["PTB_CHAR", "Characters", "Settings", "Training"]

_BITS = 1 / math.log(2)


@dataclasses.dataclass(frozen=True)
class Training:
    """The settings that have no part in the functions of the GRU. The defaults are the preset `paper`."""

    embedding: int = 64
    hidden: int = 512
    batch: int = 64
    steps: int = 200
    epochs: int = 10
    evaluate_every: int = 98
    """The number of updates from one evaluation to the next: a quarter of an epoch."""
    learning_rate: float = 2e-3
    max_gradient_norm: float = 200.0
    """Limit of the norm of the gradient of the loss summed over the steps: 1 a step."""
    tokens: int | None = None
    """Characters of the training text that are read, from its start; all if none."""
    verified: bool = True
    """The files must be the Treebank's own."""


@dataclasses.dataclass(frozen=True)
class Settings(Training, NoiseSettings):
    """The defaults are the preset `paper`."""


class Characters(TextTask):
    """One run."""

    tested = "best"
    settings: Settings

    def __init__(self, settings: Settings, seed: int, device: torch.device) -> None:
        corpus = penn_treebank(CHARACTERS, settings.verified)
        gru = na.NoisyGRU(
            settings.embedding, settings.hidden, **settings.layer_arguments(),
            backend="auto" if triton.obstacle(device) else "triton",  # as in ptb_word
        )  # fmt: skip
        model = LanguageModel(len(corpus.vocabulary), gru, settings.hidden**-0.5, seed).to(device)
        graphed = device.type == "cuda"
        optimizer = torch.optim.Adam(model.parameters(), settings.learning_rate, fused=graphed, capturable=graphed)
        super().__init__("ptb-char", settings, corpus, model, optimizer, settings.evaluate_every)
        self.best = BestWeights(self, model, "valid_bpc")
        self.valid, self.test = (self._sequences(part).to(device) for part in (corpus.valid, corpus.test))

    def _sequences(self, text: Tensor) -> Tensor:
        """As columns that are as long as the sequences in training."""
        return columns(text, max(1, len(text) // (self.steps + 1)))

    def update(self, index: int) -> dict[str, float]:
        """The next sequences, from a state of zeros."""
        self.carried.reset()
        return super().update(index)

    def evaluate(self, index: int) -> dict[str, float]:
        """Bits per character: of the updates since the last time, and of validation without the noise."""
        valid = mean_nll(self.model, self.valid) * _BITS
        self.best.offer(valid, index)
        return {"train_bpc": self.mean_loss(index) * _BITS, "valid_bpc": valid}

    def result(self, evaluations: list[dict[str, float]]) -> dict[str, float]:
        """The lowest validation bits, the test bits there, and training bits early and at the end."""
        summary = self.summary(evaluations)
        return {"valid_bpc": summary.pop("valid_bpc"), "test_bpc": self.test_score(), **summary}

    def summary(self, evaluations: list[dict[str, float]]) -> dict[str, float]:
        """Bits of validation and training."""
        best = min(evaluations, key=lambda line: line["valid_bpc"])
        early = evaluations[len(evaluations) // 10]
        return {
            "valid_bpc": best["valid_bpc"], "best_update": float(best["update"]),
            "train_bpc": evaluations[-1]["train_bpc"], "train_bpc_at_10%": early["train_bpc"],
        }  # fmt: skip

    def test_score(self) -> float:
        """The test bits of the weights that were best in validation."""
        return mean_nll(self.final, self.test) * _BITS


_SHORT = {
    "tokens": 1_000_000, "hidden": 128, "batch": 16, "epochs": 3, "evaluate_every": 78, "learning_rate": 5e-3,
}  # fmt: skip
PTB_CHAR = Experiment(
    name="ptb-char",
    title="Predict the next character of the Penn Treebank: a GRU with noise at output or input",
    reproduces="the figure of character-level learning curves (exploratory analysis)",
    settings=Settings,
    presets={
        "smoke": {"tokens": 40_000, "hidden": 16, "batch": 16, "steps": 50, "epochs": 1, "evaluate_every": 20},
        "short": _SHORT,
    },
    arms=(
        Arm("reference", "GRU", {"hard": False}),
        Arm("hard", "hard GRU, no noise", {}),
        Arm("leak", "hard GRU, the leak alone (c = 0)", {"scheme": "nan", "c": 0.0, "gate_c": 0.0}),
        Arm("nan", "NAN", {"scheme": "nan"}),
        Arm("nani", "NANI, sigma = 0.268", {"scheme": "nani", "sigma": 0.268}),
        Arm("nanis", "NANIS, sigma = 0.268", {"scheme": "nanis", "sigma": 0.268}),
    ),
    metric="valid_bpc",
    unit="bits per character, lowest in validation",
    agreement="The paper has curves and no numbers. Agreement: NAN and NANI have training bits within 0.02 of each "
    "other at the end; those of NANIS are lower at 10% of the updates and higher at the end, by more than the 95% "
    "intervals.",
    start=Characters,
    data=("ptb",),
    comparisons=(
        *compared_with("reference", "hard", "leak", "nan", "nani", "nanis"),
        *compared_with("hard", "leak", "nan"),
        Comparison("nan", "leak"),
        Comparison("nan", "nani", "train_bpc", margin=0.02),
        *(
            Comparison("nanis", against, metric)
            for against in ("nan", "nani")
            for metric in ("train_bpc_at_10%", "train_bpc")
        ),
    ),
    minutes={"smoke": 0.1, "short": 1.2, "paper": 70.0},
)
