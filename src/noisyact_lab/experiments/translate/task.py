"""A run that trains a model of translation: its batches, its update, and BLEU of the test set at its end."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from noisyact.deferral import deferred_gradients
from noisyact.noise import seeds_in_blocks
from noisyact_lab.data import moses
from noisyact_lab.data.packed import PackedCorpus, Pairs
from noisyact_lab.data.text import UNKNOWN
from noisyact_lab.engine.experiment import check_at_least
from noisyact_lab.engine.task import Task
from noisyact_lab.experiments.translate.settings import ModelSettings, corpus_of, model_of
from noisyact_lab.experiments.translate.translator import (
    PLAIN,
    PLAIN_INTERVAL,
    RESAMPLES,
    Translator,
    attention_picture,
    bleu,
    check_sacrebleu,
    padded,
    plain_bleu,
)
from noisyact_lab.gpu.tf32 import tf32_products
from noisyact_lab.models.translation import Translation, sentence_nll
from noisyact_lab.tasks.batches import EpochBatches
from noisyact_lab.tasks.best_weights import BestWeights
from noisyact_lab.tasks.length_batches import random_batches, sorted_batches

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TRANSLATIONS", "Translating", "corpus_and_model"]

TRANSLATIONS = "translations of the test set"
"""The title of their table among the samples."""
_PICTURED = 3
"""How many of the translations that are not long have a picture of their attention: the first ones."""
_LONG = 16
_PROBED = 8
"""Pairs on which the noise is measured."""
_AT_LEAST_ONE = ("word_size", "hidden", "batch", "beam", "longest_translation")


def corpus_and_model(
    name: str, settings: ModelSettings, seed: int, device: torch.device
) -> tuple[PackedCorpus, Translation]:
    """What a run trains on, and its model with its first weights on a device; the name is that of the experiment."""
    check_at_least(1, name, settings, *_AT_LEAST_ONE)
    check_sacrebleu()  # not at the end of a long run
    corpus = corpus_of(settings)
    if len(corpus.train) < settings.batch:
        raise ValueError(f"{name}: batch={settings.batch}: there are {len(corpus.train)} pairs")
    model = model_of(settings, len(corpus.source), len(corpus.target))
    model.initialise(torch.Generator().manual_seed(seed), settings.orthogonal_scale)
    return corpus, model.to(device)


class Translating(Task[Translation]):
    """A run that trains a model of translation and tests it; an experiment says how it is trained.

    Args:
        name: of the experiment, for errors.
        settings: of the run.
        corpus: the text.
        model: already on its device.
        optimizer: of its parameters, able to step inside a CUDA graph.
        seed: of the batches.
        patience: see :class:`noisyact_lab.tasks.best_weights.BestWeights`.
        updates: how many there are; by default the setting.
        evaluate_every: the number of updates from one evaluation to the next; by default the setting.
    """

    end_key = "stopped"
    tested = "best"
    settings: Any
    """A kind of :class:`ModelSettings`."""

    def __init__(
        self, name: str, settings: ModelSettings, corpus: PackedCorpus, model: Translation,
        optimizer: torch.optim.Optimizer, seed: int, patience: int | None, updates: int | None = None,
        evaluate_every: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, settings, model, optimizer, "optimizer", updates=updates, evaluate_every=evaluate_every)
        self.corpus = corpus
        self.memory["words"] = corpus.words_sha256
        self.best = BestWeights(self, model, "valid_nll", update_key="best_update", patience=patience)
        self.train, self.valid = corpus.train.to(self.device), corpus.valid.to(self.device)
        self.batches = EpochBatches(self._epoch, len(corpus.train) // settings.batch, seed * 1_000_003)

    def update(self, index: int) -> dict[str, float]:
        """The next batch, one step of the optimiser."""
        if self.memory["words"] != self.corpus.words_sha256:
            raise ValueError(f"{self.name}: the run was begun with other vocabularies; is its text another one now?")
        rows, (source_length, target_length) = self.batches.at(index)
        mine = self.group.share(rows)
        with self._products():
            self.step(
                self.train.source.padded(mine, source_length), self.train.source.lengths[mine],
                self.train.target.padded(mine, target_length), self.train.target.lengths[mine],
            )  # fmt: skip
        return {}

    def _epoch(self, generator: torch.Generator) -> list[tuple[Tensor, list[int]]]:
        """The pairs of each update of an epoch, and the lengths that their two sides are padded to."""
        sides = [self.corpus.train.source.lengths, self.corpus.train.target.lengths]
        source, target = (padded(lengths) for lengths in sides)
        both = target * (int(source.max()) + 1) + source
        rows = random_batches(both, self.settings.batch, generator, drop_longest=True)
        longest = torch.stack([padded(lengths[rows].amax(dim=1)) for lengths in sides], dim=1)
        return list(zip(rows.to(self.device).unbind(), longest.tolist(), strict=True))

    def _step(self, source: Tensor, lengths: Tensor, target: Tensor, target_lengths: Tensor) -> None:
        """A graph is recorded for each pair of padded lengths."""
        on_gpu = self.device.type == "cuda"
        with deferred_gradients(on_gpu), seeds_in_blocks(on_gpu):
            logits, _ = self.trained(source, lengths, target)
        nll = sentence_nll(logits.float(), target, target_lengths).mean()
        self.descend(nll, self.settings.max_gradient_norm)
        self.add_loss(nll)

    def _products(self) -> Any:
        return tf32_products(self.settings.tf32 and self.device.type == "cuda")

    def evaluate(self, index: int) -> dict[str, float]:
        """Nats a sentence: of the updates since the last time, and of validation without the noise."""
        # It may end the training, so all must have the same number, to the bit.
        valid = self.group.on_first(lambda: self._mean_nll(self.model, self.valid))
        self.best.offer(valid, index)
        return {"train_nll": self.mean_loss(index), "valid_nll": valid}

    @torch.no_grad()
    def _mean_nll(self, model: Translation, pairs: Pairs) -> float:
        """The mean over sentences of -log p, the end counted, in nats; the noise is its expectation."""
        total, lengths = torch.zeros((), dtype=torch.float64, device=self.device), pairs.target.lengths
        model.eval()
        with self._products():
            for rows, longest in sorted_batches(lengths.cpu(), self.settings.batch):
                rows = rows.to(self.device)
                source_length = padded(int(pairs.source.lengths[rows].max()))
                total += model.nll(
                    pairs.source.padded(rows, source_length), pairs.source.lengths[rows],
                    pairs.target.padded(rows, padded(longest)), lengths[rows],
                ).sum()  # fmt: skip
        model.train()
        return total.item() / len(pairs)

    def probe(self) -> tuple[Tensor, Tensor, Tensor]:
        """The first pairs of validation."""
        pairs = self.valid
        rows = torch.arange(min(_PROBED, len(pairs)), device=self.device)
        source, target = (padded(int(side.lengths[rows].max())) for side in (pairs.source, pairs.target))
        return pairs.source.padded(rows, source), pairs.source.lengths[rows], pairs.target.padded(rows, target)

    def result(self, evaluations: list[dict[str, float]]) -> dict[str, float]:
        """BLEU and NLL of the test set with the weights that were best in validation; it is read only here."""
        pairs = self.corpus.test
        tokenised = bleu([" ".join(words) for words in self.translations], pairs.target_words, "none").score
        plain = {}
        if moses.available():
            found = plain_bleu(self.translations, pairs.target_text)
            plain = {PLAIN: found.score, PLAIN_INTERVAL: found.interval}
        unknown = sum(words.count(UNKNOWN) for words in self.translations)
        return {
            "test_bleu": tokenised, **plain,
            "test_nll": self._mean_nll(self.best.model, pairs.to(self.device)),
            "valid_nll": min(line["valid_nll"] for line in evaluations),
            "best_update": float(self.memory.get("best_update", 0)), "train_nll": evaluations[-1]["train_nll"],
            "unknown_words": 100 * unknown / max(1, sum(map(len, self.translations))),
        }  # fmt: skip

    @functools.cached_property
    def translator(self) -> Translator:
        """Translates with the best weights."""
        return Translator(
            self.best.model, self.corpus.source, self.corpus.target, width=self.settings.beam,
            longest=self.settings.longest_translation,
        )  # fmt: skip

    @functools.cached_property
    def translations(self) -> list[list[str]]:
        """Translations of the test set, by the best weights."""
        with self._products():
            return self.translator.words(self.corpus.test.source_words)

    def samples(self) -> list[dict[str, Any]]:
        """All translations of the test set, as they are scored: tokenised. And how BLEU is computed."""
        pairs = self.corpus.test
        rows = [
            [source, target, " ".join(words)]
            for source, target, words in zip(pairs.source_text, pairs.target_text, self.translations, strict=True)
        ]
        signatures = [[name, signature] for name, signature in self.signatures().items()]
        return [
            {"title": TRANSLATIONS, "columns": ["source", "reference", "translation"], "rows": rows},
            {"title": "how BLEU is computed", "columns": ["number", "signature of sacrebleu"], "rows": signatures},
        ]

    def signatures(self) -> dict[str, str]:
        """sacrebleu's, of both scores."""
        return {
            "test_bleu": bleu([""], [""], "none").signature, PLAIN: bleu([""], [""], resamples=RESAMPLES).signature,
        }  # fmt: skip

    def vocabularies(self) -> dict[str, tuple[str, ...]]:
        """The words of both languages."""
        return {"source": self.corpus.source.symbols, "target": self.corpus.target.symbols}

    def pictures(self) -> dict[str, Figure]:
        """Where the model looked while it translated."""
        both = zip(self.corpus.test.source_words, self.translations, strict=True)
        short = [(s, words) for s, words in both if words and max(s.count(" "), len(words)) < _LONG]
        figures = {}
        for number, (sentence, words) in enumerate(short[:_PICTURED]):
            weights = self.translator.attention(sentence, words)
            figures[f"attention-{number + 1}"] = attention_picture(
                [*sentence.split(" "), "<eos>"], [*words, "<eos>"], weights
            )
        return figures
