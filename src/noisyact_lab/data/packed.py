"""A parallel corpus as word numbers, stored in a compressed file of NumPy arrays."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from noisyact_lab.data.store import locked
from noisyact_lab.data.text import EOS, UNKNOWN, Vocabulary

__all__ = ["LANGUAGES", "PARTS", "PackedCorpus", "Pairs", "Sentences", "numbers_of"]

LANGUAGES = ("en", "fr")
"""The source language and the target language."""
PARTS = ("train", "valid", "test")
_END = 0
"""The number of <eos> in every packed vocabulary. The number of <unk> is 1."""


def numbers_of(words: Sequence[str], vocabulary: Vocabulary) -> list[int]:
    """Return the numbers of the words, followed by <eos>. Words that are not in the vocabulary become <unk>.

    >>> numbers_of(["a", "cat"], Vocabulary([EOS, UNKNOWN, "a"]))
    [2, 1, 0]
    """
    return [*(vocabulary.number.get(word, vocabulary.number[UNKNOWN]) for word in words), vocabulary.number[EOS]]


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Sentences as one sequence of word numbers, in which each sentence ends with <eos>.

    >>> sentences = Sentences.flat(torch.tensor([5, 6, 0, 0, 7, 0]), torch.tensor([3, 1, 2]))
    >>> sentences.padded(torch.tensor([2, 0]), 4)
    tensor([[7, 5],
            [0, 6],
            [0, 0],
            [0, 0]])
    """

    numbers: Tensor
    """The word numbers of all sentences, int32."""
    starts: Tensor
    """The index in `numbers` at which each sentence begins, int64."""
    lengths: Tensor
    """The length of each sentence including its <eos>, int64."""

    @classmethod
    def flat(cls, numbers: Tensor, lengths: Tensor) -> Sentences:
        """Create sentences from the word numbers of all of them and their lengths."""
        return cls(numbers, lengths.cumsum(0) - lengths, lengths)

    def __len__(self) -> int:
        return len(self.starts)

    def padded(self, rows: Tensor, length: int) -> Tensor:
        """Return the sentences `rows` as columns of an int64 tensor [length, rows], padded with <eos>."""
        places = torch.arange(length, device=rows.device)[:, None]
        inside = places < self.lengths[rows]
        found = self.numbers[torch.where(inside, self.starts[rows] + places, 0)]
        return torch.where(inside, found.long(), _END)

    def to(self, device: torch.device) -> Sentences:
        """Return a copy on a device."""
        return Sentences(self.numbers.to(device), self.starts.to(device), self.lengths.to(device))


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Sentences and their translations. The lists of text are empty for the training part."""

    source: Sentences
    target: Sentences
    source_text: list[str]
    target_text: list[str]
    source_words: list[str]
    """The tokenised text of each sentence, with a space between words. No word is replaced by <unk>."""
    target_words: list[str]

    def __len__(self) -> int:
        return len(self.source)

    def to(self, device: torch.device) -> Pairs:
        """Return a copy with the word numbers on a device."""
        return dataclasses.replace(self, source=self.source.to(device), target=self.target.to(device))


@dataclasses.dataclass(frozen=True)
class PackedCorpus:
    """A corpus for translation. `about` records the files and the tokeniser it was made with."""

    source: Vocabulary
    target: Vocabulary
    train: Pairs
    valid: Pairs
    test: Pairs
    about: dict[str, Any]

    @functools.cached_property
    def words_sha256(self) -> str:
        """The checksum of both vocabularies. A model can only be used with the vocabularies it was trained with."""
        symbols = "\n".join([*self.source.symbols, "", *self.target.symbols])
        return hashlib.sha256(symbols.encode()).hexdigest()

    def write(self, path: Path) -> None:
        """Write the corpus to a file. An interrupted write leaves no file of this name."""
        import numpy as np

        arrays: dict[str, Any] = {"about": _bytes(json.dumps(self.about))}
        for side, vocabulary in (("source", self.source), ("target", self.target)):
            arrays[f"{side}.words"] = _bytes("\n".join(vocabulary.symbols))
            kind = np.uint16 if len(vocabulary) <= 2**16 else np.int32
            for part in PARTS:
                pairs = getattr(self, part)
                sentences: Sentences = getattr(pairs, side)
                arrays[f"{part}.{side}.numbers"] = sentences.numbers.numpy().astype(kind)
                arrays[f"{part}.{side}.lengths"] = sentences.lengths.numpy().astype(np.int32)
                for form in ("text", "words"):
                    arrays[f"{part}.{side}.{form}"] = _bytes("\n".join(getattr(pairs, f"{side}_{form}")))
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)
        with locked(path.parent):
            temporary = path.with_suffix(".part")
            temporary.write_bytes(content.getvalue())
            temporary.replace(path)

    @classmethod
    def read(cls, path: Path) -> PackedCorpus:
        """Read a file written by :meth:`write`. Raises ValueError for a damaged file."""
        import numpy as np

        try:
            with path.open("rb") as file, np.load(file) as arrays:  # given a path, NumPy leaves an invalid file open
                source, target = (
                    Vocabulary(_text(arrays[f"{side}.words"]).split("\n")) for side in ("source", "target")
                )
                train, valid, test = (_pairs(arrays, part) for part in PARTS)
                return cls(source, target, train, valid, test, json.loads(_text(arrays["about"])))
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} is not a valid packed corpus ({error}); remove it") from None


def _pairs(arrays: Any, part: str) -> Pairs:
    sentences = [
        Sentences.flat(
            torch.from_numpy(arrays[f"{part}.{side}.numbers"].astype("int32")),
            torch.from_numpy(arrays[f"{part}.{side}.lengths"].astype("int64")),
        )
        for side in ("source", "target")
    ]
    texts = [_text(arrays[f"{part}.{side}.{form}"]) for form in ("text", "words") for side in ("source", "target")]
    return Pairs(sentences[0], sentences[1], *(text.split("\n") if text else [] for text in texts))


def _bytes(text: str) -> Any:
    import numpy as np

    return np.frombuffer(text.encode(), dtype=np.uint8)


def _text(array: Any) -> str:
    return array.tobytes().decode()
