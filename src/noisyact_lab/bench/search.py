"""Benchmark of beam search with the translation model, noisy against soft.

The weights are random, so <eos> is as unlikely as any other word and every search runs to its maximum length. On a GPU
it is the full model on 3,003 sentences, the size of newstest2011, with CUDA graphs and TF32 products as in the
experiment; on a CPU it is a small model. Results are checked without TF32, whose rounding would change the log p of a
long translation by more than the hypotheses of a beam differ.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator

import torch

from noisyact.conversion.convert import noisify
from noisyact.schemes import NAH
from noisyact.text_table import text_table
from noisyact_lab.bench.recurrent import WrongResult
from noisyact_lab.bench.recurrent_gpu import exact_products
from noisyact_lab.data.packed import Sentences
from noisyact_lab.data.text import Vocabulary
from noisyact_lab.experiments.translate.translator import Translator
from noisyact_lab.gpu.tf32 import tf32_products
from noisyact_lab.models.beam_search import Beam
from noisyact_lab.models.translation import Translation

__all__ = ["Row", "measure", "table"]

_WIDTH = 5
_SEARCHED, _CHECKED = 100, 3
"""The number of sentences in the search that is checked, and how many of its translations are compared."""


@dataclasses.dataclass(frozen=True)
class Row:
    """Times are medians in seconds for a search over all sentences. The ratio is noisy over soft."""

    sentences: int
    beam: int
    words: int
    """The number of words in each translation."""
    noisy_s: float
    soft_s: float
    ratio: float


def measure(turns: int, device: str) -> Iterator[Row | WrongResult]:
    """Check the results of both models, then measure them in alternating turns after one warm-up search each."""
    where = torch.device(device)
    on_gpu = where.type == "cuda"
    words, word_size, hidden, count, longest = (30_000, 500, 1024, 3003, 40) if on_gpu else (2000, 64, 96, 40, 12)
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    soft = Translation(words, words, word_size=word_size, hidden=hidden).to(where)
    with torch.no_grad():
        soft.output.weight *= 10  # otherwise all words are about equally likely, and rounding picks one
    noisy = noisify(soft, NAH(0.5, 1.15, True), gate_noise=NAH(0.15, 1.1), strict=True)
    assert isinstance(noisy, Translation)
    lengths = torch.randint(2, 52, (count,), generator=generator)
    numbers = torch.randint(1, words, (int(lengths.sum()),), generator=generator, dtype=torch.int32)
    numbers[lengths.cumsum(0) - 1] = soft.end
    sentences = Sentences.flat(numbers, lengths)
    vocabulary = Vocabulary(map(str, range(words)))

    def translator_of(model: Translation) -> Translator:
        return Translator(model, vocabulary, vocabulary, width=_WIDTH, longest=longest)

    with exact_products():
        some = Sentences.flat(numbers[: int(lengths[:_SEARCHED].sum())], lengths[:_SEARCHED])
        for model in (noisy, soft):
            # A translator keeps its recorded CUDA graphs. These were recorded without TF32, so it is not reused.
            if wrong := _wrong(model, some, translator_of(model).numbers(some), longest):
                yield WrongResult(f"beam search: not measured, its results are wrong: {wrong}")
                return
    with tf32_products(on_gpu):
        translators = [translator_of(model) for model in (noisy, soft)]
        for translator in translators:
            translator.numbers(sentences)
        seconds = [[_seconds(translator, sentences) for translator in translators] for _ in range(turns)]
    noisy_s, soft_s = (statistics.median(spent) for spent in zip(*seconds, strict=True))
    yield Row(count, _WIDTH, longest, noisy_s, soft_s, noisy_s / soft_s)


def _wrong(model: Translation, sentences: Sentences, found: list[tuple[int, ...]], longest: int) -> str:
    """Compare the first translations with eager searches for single sentences, and return what is wrong or ""."""
    device = model.output.weight.device
    beam = Beam(model.eval().step, width=_WIDTH, end=model.end, longest=longest)
    for row in range(_CHECKED):
        length = int(sentences.lengths[row])
        source = sentences.padded(torch.tensor([row]), length).to(device)
        with torch.no_grad():
            hypotheses = beam(*model.start(source, torch.tensor([length], device=device)))[0]
        # Products of another shape round differently, and with random weights many hypotheses are about equally likely.
        likely = {hypothesis.tokens: hypothesis.log_probability for hypothesis in hypotheses}
        if found[row] not in likely:
            return f"sentence {row} has a translation that is not in the beam of its single search"
        off = max(likely.values()) - likely[found[row]]
        if off > 1e-3:
            return f"sentence {row} has a translation whose log p is {off:.2g} below that of its single search"
    return ""


def _seconds(translator: Translator, sentences: Sentences) -> float:
    start = time.perf_counter()
    translator.numbers(sentences)  # returns numbers on the host, so the GPU has finished
    return time.perf_counter() - start


def table(rows: list[Row], width: int | None = None) -> str:
    """Format the rows as a text table, in lines of at most `width` where one is given."""
    cells = [
        (
            f"{row.sentences:,}", str(row.beam), str(row.words), f"{row.noisy_s:.2f} s", f"{row.soft_s:.2f} s",
            f"{row.ratio:.2f}", f"{row.sentences / row.noisy_s:,.0f}",
        )
        for row in rows
    ]  # fmt: skip
    header = ("sentences", "beam", "words each", "noisy", "soft", "ratio", "sentences a second")
    return text_table(header, cells, width, kept=(4, 5), repeated=3)
