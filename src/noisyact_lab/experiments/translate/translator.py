"""A trained model of translation at work: sentences in, sentences out, their BLEU, and where the model looked."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from noisyact.extras import how_to_install
from noisyact_lab.data import moses
from noisyact_lab.data.packed import LANGUAGES, Sentences, numbers_of
from noisyact_lab.data.text import Vocabulary
from noisyact_lab.gpu.cuda_graph import captured
from noisyact_lab.models.beam_search import Beam
from noisyact_lab.models.translation import Translation
from noisyact_lab.tasks.length_batches import L, padded_length, sorted_batches

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "PLAIN", "PLAIN_INTERVAL", "RESAMPLES", "Bleu", "Translator", "attention_picture", "bleu", "check_sacrebleu",
    "padded", "plain_bleu",
]  # fmt: skip

PLAIN, PLAIN_INTERVAL = "test_bleu_plain_text", "test_bleu_plain_text_interval"
"""The names, in a result, of the BLEU of plain text and of half its interval."""
RESAMPLES = 1000
"""Resamples of the test set's sentences, for the interval."""
_PADDING = 10


def padded(length: L) -> L:
    """The length, or lengths, the end counted, to which sentences are padded: 10 words or a multiple, and the end."""
    return padded_length(length, _PADDING, ends=1)


class Translator:
    """Translates with a beam; ranks by log p a word, as dl4mt does.

    Args:
        model: trained; it is put into evaluation mode for each call.
        source: its words.
        target: its words.
        width: of the beam; 1 is greedy.
        longest: words of a translation, at most.
        length_power: see :class:`noisyact_lab.models.beam_search.Beam`.
        batch: sentences at once.
    """

    def __init__(
        self, model: Translation, source: Vocabulary, target: Vocabulary, *, width: int = 5, longest: int = 200,
        length_power: float = 1.0, batch: int = 64,
    ) -> None:  # fmt: skip
        self.model, self.source, self.target, self.batch = model, source, target, batch
        self.device = model.output.weight.device
        self._beam = Beam(
            model.step, width=width, end=model.end, longest=longest, length_power=length_power,
            record=lambda step: captured(step, [model.output.weight]),
        )  # fmt: skip

    def words(self, sentences: Sequence[str]) -> list[list[str]]:
        """Translations of sentences that are tokenised, a space between words; that of an empty one is empty."""
        there = [index for index, sentence in enumerate(sentences) if sentence]
        found: list[list[str]] = [[] for _ in sentences]
        if there:
            numbers = [numbers_of(sentences[index].split(" "), self.source) for index in there]
            flat = torch.tensor([number for sentence in numbers for number in sentence], dtype=torch.int32)
            translated = self.numbers(Sentences.flat(flat, torch.tensor([len(sentence) for sentence in numbers])))
            for index, translation in zip(there, translated, strict=True):
                found[index] = [self.target.symbols[number] for number in translation]
        return found

    def numbers(self, sentences: Sentences) -> list[tuple[int, ...]]:
        """Translations of sentences as numbers, without the ends."""
        sentences = sentences.to(self.device)
        found: list[tuple[int, ...]] = [()] * len(sentences)
        training = self.model.training
        self.model.eval()
        with torch.no_grad():
            for rows, longest in sorted_batches(sentences.lengths.cpu(), self.batch):
                # Always as many rows: the last batch is filled up with its first sentence.
                full = (
                    torch.cat([rows, rows[:1].expand(self.batch - len(rows))]) if len(sentences) > self.batch else rows
                )
                full = full.to(self.device)
                best = self._beam(*self.model.start(sentences.padded(full, padded(longest)), sentences.lengths[full]))
                for row, hypotheses in zip(rows.tolist(), best, strict=False):
                    found[row] = hypotheses[0].tokens
        self.model.train(training)
        return found

    def attention(self, sentence: str, translation: Sequence[str]) -> Tensor:
        """Where the model looks for each word of a translation, and for its end: [words + 1, source words + 1]."""
        source = torch.tensor(numbers_of(sentence.split(" "), self.source), device=self.device)[:, None]
        target = torch.tensor(numbers_of(translation, self.target), device=self.device)[:, None]
        training = self.model.training
        self.model.eval()
        with torch.no_grad():
            _, weights = self.model(source, torch.tensor([len(source)], device=self.device), target)
        self.model.train(training)
        return weights[:, 0].cpu()


@dataclasses.dataclass(frozen=True)
class Bleu:
    """A score, 0 to 100, and the signature that says how it was computed.

    Args:
        score: the score.
        signature: sacrebleu's.
        interval: half the 95% interval by resampling the sentences, which says nothing of other seeds; 0 if not asked
            for.
    """

    score: float
    signature: str
    interval: float = 0.0


def bleu(translations: Sequence[str], references: Sequence[str], tokenize: str = "13a", resamples: int = 1) -> Bleu:
    """BLEU by sacrebleu. Text that is tokenised is scored with tokenize "none", as multi-bleu.perl of Moses does.

    >>> bleu(["the cat sat on the mat"], ["the cat sat on the mat"], "none").score
    100.0
    """
    metric = check_sacrebleu().BLEU(tokenize=tokenize, force=True)
    found = metric.corpus_score(list(translations), [list(references)], n_bootstrap=resamples)
    interval = round(float(found._ci), 6) if resamples > 1 else 0.0
    return Bleu(round(found.score, 6), str(metric.get_signature()), interval)


def plain_bleu(translations: Iterable[Sequence[str]], references: Sequence[str]) -> Bleu:
    """BLEU of words that are first put together to text, against text, with its interval."""
    return bleu(moses.detokenised(translations, LANGUAGES[1]), references, resamples=RESAMPLES)


def check_sacrebleu() -> Any:
    """The module; a ValueError says how to get it."""
    try:
        import sacrebleu
    except ImportError:
        raise ValueError(f"BLEU needs sacrebleu, which is not installed: {how_to_install('translate')}") from None
    return sacrebleu


def attention_picture(source: Sequence[str], target: Sequence[str], weights: Tensor) -> Figure:
    """The weights of the attention, a row for each word of the translation, a column for each of the source."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.6 + 0.32 * len(source), 1.4 + 0.28 * len(target)), layout="constrained")
    ax = figure.subplots()
    ax.imshow(weights.numpy(), cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    # Moses' words have &apos; for an apostrophe.
    ax.set_xticks(range(len(source)), [*map(html.unescape, source)], rotation=60, ha="left")
    ax.xaxis.tick_top()
    ax.set_yticks(range(len(target)), [*map(html.unescape, target)])
    return figure
