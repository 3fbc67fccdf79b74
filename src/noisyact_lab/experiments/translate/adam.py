"""English to French with a recipe that ends: Adam, a warm-up, and a rate that falls to 0 in a fixed number of epochs.

`translate` follows the paper, whose training takes days. These experiments have its model, its arms and its text, and
train them to the end of a shorter schedule. The rate grows linearly for some updates and then falls linearly to 0
(:mod:`noisyact_lab.tasks.learning_rate`). The weights with the lowest validation NLL are tested.

- `translate-adam` has the paper's sizes and corpus: all pairs of Europarl, 128 at a time, 3 epochs. An update computes
  in bfloat16 with float32 weights (:mod:`noisyact_lab.tasks.bfloat16`); the scores of the attention, whose kernels on a
  GPU are float32, and the loss are float32. Validation and test compute with the float32 weights, on a GPU with TF32
  products.
- `translate-multi30k` trains smaller models on the captions of Multi30k until they no longer improve, in float32, and
  tests on the Flickr images of 2016. Its preset `short` is for a CPU; its models are those of `translate`'s.

`noisyact score` compares the translations of two arms by paired bootstrap, beside the comparison over seeds.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor

from noisyact_lab.engine.experiment import Arm, Experiment, check_at_least, compared_with
from noisyact_lab.engine.task import ProcessGroup
from noisyact_lab.experiments.translate.settings import ModelSettings, Settings, check_corpus
from noisyact_lab.experiments.translate.task import Translating, corpus_and_model
from noisyact_lab.experiments.translate.translate import TRANSLATE
from noisyact_lab.tasks.bfloat16 import Bfloat16Copy
from noisyact_lab.tasks.learning_rate import warmed_up_and_decayed

__all__ = ["TRANSLATE_ADAM", "TRANSLATE_MULTI30K", "AdamSettings", "Multi30kSettings", "TranslateWithAdam"]


@dataclasses.dataclass(frozen=True)
class AdamSettings(ModelSettings):
    """The defaults are the preset `paper` of `translate-adam`."""

    batch: int = 128
    epochs: float = 3.0
    """The whole of the training: the rate is 0 at its end."""
    evaluations: int = 6
    """Evaluations of a run, each with a checkpoint."""
    learning_rate: float = 5e-4
    """The highest one, after the warm-up."""
    warmup: int = 1000
    """Updates in which the rate grows."""
    bfloat16: bool = True
    """Updates compute in bfloat16."""


@dataclasses.dataclass(frozen=True)
class Multi30kSettings(AdamSettings):
    """The defaults are the preset `paper` of `translate-multi30k`; the paper has no such experiment."""

    corpus: str = "multi30k"
    words: int = 6000
    word_size: int = 256
    hidden: int = 256
    batch: int = 64
    epochs: float = 12.0
    evaluations: int = 12
    learning_rate: float = 1e-3
    warmup: int = 500
    bfloat16: bool = False
    longest_translation: int = 60


class TranslateWithAdam(Translating):
    """One run of either experiment."""

    settings: AdamSettings
    name: ClassVar[str] = "translate-adam"  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, settings: AdamSettings, seed: int, device: torch.device) -> None:
        check_at_least(1, self.name, settings, "evaluations")
        corpus, model = corpus_and_model(self.name, settings, seed, device)
        updates = round(settings.epochs * (len(corpus.train) // settings.batch))
        if updates < settings.evaluations:
            raise ValueError(
                f"{self.name}: epochs={settings.epochs}: {updates} updates are fewer than the {settings.evaluations} "
                "evaluations"
            )
        warmed_up_and_decayed(0, updates, settings.warmup)  # an error now for a warm-up that is too long
        # A tensor, which a CUDA graph reads anew at every update.
        self.rate = torch.tensor(settings.learning_rate, device=device)
        optimizer = torch.optim.Adam(model.parameters(), self.rate, capturable=device.type == "cuda")
        super().__init__(
            self.name, settings, corpus, model, optimizer, seed, None, updates,
            math.ceil(updates / settings.evaluations),
        )  # fmt: skip
        self.copied = Bfloat16Copy(model, ("attention.tanh", "attention.energy")) if settings.bfloat16 else None
        if self.copied is not None:
            self.trained = self.copied.module

    def spread(self, group: ProcessGroup) -> None:
        """As every task; only float32 gradients are averaged."""
        if self.copied is not None:
            raise ValueError(f"{self.name}: bfloat16=true: a run over several devices needs --set bfloat16=false")
        super().spread(group)

    def update(self, index: int) -> dict[str, float]:
        """The next batch at the update's rate."""
        factor = warmed_up_and_decayed(index, self.planned_updates, self.settings.warmup)
        self.rate.fill_(self.settings.learning_rate * factor)
        self.optimizer.param_groups[0]["lr"] = self.rate  # loading a checkpoint replaces the tensor
        return super().update(index)

    def _step(self, source: Tensor, lengths: Tensor, target: Tensor, target_lengths: Tensor) -> None:
        if self.copied is not None:
            self.copied.refresh()
        super()._step(source, lengths, target, target_lengths)

    def descend(self, loss: Tensor, max_gradient_norm: float | None = None) -> None:
        """Step the optimiser by the loss's gradient, which is that of the copy where there is one."""
        if self.copied is None:
            super().descend(loss, max_gradient_norm)
            return
        loss.backward()
        self.copied.return_gradients()
        if max_gradient_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_gradient_norm)
        self.optimizer.step()


