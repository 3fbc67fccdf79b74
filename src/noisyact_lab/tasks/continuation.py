"""Text that a language model draws after a prompt."""

from __future__ import annotations

import torch

from noisyact_lab.data.text import Corpus
from noisyact_lab.models.language_model import LanguageModel

__all__ = ["continuation"]

_LONGEST_WORD = 30


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
