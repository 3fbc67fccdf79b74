"""The cases of a grid: drawn with a seed from the whole space, within bounds of work and memory, plus fixed rows."""

from __future__ import annotations

import collections
import dataclasses
import math
import random
from typing import Any

import torch

from noisyact_lab.bench.grid import flashrnn

__all__ = ["DTYPES", "OPTIONS", "Bounds", "Case", "draw", "fixed"]

UNITS, BATCH, STEPS, LAYERS = (8, 4096), (1, 2048), (1, 1000), (1, 4)
"""The smallest and the largest value of each size. All but the number of layers are drawn log-uniformly."""

CELLS = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""The cells and their numbers of gates."""

DTYPES = {"cuda": ("tf32", "float32", "bfloat16", "float16"), "cpu": ("float32", "bfloat16")}
"""The dtypes that are drawn on a device. tf32 is float32 with TF32 products; float32 is without."""

OPTIONS = ("", "bidirectional", "packed", "projection", "dropout", "no bias", "flashrnn")
"""What a case may have beside its sizes. Drawn cases have none. A case with flashrnn also measures FlashRNN's LSTM."""

_BYTES = {"tf32": 4, "float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}


@dataclasses.dataclass(frozen=True)
class Case:
    """One layer and its sizes. The input has as many features as there are units.

    >>> case = Case("LSTM", 20, 5, 200, 2, "float32")
    >>> case.name
    'LSTM T=20 B=5 H=200 layers=2 float32'
    >>> case.gflop
    0.384
    """

    cell: str
    steps: int
    batch: int
    hidden: int
    layers: int
    dtype: str
    option: str = ""

    def __post_init__(self) -> None:
        allowed: dict[str, Any] = {"cell": CELLS, "dtype": _BYTES, "option": OPTIONS}
        for field, values in allowed.items():
            if getattr(self, field) not in values:
                raise ValueError(f"{field}={getattr(self, field)!r}: allowed are {', '.join(map(repr, values))}")
        for field in ("steps", "batch", "hidden", "layers"):
            size = getattr(self, field)
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"{field}={size!r}: must be a whole number of at least 1")

    @property
    def name(self) -> str:
        """All of the case in one line."""
        sizes = f"{self.cell} T={self.steps} B={self.batch} H={self.hidden} layers={self.layers} {self.dtype}"
        return f"{sizes} {self.option}".rstrip()

    @property
    def fixed(self) -> bool:
        """Whether the case is a fixed row: no drawn case has an option or is float64."""
        return bool(self.option) or self.dtype == "float64"

    @property
    def proj_size(self) -> int:
        """The size of the projection; 0 without one."""
        return max(1, self.hidden // 2) if self.option == "projection" else 0

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the tensors."""
        return getattr(torch, {"tf32": "float32"}.get(self.dtype, self.dtype))

    @property
    def gflop(self) -> float:
        """The work of the products forward and backward, which is three times that of forward alone."""
        directions = 2 if self.option == "bidirectional" else 1
        gates, out = CELLS[self.cell] * self.hidden, self.proj_size or self.hidden
        inputs = self.hidden + (self.layers - 1) * directions * out  # of all layers
        weights = directions * (gates * (inputs + self.layers * out) + self.layers * self.proj_size * self.hidden)
        return 3 * 2 * self.steps * self.batch * weights / 1e9

    @property
    def gib(self) -> float:
        """An estimate of the memory of one layer: weights with gradients and a packed copy, and what backward keeps."""
        directions = 2 if self.option == "bidirectional" else 1
        gates = CELLS[self.cell]
        weights = 3 * self.layers * directions * gates * 2 * self.hidden**2
        kept = self.steps * self.batch * self.hidden * (3 + self.layers * directions * (2 * gates + 3))
        return (weights + kept) * _BYTES[self.dtype] / 2**30


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The most work and memory that a drawn case may need."""

    gflop: float
    gib: float

    def broken_by(self, case: Case) -> str | None:
        """The rule that rejects a case; None for a case within the bounds."""
        if case.gflop > self.gflop:
            return f"more work than {self.gflop:g} GFLOP"
        if case.gib > self.gib:
            return f"more memory than {self.gib:g} GiB"
        return None


def draw(count: int, seed: int, device: str, bounds: Bounds) -> tuple[list[Case], dict[str, int]]:
    """Draw cases until `count` of them are within the bounds. Also returns how many each rule rejected.

    >>> cases, rejected = draw(3, 0, "cpu", Bounds(gflop=1.0, gib=1.0))
    >>> [case.name for case in cases] == [case.name for case in draw(3, 0, "cpu", Bounds(1.0, 1.0))[0]]
    True
    """
    generator, rejected = random.Random(seed), collections.Counter()
    found: dict[Case, None] = {}  # in the order of the draw
    while len(found) < count:
        case = _drawn(generator, device)
        rule = bounds.broken_by(case)
        if rule is not None:
            rejected[rule] += 1
            if rejected.total() > 10_000 * count:
                raise ValueError(f"{bounds}: none of {rejected.total():,} cases is within these bounds; raise them")
        else:
            found[case] = None
    return list(found), dict(rejected)


def _drawn(generator: random.Random, device: str) -> Case:
    cell, dtype = generator.choice(list(CELLS)), generator.choice(DTYPES[device])
    hidden, batch, steps = (_log_uniform(generator, *limits) for limits in (UNITS, BATCH, STEPS))
    return Case(cell, steps, batch, hidden, generator.randint(*LAYERS), dtype)


def _log_uniform(generator: random.Random, low: int, high: int) -> int:
    """A whole number whose logarithm is uniform. Both limits are possible."""
    return min(high, max(low, round(math.exp(generator.uniform(math.log(low - 0.5), math.log(high + 0.5))))))


def fixed(device: str) -> list[Case]:
    """The rows for what is not drawn: each option, and float64, for LSTM and GRU. A GRU has no projection."""
    dtype, sizes = DTYPES[device][0], (50, 32, 128, 2)
    rows = [Case(cell, *sizes, dtype, option) for cell in ("LSTM", "GRU") for option in OPTIONS[1:-1]]
    rows += [Case(cell, *sizes, "float64") for cell in ("LSTM", "GRU")]
    if device == "cuda" and flashrnn.installed():
        rows.append(Case("LSTM", 200, 64, 512, 1, "bfloat16", "flashrnn"))
    return [row for row in rows if (row.cell, row.option) != ("GRU", "projection")]
