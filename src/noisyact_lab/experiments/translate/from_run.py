"""Text to text with a trained model of translation: from the folder of its run, or from a checkpoint in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch

from noisyact_lab.data import moses
from noisyact_lab.data.packed import LANGUAGES
from noisyact_lab.data.text import UNKNOWN
from noisyact_lab.experiments.translate.settings import Settings, corpus_of, model_of
from noisyact_lab.experiments.translate.translator import Translator
from noisyact_lab.tasks.trained_run import of_this_version, state_of_run

__all__ = ["Translated", "translate_text"]


@dataclasses.dataclass(frozen=True)
class Translated:
    """A line, its translation, and what the model could not know of it."""

    source: str
    translation: str
    unknown: tuple[str, ...]
    """Words of the source that are not in the vocabulary."""
    too_long: bool
    """Whether the source has more words than any sentence of training."""


def translate_text(
    folder: Path, lines: Sequence[str], *, beam: int = 5, length_power: float = 1.0, longest: int = 200,
    device: torch.device | str = "cpu",
) -> list[Translated]:  # fmt: skip
    """Translate lines, each by itself; that of an empty line is empty. Needs the corpus of the run, for its words.

    Args:
        folder: of the run, for its last checkpoint, or of one of its checkpoints. The best weights so far are used.
        lines: plain text.
        beam: hypotheses at a time; 1 is greedy.
        length_power: 0 ranks by log p, 1 by log p a word.
        longest: words of a translation, at most.
        device: to compute on.
    """
    config, state = state_of_run(folder, "translate")
    with of_this_version(folder):
        settings = Settings(**config["settings"])
        corpus = corpus_of(settings)
        if state["memory"]["words"] != corpus.words_sha256:
            raise ValueError(f"{folder}: the vocabularies of {settings.corpus} here are not those of the run")
        model = model_of(settings, len(corpus.source), len(corpus.target))
        model.load_state_dict(state["modules"]["best"])
    translator = Translator(
        model.to(device), corpus.source, corpus.target, width=beam, length_power=length_power, longest=longest
    )
    sentences = moses.tokenised([line.strip() for line in lines], LANGUAGES[0])
    plain = moses.detokenised(translator.words(sentences), LANGUAGES[1])
    known = corpus.source.number
    return [
        Translated(
            line.strip(), translation,
            tuple(dict.fromkeys(word for word in sentence.split() if word not in known or word == UNKNOWN)),
            len(sentence.split()) > settings.longest,
        )
        for line, sentence, translation in zip(lines, sentences, plain, strict=True)
    ]  # fmt: skip
