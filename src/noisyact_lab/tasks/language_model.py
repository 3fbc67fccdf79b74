"""Language models: the network with its noise, its state between updates, the loss of a text, text drawn from it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import noisyact as na
from noisyact.recurrent.layers import NoisyRecurrent
from noisyact_lab.data.text import Corpus
from noisyact_lab.engine.process_group import SINGLE_PROCESS, ProcessGroup
from noisyact_lab.models.embedding import Embedding

__all__ = ["Carried", "LanguageModel", "NoiseSettings", "columns", "continuation", "mean_nll", "perplexity"]

_AT_ONCE = 20_000_000
"""Logits of one piece of an evaluation: 80 MB, which with 10,000 words is 2,000 predictions."""
_LONGEST_WORD = 30


@dataclasses.dataclass(frozen=True)
class NoiseSettings:
    """The nonlinearities of a recurrent layer; the numbers are those of the authors' code at the paper's time."""

    hard: bool = True
    scheme: str | None = None
    """nan, nah, nani, nanil or nanis."""
    c: float = 0.5
    """Of the tanhs."""
    gate_c: float = 0.15
    """Of the sigmoids."""
    alpha: float = 1.15
    """Of the tanhs."""
    gate_alpha: float = 1.1
    """Of the sigmoids."""
    clip: bool = True
    """Outputs of the tanhs are clipped to [-1, 1]."""
    gate_clip: bool = False
    """Outputs of the sigmoids are clipped to [0, 1]."""
    sigma: float = 0.05
    """Of NANI and NANIS."""

    def layer_arguments(self) -> dict[str, Any]:
        """The arguments of a noisy layer.

        >>> NoiseSettings(scheme="nani").layer_arguments()
        {'noise': NANI(sigma=0.05), 'gate_noise': NANI(sigma=0.05), 'hard': True}
        """
        state, gate = (
            {
                None: None, "nan": na.NAN(c, alpha, clip), "nah": na.NAH(c, alpha, clip), "nani": na.NANI(self.sigma),
                "nanil": na.NANIL(c), "nanis": na.NANIS(self.sigma),
            }
            for c, alpha, clip in ((self.c, self.alpha, self.clip), (self.gate_c, self.gate_alpha, self.gate_clip))
        )  # fmt: skip
        if self.scheme not in state:
            allowed = ", ".join(repr(name or "none") for name in state)
            raise ValueError(f"scheme={self.scheme!r}: allowed are {allowed}")
        return {"noise": state[self.scheme], "gate_noise": gate[self.scheme], "hard": self.hard}


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


class Carried(nn.Module):
    """The state of recurrent layers from one update to the next; a module, so that a checkpoint has it.

    In a group each process has the whole, but writes the state of its own columns alone, until all is gathered.
    """

    def __init__(self, recurrent: NoisyRecurrent, batch: int) -> None:
        super().__init__()
        parts = 2 if recurrent.kind == "lstm" else 1
        self.register_buffer("parts", torch.zeros(parts, recurrent.num_layers, batch, recurrent.hidden_size))
        self._group = SINGLE_PROCESS

    def spread(self, group: ProcessGroup) -> None:
        """From now on carry the state of this process's columns."""
        self._group = group

    def gather(self) -> None:
        """Put the columns of the whole group into their places, as a checkpoint must have them."""
        self.get_buffer("parts").copy_(self._group.all_gather(self._mine(), dim=2))

    def _mine(self) -> Tensor:
        return self._group.share(self.get_buffer("parts"), dim=2)  # a view: what is written there is in its place

    def state(self) -> Any:
        """As the layers take it: (h, c), or h alone."""
        parts = self._mine().unbind()
        return parts if len(parts) == 2 else parts[0]

    def keep(self, state: Any) -> None:
        """Carry this one from now on, without its gradient."""
        parts = state if isinstance(state, tuple) else (state,)
        for mine, new in zip(self._mine(), parts, strict=True):
            mine.copy_(new.detach())


def columns(text: Tensor, count: int) -> Tensor:
    """A sequence as columns of one length, [length // count, count], that begin at equal distances.

    >>> columns(torch.arange(11), 3)
    tensor([[0, 4, 7],
            [1, 5, 8],
            [2, 6, 9]])
    """
    starts = (2 * torch.arange(count) * len(text) + count) // (2 * count)
    return text[starts + torch.arange(len(text) // count)[:, None]]


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
    """How a model goes on after a prompt, which begins a line: so many words, each drawn given all before it.

    Args:
        model: of the corpus's symbols.
        corpus: has them.
        prompt: in them; may be empty.
        words: at least 1. Of characters at most 30 for each.
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
