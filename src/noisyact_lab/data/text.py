"""Text for language models: the Penn Treebank as a sequence of word or character numbers.

Files are plain or compressed (.gz, .xz). Errors name the file and the line: a file that is truncated, text that is not
UTF-8, or a validation or test word that does not occur in the training text.
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
"""The number of lines in each part of the Treebank."""


@dataclasses.dataclass(frozen=True)
class Units:
    """The units that a text is split into.

    Args:
        name: the name of one unit.
        of: splits a line, without its end, into units.
        end: the unit that ends a line.
        space: the unit between words, or None if the units are words.
        text: joins units to text.
    """

    name: str
    of: Callable[[str], Sequence[str]]
    end: str
    space: str | None
    text: Callable[[Iterable[str]], str]

    def ends_word(self, unit: str) -> bool:
        """Whether this unit ends a word.

        >>> [unit for unit in "a_word\\n" if CHARACTERS.ends_word(unit)], WORDS.ends_word("word")
        (['_', '\\n'], True)
        """
        return self.space is None or unit in (self.space, self.end)

    def apart(self, text: str) -> bool:
        """Whether a space belongs between words and this text that follows them.

        >>> [WORDS.apart(text) for text in ("a word", "\\nanother line", "")], CHARACTERS.apart("a")
        ([True, False, False], False)
        """
        if self.space is not None or text.startswith("\n"):
            return False
        return self.text(["x", *self.of(text)[:1]]).startswith("x ")


def _joined_words(units: Iterable[str]) -> str:
    return " ".join("\n" if unit == EOS else unit for unit in units).replace("\n ", "\n").replace(" \n", "\n")


def _joined_characters(units: Iterable[str]) -> str:
    return "".join(units).replace("_", " ")


WORDS = Units("word", str.split, EOS, None, _joined_words)
"""Words separated by spaces. A line ends with <eos>."""
CHARACTERS = Units("character", lambda text: text.strip().replace(" ", "_"), "\n", "_", _joined_characters)
"""Characters, with _ for a space. A line ends with a newline, and <unk> is split into five characters."""


class Vocabulary:
    """The distinct symbols of a text, numbered from 0.

    >>> vocabulary = Vocabulary(["the", "cat", "<eos>"])
    >>> len(vocabulary), vocabulary.number["cat"], vocabulary.symbols[2]
    (3, 1, '<eos>')
    """

    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = tuple(symbols)
        self.number = {symbol: number for number, symbol in enumerate(self.symbols)}
        if len(self.number) != len(self.symbols):
            raise ValueError(f"the {len(self.symbols)} symbols of a vocabulary must be distinct")

    def __len__(self) -> int:
        return len(self.symbols)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text in three parts. Each part is an int64 sequence of the numbers of its units."""

    units: Units
    vocabulary: Vocabulary
    train: Tensor
    valid: Tensor
    test: Tensor

    def limited(self, size: int) -> Corpus:
        """Return the corpus with the `size` most frequent symbols of its training part. The others become <unk>.

        The symbol for the end of a line is always kept. Ties go to the symbol with the lower number.
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
    """Read the lines of a UTF-8 text, plain or compressed (.gz, .xz). Each line keeps its newline.

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
        raise ValueError(f"{path}: not a valid {path.suffix} file, after line {len(found)}: {error}") from None
    if not found:
        raise ValueError(f"{path}: is empty")
    if not found[-1].endswith("\n"):
        raise ValueError(f"{path}, line {len(found)}: the file ends without a newline; is it truncated?")
    return found


def read(paths: dict[str, Path], units: Units) -> Corpus:
    """Read a corpus from its files "train", "valid" and "test". The training text must contain every symbol."""
    texts = {part: lines(path) for part, path in paths.items()}
    return _corpus(paths, texts, units)


def penn_treebank(units: Units, verified: bool = True) -> Corpus:
    """Read the Penn Treebank in Mikolov's word-level preparation, as words or as characters.

    Args:
        units: :data:`WORDS` or :data:`CHARACTERS`.
        verified: whether line counts and checksums must match the Treebank's. Otherwise any text will do.
    """
    folder = find("ptb")
    files = {file.name: file for file in dataset("ptb").files}
    paths, texts = {}, {}
    for part, count in _PARTS.items():
        file = files[f"ptb.{part}.txt"]
        path = file_in(folder, file)
        assert path is not None  # find() has checked that every file exists
        paths[part], texts[part] = path, lines(path)
        if not verified:
            continue
        if len(texts[part]) != count:
            raise ValueError(f"{path}: has {len(texts[part]):,} lines, but the Treebank's file has {count:,}")
        sha256 = hashlib.sha256("".join(texts[part]).encode()).hexdigest()
        if sha256 != file.sha256:
            raise ValueError(f"{path}: not the Treebank's file: the text has sha256 {sha256}, not {file.sha256}")
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
