"""What a run of `translate` is made of: its settings, and by them its corpus, its model and its optimiser."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

import noisyact as na
from noisyact_lab.data.packed import PackedCorpus
from noisyact_lab.data.parallel import check, corpus
from noisyact_lab.engine.experiment import UnknownName
from noisyact_lab.gpu.adadelta import adadelta
from noisyact_lab.models.translation import Translation
from noisyact_lab.tasks.noise_settings import NoiseSettings

__all__ = ["ModelSettings", "Settings", "check_corpus", "corpus_of", "model_of", "optimizer_of"]


@dataclasses.dataclass(frozen=True)
class ModelSettings(NoiseSettings):
    """The text and the model, whatever trains it; the defaults are the paper's."""

    corpus: str = "europarl"
    """europarl or multi30k."""
    shards: int | None = None
    """Files of Europarl, 100,000 pairs each."""
    words: int = 30_000
    """Words of each vocabulary."""
    longest: int = 50
    """The most words of a training sentence."""
    word_size: int = 500
    hidden: int = 1024
    orthogonal_scale: float = 0.01
    """Scale of the orthogonal matrices with which the recurrences and the attention's keys begin."""
    batch: int = 32
    max_gradient_norm: float = 1.0
    beam: int = 5
    longest_translation: int = 200
    tf32: bool = True
    """On a GPU all products are TF32, as those of cuDNN's GRU are by default."""


@dataclasses.dataclass(frozen=True)
class Settings(ModelSettings):
    """The defaults are the preset `paper`."""

    updates: int = 600_000
    """The most updates; patience may end a run before."""
    evaluate_every: int = 5000
    patience: int = 10
    """Evaluations without a lower validation NLL, after which training ends."""
    optimizer: str = "adadelta"
    """adadelta, with a decay of 0.95 and an epsilon of 1e-6, or adam."""
    learning_rate: float = 1.0
    """1 for Adadelta."""


def corpus_of(settings: ModelSettings, say: Any = None) -> PackedCorpus:
    """The corpus of a run."""
    return corpus(settings.corpus, settings.words, settings.longest, settings.shards, say)


def check_corpus(settings: ModelSettings) -> None:
    """Raise if there is no such corpus here."""
    check(settings.corpus, settings.words, settings.longest, settings.shards)


def model_of(settings: ModelSettings, source_words: int, target_words: int) -> Translation:
    """The model with the functions of an arm for so many words, its weights not yet drawn."""
    model = Translation(source_words, target_words, word_size=settings.word_size, hidden=settings.hidden)
    if settings.scheme is None and not settings.hard:
        return model
    arguments = settings.layer_arguments()
    # Noise at the input with sigma = 0 is the hard function and nothing else; it has no p.
    noise = arguments["noise"] or na.NANI(0.0)
    changed = na.noisify(model, noise, gate_noise=arguments["gate_noise"], inplace=True, strict=True)
    assert isinstance(changed, Translation)
    return changed


def optimizer_of(model: nn.Module, settings: Settings, device: torch.device) -> torch.optim.Optimizer:
    """The optimiser of a run, able to step inside a CUDA graph."""
    if settings.optimizer == "adadelta":
        return adadelta(model.parameters(), settings.learning_rate, device)
    if settings.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), settings.learning_rate, capturable=device.type == "cuda")
    raise UnknownName("translate: optimizer", settings.optimizer, ("adadelta", "adam"))
