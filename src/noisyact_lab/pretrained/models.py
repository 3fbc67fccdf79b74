"""Trained models from their cards, ready for use: a language model that writes, and a translator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from noisyact_lab.data.europarl import PLAIN
from noisyact_lab.data.text import Corpus
from noisyact_lab.engine.experiment import load_experiment
from noisyact_lab.experiments import europarl_word, translate
from noisyact_lab.experiments.translate.settings import model_of
from noisyact_lab.experiments.translate.text_translator import TextTranslator
from noisyact_lab.pretrained.card import Card, Contents, Damaged, read, shipped
from noisyact_lab.tasks.generate import Speaker

__all__ = ["EXPERIMENTS", "SPEAKER", "TRANSLATOR", "load_speaker", "load_translator"]

SPEAKER, TRANSLATOR = "europarl-word", "translate-multi30k"
"""The shipped models that `noisyact generate` and `noisyact translate` use."""
EXPERIMENTS = (SPEAKER, *translate.NAMES)
"""The experiments whose models can have a card: their words may be passed on. Those of the Penn Treebank may not."""


def load_speaker(card: Path | None = None) -> tuple[Speaker, Card]:
    """A language model that continues text, on the CPU, and its card.

    Args:
        card: of a model of `europarl-word`; None for the one that is shipped.

    >>> speaker, card = load_speaker()
    >>> speaker.generate("The President of the", words=1, temperature=0).whole
    'The President of the group'
    """
    path = shipped(SPEAKER) if card is None else card
    found = _read(path, (SPEAKER,))
    about, symbols = found.card, found.vocabularies["symbols"]
    settings = _settings(path, about)
    model = europarl_word.model_of(settings, len(symbols), about.seed, torch.device("cpu"))
    _load(path, model, found)
    none = torch.empty(0, dtype=torch.int64)
    corpus = Corpus(PLAIN, symbols, none, none, none)
    return Speaker(about.experiment, about.arm, about.seed, about.updates, model, corpus), about


def load_translator(card: Path | None = None) -> tuple[TextTranslator, Card]:
    """A translator from English to French, on the CPU, and its card. To translate text it needs sacremoses.

    Args:
        card: of a model of one of the experiments of translation; None for the one that is shipped.

    >>> translator, card = load_translator()
    >>> len(translator.source), card.arm
    (6000, 'nah')
    """
    path = shipped(TRANSLATOR) if card is None else card
    found = _read(path, translate.NAMES)
    source, target = (found.vocabularies[side] for side in ("source", "target"))
    settings = _settings(path, found.card)
    model = model_of(settings, len(source), len(target))
    _load(path, model, found)
    return TextTranslator(model, source, target, settings.longest), found.card


def _read(path: Path, experiments: tuple[str, ...]) -> Contents:
    found = read(path)
    if found.card.experiment not in experiments:
        raise ValueError(f"{path}: a model of {found.card.experiment!r}, not of {' or '.join(map(repr, experiments))}")
    words = {"symbols"} if found.card.experiment == SPEAKER else {"source", "target"}
    if found.vocabularies.keys() != words:
        raise Damaged(path, "its file has not the vocabularies of such a model")
    return found


def _settings(path: Path, card: Card) -> Any:
    try:
        return load_experiment(card.experiment).settings(**card.settings)
    except TypeError as error:
        raise Damaged(path, f"its settings are not those of this version ({error})") from None


def _load(path: Path, model: torch.nn.Module, found: Contents) -> None:
    try:
        model.load_state_dict(found.weights)
    except RuntimeError as error:
        said = " ".join(str(error).split())[:200]  # torch has a line for every tensor
        raise Damaged(path, f"its weights are not those of its settings ({said})") from None
    model.eval()
