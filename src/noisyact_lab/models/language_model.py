"""The language model: the network, how likely it finds a text, and text drawn from it."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisyact.recurrent.layers import NoisyRecurrent
from noisyact_lab.data.text import Corpus
from noisyact_lab.models.embedding import Embedding

__all__ = ["LanguageModel", "continuation", "mean_nll", "perplexity"]

_AT_ONCE = 20_000_000
"""Logits that are computed at once: 80 MB, which with 10,000 words is 2,000 predictions."""
_LONGEST_WORD = 30


class LanguageModel(nn.Module):
    """Embedding, recurrent layers, logits of the next symbol.

    Args:
        symbols: how many there are.
        recurrent: the layers; their dropout is also that of what enters the first and leaves the last.
        bound: weights, biases and embeddings begin uniform in [-bound, bound].
        seed: of these weights, which are therefore the same whether or not the layers have a p.
    """

    def __init__(self, symbols: int, recurrent: NoisyRecurrent, bound: float, seed: int) -> None:
        super().__init__()
        self.embedding = Embedding(symbols, recurrent.input_size)
        self.recurrent = recurrent
        self.output = nn.Linear(recurrent.hidden_size, symbols)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if ".noise." not in name:
                nn.init.uniform_(parameter, -bound, bound, generator)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Symbols, [steps, batch], to logits, [steps, batch, symbols], and the state after them."""
        dropout = self.recurrent.dropout
        y, state = self.recurrent(F.dropout(self.embedding(x), dropout, self.training), state)
        return self.output(F.dropout(y, dropout, self.training)), state


def mean_nll(model: LanguageModel, text: Tensor) -> float:
    """The mean of -log p over all symbols of a text but the first row, in nats; the noise is its expectation.

    Args:
        model: of the language.
        text: in columns, [rows, columns]; the state is zero at their first row.
    """
    training, size = model.training, max(1, _AT_ONCE // (text.shape[1] * model.output.out_features))
    total, state = torch.zeros((), dtype=torch.float64, device=text.device), None
    model.eval()
    with torch.no_grad():
        for start in range(0, len(text) - 1, size):
            piece = text[start : start + size + 1]
            logits, state = model(piece[:-1], state)
            total += F.cross_entropy(logits.flatten(0, 1), piece[1:].flatten(), reduction="sum")
    model.train(training)
    return total.item() / text[1:].numel()


def perplexity(nll: float) -> float:
    """exp(nll), infinite where that is too large.

    >>> round(perplexity(math.log(115.6)), 6), perplexity(1e9)
    (115.6, inf)
    """
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


def continuation(
    model: LanguageModel, corpus: Corpus, prompt: str, words: int, temperature: float, generator: torch.Generator
) -> str:
    """Continue a prompt, which begins a line, by so many words, each drawn given all before it.

    Args:
        model: of the corpus's symbols.
        corpus: has the vocabulary.
        prompt: in words or characters of the vocabulary; may be empty.
        words: at least 1. A model of characters draws at most 30 for each.
        temperature: the logits are divided by it; 0 takes the likeliest symbol.
        generator: on the CPU.
    """
    units, vocabulary = corpus.units, corpus.vocabulary
    symbols = units.of(prompt)
    if unknown := list(dict.fromkeys(symbol for symbol in symbols if symbol not in vocabulary.number)):
        raise ValueError(
            f"prompt {prompt!r}: {', '.join(map(repr, unknown))} not among the {len(vocabulary):,} {units.name}s known"
        )
    if units.space is not None and prompt[-1:].isspace():
        symbols = [*symbols, units.space]
    device = model.output.weight.device
    training, state, drawn, complete = model.training, None, [], 0
    given = torch.tensor([vocabulary.number[symbol] for symbol in (units.end, *symbols)], device=device)
    model.eval()
    with torch.no_grad():
        while complete < words and len(drawn) < words * _LONGEST_WORD:
            logits, state = model(given[:, None], state)
            last = logits[-1, 0].double().cpu()
            if temperature == 0:
                number = last.argmax(dim=0, keepdim=True)
            else:
                number = torch.multinomial(torch.softmax(last / temperature, dim=0), 1, generator=generator)
            drawn.append(vocabulary.symbols[int(number)])
            complete += units.ends_word(drawn[-1])
            given = number.to(device)
    model.train(training)
    return units.text(drawn)