class TranslateMulti30k(TranslateWithAdam):
    """One run of `translate-multi30k`."""

    name: ClassVar[str] = "translate-multi30k"  # pyright: ignore[reportIncompatibleVariableOverride]


_ARMS = {arm.name: dataclasses.replace(arm, paper=None, papers={}) for arm in TRANSLATE.arms}
_MEAN = Arm("nah-mean", "NAH's mean, no randomness", {"scheme": "nah", "draw": "mean"})
_TRAINING = {f.name for f in dataclasses.fields(Settings)} - {f.name for f in dataclasses.fields(ModelSettings)}
_SMOKE, _SHORT = (
    {name: value for name, value in TRANSLATE.presets[preset].items() if name not in _TRAINING} | changes
    for preset, changes in (
        ("smoke", {"epochs": 0.1, "evaluations": 2, "warmup": 4}),
        ("short", {"batch": 64, "epochs": 10.0, "evaluations": 10, "learning_rate": 3e-3, "warmup": 200,
                   "bfloat16": False}),
    )
)  # fmt: skip
_COUNTS = (
    "A difference counts if its p is below 0.05 after Holm's correction over all comparisons of the table. The paired "
    "bootstrap of `noisyact score` says, for each seed, whether the two models of that seed differ on sentences like "
    "those of the test set; it says nothing of other seeds, and decides nothing where there are at least three. With "
    "fewer seeds its p-values, corrected in the same way, are reported as those of these models."
)

TRANSLATE_ADAM = Experiment(
    name="translate-adam",
    title="English to French, the model of dl4mt trained to its end with Adam",
    reproduces="the table of machine translation on Europarl and newstest2011 by another training; BLEU: reference "
    "20.18, hard 21.59, NAH 22.57",
    settings=AdamSettings,
    presets={"smoke": _SMOKE, "short": _SHORT},
    arms=(*(_ARMS[name] for name in ("reference", "hard", "leak", "nah")), _MEAN),
    metric="test_bleu",
    unit="BLEU of tokenised text",
    higher_is_better=True,
    agreement="Stated before any run. The reference must reach a test BLEU of 18 of tokenised text, two below the "
    "paper's, in its mean over seeds; below that the training has not come to its end and nothing is compared. Then "
    "the paper's order, NAH above hard above reference, counts pair by pair. What the leak alone gains is the leak's; "
    "what NAH's mean gains over the leak is the mean's; what NAH gains over its mean is the randomness's. " + _COUNTS,
    start=TranslateWithAdam,
    data=("europarl", "wmt-news"),
    check_data=check_corpus,
    comparisons=(
        *compared_with("reference", "hard", "leak", "nah"),
        *compared_with("hard", "leak", "nah"),
        *compared_with("leak", "nah-mean", "nah"),
        *compared_with("nah-mean", "nah"),
    ),
    minutes={"smoke": 0.2, "short": 15.0, "paper": 14_000.0},
)
TRANSLATE_MULTI30K = Experiment(
    name="translate-multi30k",
    title="Image captions from English to French: small attention models, trained until they no longer improve",
    reproduces="nothing in the paper",
    settings=Multi30kSettings,
    presets={"smoke": _SMOKE, "short": _SHORT},
    arms=(
        *_ARMS.values(),
        _MEAN,
        Arm("nan", "NAN", {"scheme": "nan"}),
    ),
    metric="test_bleu",
    unit="BLEU of tokenised text",
    higher_is_better=True,
    agreement="Stated before any run. The reference must reach a test BLEU of 40 of tokenised text in its mean over "
    "seeds, or nothing is compared. There is no number of the paper to agree with: the question is whether its order, "
    "NAH above hard above reference, also holds for a small corpus. What the leak alone gains is the leak's; what the "
    "reference gains with small matrices is the initialisation's; what NAH's mean gains over the leak is the mean's; "
    "what NAH gains over its mean is the randomness's. " + _COUNTS,
    start=TranslateMulti30k,
    data=("multi30k",),
    check_data=check_corpus,
    comparisons=(
        *compared_with("reference", "reference-small", "hard", "leak", "nan", "nah"),
        *compared_with("reference-small", "hard", "leak", "nan", "nah"),
        *compared_with("hard", "leak", "nan", "nah"),
        *compared_with("leak", "nan", "nah-mean", "nah"),
        *compared_with("nah-mean", "nah"),
    ),
    minutes={"smoke": 0.2, "short": 10.0, "paper": 70.0},
)
