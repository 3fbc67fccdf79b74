"""The English half of Europarl as text for language models: lower case, a limited vocabulary, plain text in and out."""

from __future__ import annotations

import array
import collections
import re
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from noisyact_lab.data.locate import find
from noisyact_lab.data.parallel import text_path
from noisyact_lab.data.text import EOS, UNKNOWN, Corpus, Units, Vocabulary, lines

__all__ = ["PLAIN", "speeches"]

_WORD = re.compile(r"<unk>|\w+|'\w{1,2}\b|[^\w\s]")
_PARTS = {
    "train": "europarl-v7.fr-en.train.00", "valid": "europarl-q4-2000.dev", "test": "europarl-q4-2000.test",
}  # fmt: skip
"""The training text is one of the shards, which are random subsets; the others are speeches of a later quarter."""
_NO_SPACE_BEFORE, _NO_SPACE_AFTER = set(",.;:?!)]%"), set("([")


def _words(text: str) -> Sequence[str]:
    return _WORD.findall(text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").lower())


def _text(words: Iterable[str]) -> str:
    found: list[str] = []
    last = EOS
    for word in words:
        ends = word == EOS
        attached = ends or last == EOS or last in _NO_SPACE_AFTER or word in _NO_SPACE_BEFORE or word[0] == "'"
        found.append("\n" if ends else word if attached else f" {word}")
        last = word
    return "".join(found)


PLAIN = Units("word", _words, EOS, None, _text)
"""Words, endings such as 's, and single punctuation marks of plain text, in lower case. A line ends with <eos>."""


def speeches(words: int, tokens: int) -> Corpus:
    """Read the beginning of the English training text, and the two texts that were held out by date.

    Args:
        words: the size of the vocabulary, with <eos> and <unk>; the commonest words of the training text.
        tokens: the number of words of the training text that are used, from its start, each <eos> counted.
    """
    if words < 3:
        raise ValueError(f"words={words}: must be at least 3")
    texts = {part: _read(stem) for part, stem in _PARTS.items()}
    if not 1 <= tokens <= len(texts["train"]):
        raise ValueError(f"tokens={tokens}: must be 1 to {len(texts['train']):,}, the words of the training text")
    train = texts["train"][:tokens]
    counts = collections.Counter(train)
    counts.pop(EOS, None)
    vocabulary = Vocabulary([EOS, UNKNOWN, *(word for word, _ in counts.most_common(words - 2))])
    return Corpus(PLAIN, vocabulary, *(_numbers(text, vocabulary) for text in (train, texts["valid"], texts["test"])))


def _read(stem: str) -> list[str]:
    path = text_path("europarl", stem, "en")
    if path is None:
        find("europarl")  # raises an error that says how to get the data
        raise FileNotFoundError(f"{stem}.en is missing from the data set 'europarl'")
    return [word for line in lines(path) for word in (*_words(line), EOS)]


def _numbers(text: Sequence[str], vocabulary: Vocabulary) -> Tensor:
    unknown = vocabulary.number[UNKNOWN]
    numbers = array.array("q", (vocabulary.number.get(word, unknown) for word in text))
    return torch.frombuffer(numbers, dtype=torch.int64).clone()
