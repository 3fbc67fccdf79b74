"""Text to text with a trained model of translation, such as that of a run or of a checkpoint in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch

from noisyact_lab.data import moses
from noisyact_lab.data.packed import LANGUAGES
from noisyact_lab.data.text import UNKNOWN, Vocabulary
from noisyact_lab.engine.experiment import load_experiment
from noisyact_lab.experiments.translate import NAMES
from noisyact_lab.experiments.translate.settings import corpus_of, model_of
from noisyact_lab.experiments.translate.translator import Translator
from noisyact_lab.models.translation import Translation
from noisyact_lab.tasks.trained_run import of_this_version, state_of_run

__all__ = ["TextTranslator", "Translated", "text_translator_of", "translate_text"]


@dataclasses.dataclass(frozen=True)
class Translated:
    """A line, its translation, and what the model could not know of it."""

    source: str
    translation: str
    unknown: tuple[str, ...]
    """Words of the source that are not in the vocabulary."""
    too_long: bool
    """Whether the source has more words than any sentence of training."""


@dataclasses.dataclass(frozen=True)
class TextTranslator:
    """A trained model of translation with its words.

    Args:
        model: trained.
        source: the words that it reads.
        target: the words that it writes.
        longest: the most words of a sentence of its training.
    """

    model: Translation
    source: Vocabulary
    target: Vocabulary
    longest: int

    def translate(
        self, lines: Sequence[str], *, beam: int = 5, length_power: float = 1.0, longest: int = 200,
        device: torch.device | str = "cpu",
    ) -> list[Translated]:  # fmt: skip
        """Translate lines of plain text, each by itself; that of an empty line is empty. Needs sacremoses.

        Args:
            lines: plain text.
            beam: hypotheses at a time; 1 is greedy.
            length_power: 0 ranks by log p, 1 by log p a word.
            longest: words of a translation, at most.
            device: to compute on.
        """
        sentences = moses.tokenised([line.strip() for line in lines], LANGUAGES[0])
        translator = Translator(
            self.model.to(device), self.source, self.target, width=beam, length_power=length_power, longest=longest
        )
        plain = moses.detokenised(translator.words(sentences), LANGUAGES[1])
        known = self.source.number
        return [
            Translated(
                line.strip(), translation,
                tuple(dict.fromkeys(word for word in sentence.split() if word not in known or word == UNKNOWN)),
                len(sentence.split()) > self.longest,
            )
            for line, sentence, translation in zip(lines, sentences, plain, strict=True)
        ]  # fmt: skip


def text_translator_of(folder: Path) -> TextTranslator:
    """The best weights so far of a run of an experiment of translation. Needs the corpus of the run, for its words.

    Args:
        folder: of the run, for its last checkpoint, or of one of its checkpoints.
    """
    config, state = state_of_run(folder, *NAMES)
    with of_this_version(folder):
        settings = load_experiment(config["experiment"]).settings(**config["settings"])
        corpus = corpus_of(settings)
        if state["memory"]["words"] != corpus.words_sha256:
            raise ValueError(f"{folder}: the vocabularies of {settings.corpus} here are not those of the run")
        model = model_of(settings, len(corpus.source), len(corpus.target))
        model.load_state_dict(state["modules"]["best"])
    return TextTranslator(model, corpus.source, corpus.target, settings.longest)


def translate_text(
    folder: Path, lines: Sequence[str], *, beam: int = 5, length_power: float = 1.0, longest: int = 200,
    device: torch.device | str = "cpu",
) -> list[Translated]:  # fmt: skip
    """Translate lines with the model of a run: :func:`text_translator_of` and :meth:`TextTranslator.translate`."""
    translator = text_translator_of(folder)
    return translator.translate(lines, beam=beam, length_power=length_power, longest=longest, device=device)
