"""Text for language models: the Penn Treebank as numbers of words or of characters.

Files are plain or compressed (.gz, .xz). Whatever is wrong with one is named with its line: a file that ends within a
line or has too few of them, bytes that are no text, a word in validation or test that training does not have.
"""

from __future__ import annotations

import array
import dataclasses
import gzip
import hashlib
import itertools
import lzma
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from noisyact_lab.data.catalog import dataset
from noisyact_lab.data.locate import file_in, find

__all__ = ["CHARACTERS", "EOS", "UNKNOWN", "WORDS", "Corpus", "Units", "Vocabulary", "lines", "penn_treebank", "read"]

EOS, UNKNOWN = "<eos>", "<unk>"
_PARTS = {"train": 42_068, "valid": 3_370, "test": 3_761}
"""The Treebank's parts and their lines."""


@dataclasses.dataclass(frozen=True)
class Units:
    """What a text is taken to consist of.

    Args:
        name: of one.
        of: the units of a piece of text without a line's end.
        end: the unit that ends a line.
        space: the unit between words, if there is one.
        text: units put together again.
    """

    name: str
    of: Callable[[str], Sequence[str]]
    end: str
    space: str | None
    text: Callable[[Iterable[str]], str]

    def ends_word(self, unit: str) -> bool:
        """Whether a word is complete with this unit.

        >>> [unit for unit in "a_word\\n" if CHARACTERS.ends_word(unit)], WORDS.ends_word("word")
        (['_', '\\n'], True)
        """
        return self.space is None or unit in (self.space, self.end)


def _joined_words(units: Iterable[str]) -> str:
    return " ".join("\n" if unit == EOS else unit for unit in units).replace("\n ", "\n").replace(" \n", "\n")


def _joined_characters(units: Iterable[str]) -> str:
    return "".join(units).replace("_", " ")


WORDS = Units("word", str.split, EOS, None, _joined_words)
"""Words between spaces, a line ended by <eos>."""
CHARACTERS = Units("character", lambda text: text.strip().replace(" ", "_"), "\n", "_", _joined_characters)
"""Characters, _ for a space, a line ended by a newline; <unk> is five characters like any other word."""


class Vocabulary:
    """The different symbols of a text, numbered.

    >>> vocabulary = Vocabulary(["the", "cat", "<eos>"])
    >>> len(vocabulary), vocabulary.number["cat"], vocabulary.symbols[2]
    (3, 1, '<eos>')
    """

    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = tuple(symbols)
        self.number = {symbol: number for number, symbol in enumerate(self.symbols)}
        if len(self.number) != len(self.symbols):
            raise ValueError(f"a symbol is there twice among {len(self.symbols)}")

    def __len__(self) -> int:
        return len(self.symbols)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text in three parts, each one sequence of the numbers of its units, int64."""

    units: Units
    vocabulary: Vocabulary
    train: Tensor
    valid: Tensor
    test: Tensor

    def limited(self, size: int) -> Corpus:
        """The same text with the `size` commonest symbols of its training part; the others become <unk>.

        The end of a line is always kept; of symbols that are as common, the one that comes first.
        """
        if UNKNOWN not in self.vocabulary.number:
            raise ValueError(f"a vocabulary of {self.units.name}s without {UNKNOWN} cannot be limited to {size:,}")
        always = [self.vocabulary.number[symbol] for symbol in (UNKNOWN, self.units.end)]
        if not len(always) <= size <= len(self.vocabulary):
            raise ValueError(f"vocabulary={size}: must be {len(always)} to {len(self.vocabulary):,}")
        counts = torch.bincount(self.train, minlength=len(self.vocabulary))
        counts[always] = len(self.train) + 1
        kept = counts.argsort(descending=True, stable=True)[:size].sort().values
        renumbered = torch.full((len(self.vocabulary),), int((kept == always[0]).nonzero()))
        renumbered[kept] = torch.arange(size)
        vocabulary = Vocabulary(self.vocabulary.symbols[number] for number in kept.tolist())
        return Corpus(self.units, vocabulary, *(renumbered[part] for part in (self.train, self.valid, self.test)))


def lines(path: Path) -> list[str]:
    """The lines of a text in UTF-8, plain or compressed (.gz, .xz), each with its newline.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "text.gz"
    ...     _ = path.write_bytes(gzip.compress("un café\\nau lait\\n".encode()))
    ...     lines(path)
    ['un café\\n', 'au lait\\n']
    """
    opened = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    found: list[str] = []
    try:
        with opened(path, "rb") as stream:
            found.extend(line.decode("utf-8") for line in stream)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, line {len(found) + 1}: not UTF-8: {error.reason} at its byte {error.start}"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise ValueError(f"{path}: not a whole {path.suffix} file, after line {len(found)}: {error}") from None
    if not found:
        raise ValueError(f"{path}: is empty")
    if not found[-1].endswith("\n"):
        raise ValueError(f"{path}, line {len(found)}: the file ends within it, without a newline; is the rest missing?")
    return found


def read(paths: dict[str, Path], units: Units) -> Corpus:
    """A corpus from the files of its parts "train", "valid" and "test"; the training text has all symbols there are."""
    texts = {part: lines(path) for part, path in paths.items()}
    return _corpus(paths, texts, units)


def penn_treebank(units: Units, verified: bool = True) -> Corpus:
    """The Penn Treebank, word level in Mikolov's preparation, as words or as the characters of the same files.

    Args:
        units: :data:`WORDS` or :data:`CHARACTERS`.
        verified: the files must be the Treebank's own, by their lines and checksums; else any text of that form does.
    """
    folder = find("ptb")
    files = {file.name: file for file in dataset("ptb").files}
    paths, texts = {}, {}
    for part, count in _PARTS.items():
        file = files[f"ptb.{part}.txt"]
        path = file_in(folder, file)
        assert path is not None  # find() has seen it
        paths[part], texts[part] = path, lines(path)
        if not verified:
            continue
        if len(texts[part]) != count:
            raise ValueError(f"{path}: ends after line {len(texts[part]):,}, the Treebank's after line {count:,}")
        sha256 = hashlib.sha256("".join(texts[part]).encode()).hexdigest()
        if sha256 != file.sha256:
            raise ValueError(f"{path}: not the Treebank's: its text has sha256 {sha256}, not {file.sha256}")
    return _corpus(paths, texts, units)


def _corpus(paths: dict[str, Path], texts: dict[str, list[str]], units: Units) -> Corpus:
    symbols = itertools.chain.from_iterable(map(units.of, texts["train"]))
    vocabulary = Vocabulary(dict.fromkeys(itertools.chain([units.end], symbols)))
    parts = [_numbers(paths[part], texts[part], units, vocabulary, paths["train"]) for part in _PARTS]
    return Corpus(units, vocabulary, *parts)


def _numbers(path: Path, text: list[str], units: Units, vocabulary: Vocabulary, train: Path) -> Tensor:
    number, numbers = vocabulary.number, array.array("q")
    for index, line in enumerate(text):
        symbols = units.of(line)
        try:
            numbers.extend([number[symbol] for symbol in symbols])
        except KeyError as error:
            raise ValueError(
                f"{path}, line {index + 1}: the {units.name} {error.args[0]!r} is not in {train}"
            ) from None
        numbers.append(number[units.end])
    return torch.frombuffer(numbers, dtype=torch.int64).clone()
