"""Short programs and what they print: the data of Learning to Execute (Zaremba and Sutskever, 2014).

A program applies one operation after the other, each to the result of the one before and to fresh numbers, and prints
the last result. Its difficulty is a pair: the *length*, decimal digits of its numbers, and the *nesting*, how many
operations. As text for a network, ``#`` ends a line, ``@`` ends the program, then comes what it prints and a full stop:

    f=(8794-2);#print((f+85))@8877.

The programs are those of the code the paper used (its version of November 2014): six operations, equally likely, the
same ranges, and the same habit of drawing the difficulty anew for every number where a curriculum mixes difficulties.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from noisyact_lab.engine.experiment import UnknownName

__all__ = [
    "CURRICULA", "IGNORED", "SYMBOLS", "Columns", "Difficulty", "Writer", "curriculum", "decoded", "programs"
]  # fmt: skip

SYMBOLS = "0123456789abcdefghijlnoprstx()+-*=;:<> #@."
IGNORED = 255
"""In place of a next symbol that need not be predicted: it is part of a program."""

_LETTERS = "abcdefghij"
_PARTS = ("train", "valid", "test")
_CODES = torch.full((256,), IGNORED, dtype=torch.uint8)
_CODES[torch.tensor(list(SYMBOLS.encode()))] = torch.arange(len(SYMBOLS), dtype=torch.uint8)


class Difficulty(NamedTuple):
    """How hard programs are."""

    length: int
    """Decimal digits: numbers are from 1 to 10 ** length, factors and loops from 1 to 4 * length."""
    nesting: int
    """Operations."""

    def checked(self, what: str) -> Difficulty:
        """Itself, if there are such programs: every operation may need another letter."""
        if self.length < 1 or not 1 <= self.nesting <= len(_LETTERS):
            raise ValueError(
                f"{what}: length {self.length}, nesting {self.nesting}: allowed are lengths from 1 and nestings from 1 "
                f"to {len(_LETTERS)}"
            )
        return self


Draw = Callable[[], float]
"""Uniform in [0, 1), as random.Random(seed).random."""


class Writer:
    """Writes programs.

    Args:
        draw: where all chance comes from.
        difficulty: asked anew for the nesting of a program and for each of its numbers.

    >>> writer = Writer(random.Random(5).random, lambda: Difficulty(4, 2))
    >>> writer.program()
    'h=7952;#print(((h-9425) if 291<4657 else 9434))@-1473.'
    """

    def __init__(self, draw: Draw, difficulty: Callable[[], Difficulty]) -> None:
        self._draw, self._difficulty = draw, difficulty
        self._operations = (self._sum, self._product, self._same, self._assigned, self._loop, self._choice)
        self._lines: list[str] = []
        self._free = _LETTERS
        self._last: tuple[str, int] | None = None

    def program(self) -> str:
        """The text of a new program."""
        self._lines, self._free, self._last = [], _LETTERS, None
        for _ in range(self._difficulty().nesting):
            self._last = self._operations[int(self._draw() * 6)]()
        assert self._last is not None
        expression, value = self._last
        return f"{''.join(self._lines)}print({expression})@{value}."

    # An operation returns an expression and its value.

    def _sum(self) -> tuple[str, int]:
        (a, x), (b, y) = self._operands(2)
        return (f"({a}+{b})", x + y) if self._coin() else (f"({a}-{b})", x - y)

    def _product(self) -> tuple[str, int]:
        ((a, x),) = self._operands(1)
        k = self._factor()
        return (f"({a}*{k})" if self._coin() else f"({k}*{a})", x * k)

    def _same(self) -> tuple[str, int]:
        return self._operands(1)[0]

    def _assigned(self) -> tuple[str, int]:
        v = self._letter()
        (a, x), (b, y) = self._operands(2)
        self._lines.append(f"{v}={a};#")
        return (f"({v}+{b})", x + y) if self._coin() else (f"({v}-{b})", x - y)

    def _loop(self) -> tuple[str, int]:
        v = self._letter()
        (a, x), (b, y) = self._operands(2)
        k, sign = self._factor(), "+" if self._coin() else "-"
        self._lines.append(f"{v}={a}#for x in range({k}):{v}{sign}={b}#")
        return v, x + k * y if sign == "+" else x - k * y

    def _choice(self) -> tuple[str, int]:
        (a, x), (b, y), (c, z), (d, w) = self._operands(4)
        sign, chosen = (">", x > y) if self._coin() else ("<", x < y)
        return f"({c} if {a}{sign}{b} else {d})", z if chosen else w

    def _operands(self, count: int) -> list[tuple[str, int]]:
        """The last result at any of the places, fresh numbers at the others."""
        found = [self._number() for _ in range(count - (self._last is not None))]
        if self._last is not None:
            found.insert(int(self._draw() * count), self._last)
        return found

    def _number(self) -> tuple[str, int]:
        value = 1 + int(self._draw() * 10 ** self._difficulty().length)
        return str(value), value

    def _factor(self) -> int:
        return 1 + int(self._draw() * 4 * self._difficulty().length)

    def _letter(self) -> str:
        letter = self._free[int(self._draw() * len(self._free))]
        self._free = self._free.replace(letter, "")
        return letter

    def _coin(self) -> bool:
        return self._draw() < 0.5


def _any(draw: Draw, target: Difficulty) -> Difficulty:
    return Difficulty(1 + int(draw() * target.length), 1 + int(draw() * target.nesting))


CURRICULA: dict[str, Callable[[Draw, Difficulty, Difficulty], Difficulty]] = {
    "baseline": lambda draw, current, target: target,
    "naive": lambda draw, current, target: current,
    "mix": lambda draw, current, target: _any(draw, target),
    "combined": lambda draw, current, target: _any(draw, target) if draw() < 0.2 else current,
}
"""The difficulty to train at, from that reached so far and that aimed at."""


def curriculum(name: str, draw: Draw, current: Difficulty, target: Difficulty) -> Callable[[], Difficulty]:
    """What a :class:`Writer` asks for the difficulty, in a curriculum."""
    if name not in CURRICULA:
        raise UnknownName("curriculum", name, CURRICULA)
    chosen = CURRICULA[name]
    return lambda: chosen(draw, current, target)


def programs(part: str, number: str, name: str, current: Difficulty, target: Difficulty) -> Iterator[str]:
    """Programs without end, of one of three parts that share none: a program's checksum says which it belongs to.

    Args:
        part: "train", "valid" or "test".
        number: the same gives the same programs.
        name: of the curriculum.
        current: the difficulty reached.
        target: the difficulty aimed at.

    >>> next(programs("test", "0", "baseline", Difficulty(1, 1), Difficulty(6, 3)))
    'c=748504#for x in range(17):c+=(933127-735822)#print((265737-c))@-3836952.'
    """
    if part not in _PARTS:
        raise UnknownName("part", part, _PARTS)
    belonging = _PARTS.index(part)
    draw = random.Random(f"{part} {number}").random
    write = Writer(draw, curriculum(name, draw, current, target)).program
    while True:
        text = write()
        if zlib.crc32(text.encode()) % len(_PARTS) == belonging:
            yield text


class Columns:
    """Programs below each other in columns, each column cut where it ends. They are written as they are needed.

    >>> columns = Columns(iter(["print(7)@7.", "print(10)@10."]), 11, 2)
    >>> x, y = columns.packed()
    >>> decoded(x[:, 1])
    'print(10)@1'
    >>> y.T.tolist()[0]
    [255, 255, 255, 255, 255, 255, 255, 255, 7, 41]
    """

    def __init__(self, texts: Iterator[str], rows: int, count: int) -> None:
        self._texts, self._rows, self._count = texts, rows, count
        self._joined = bytearray()

    def write(self, count: int) -> None:
        """Write until there are so many columns."""
        for column in range(len(self._joined) // self._rows + 1, count + 1):
            while len(self._joined) < column * self._rows:
                self._joined += next(self._texts).encode()
            del self._joined[column * self._rows :]

    def packed(self) -> tuple[Tensor, Tensor]:
        """The symbols, uint8 [rows, columns], and for each the next one, uint8 [rows - 1, columns].

        The next one is there where it is to be predicted: what is printed and the full stop. Elsewhere it is IGNORED.
        """
        self.write(self._count)
        x = _CODES[torch.frombuffer(self._joined, dtype=torch.uint8).long()].reshape(self._count, self._rows)
        begun, ended = (x == SYMBOLS.index(symbol) for symbol in "@.")
        within = begun.cumsum(1) > ended.cumsum(1)
        y = torch.where(within[:, :-1], x[:, 1:], IGNORED)
        return x.T.contiguous(), y.T.contiguous()


def decoded(symbols: Tensor) -> str:
    """The text of symbols.

    >>> decoded(torch.tensor([10, 33, 7]))
    'a=7'
    """
    return "".join(SYMBOLS[code] for code in symbols.tolist())
