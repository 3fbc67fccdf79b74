"""What a run of `caption` is made of: its settings, and by them its model."""

from __future__ import annotations

import dataclasses

import noisyact as na
from noisyact_lab.engine.experiment import check_at_least
from noisyact_lab.models.caption import CaptionModel
from noisyact_lab.tasks.noise_settings import NoiseSettings

__all__ = ["BiasedSettings", "Settings", "check_settings", "model_of"]


@dataclasses.dataclass(frozen=True)
class Settings(NoiseSettings):
    """The defaults are the preset `paper`."""

    gate_c: float = 0.5
    where: str = "all"
    """Whose tanhs and sigmoids are hard, and noisy: all there are, or those of the lstm."""
    embedding: int = 512
    hidden: int = 1000
    attention: int = 512
    dropout: float = 0.5
    orthogonal: float = 0.01
    """Factor of the square matrices at the start."""
    penalty: float = 1.0
    """Weight of the doubly stochastic penalty."""
    batch: int = 64
    epochs: int = 25
    """The most epochs; patience may end a run before."""
    patience: int = 3
    """Evaluations, one an epoch, without a lower validation NLL before the run ends."""
    frequency_bias: bool = False
    """The output's biases begin at the logarithms of the words' frequencies in the training captions; else at zero."""
    learning_rate: float = 4e-4
    side: int = 14
    """Places along a side of an image; a divisor of 14 averages squares of them."""
    images: int | None = None
    """Images of the training part that are used, from the start of its list; all if none."""
    held_out: int | None = None
    """Images of the validation part, and of the test part."""
    vocabulary: int | None = None
    """Commonest words, with the end and the unknown word; the others are unknown."""
    beam: int = 5
    longest: int = 40
    """Words of a caption that is searched for."""
    tf32: bool = True
    """Products of a training step on a GPU; evaluation has float32."""
    photos: bool = True
    """Photos beside the maps of attention, where they are to be had; they belong to their authors: false for a page
    that is to be published."""
    verified: bool = True
    """The files must be those the results were made from."""


@dataclasses.dataclass(frozen=True)
class BiasedSettings(Settings):
    """A start off the plateau of words that all are equally likely, and the patience of the code of Xu et al."""

    patience: int = 10
    frequency_bias: bool = True


def model_of(settings: Settings, words: int, features: int) -> CaptionModel:
    """The model with the functions of an arm."""
    model = CaptionModel(
        words, features=features, embedding=settings.embedding, hidden=settings.hidden, attention=settings.attention,
        dropout=settings.dropout, orthogonal=settings.orthogonal,
    )  # fmt: skip
    arguments = settings.layer_arguments()
    if not settings.hard:
        return model
    # Without noise the hard functions are what is left of NANI at sigma = 0: h(x + 0 xi).
    noise, gate_noise = (arguments[name] or na.NANI(0.0) for name in ("noise", "gate_noise"))
    if settings.where == "lstm":
        na.noisify(model, noise, gate_noise=gate_noise, filter_fn=lambda module, _: module is model.cell, inplace=True)
    else:
        na.noisify(model, noise, gate_noise=gate_noise, inplace=True, strict=True)
    return model


def check_settings(settings: Settings) -> None:
    """Raise what is wrong with them."""
    check_at_least(1, "caption", settings, "batch", "epochs", "patience", "beam", "longest")
    check_at_least(0, "caption", settings, "penalty")
    if settings.where not in ("all", "lstm"):
        raise ValueError(f"caption: where={settings.where!r}: must be all or lstm")
