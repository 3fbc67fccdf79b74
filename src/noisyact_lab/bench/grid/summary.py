"""What a grid says: the geometric mean of each ratio, every row above 1, and noisy over soft in our own kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from noisyact.text_table import text_table, wrapped
from noisyact_lab.bench.grid.measure import COLUMNS, Row

__all__ = ["NOISE", "geometric_mean", "ratio", "slower", "summary", "table"]

NOISE = 0.05
"""Ratios up to 1 + NOISE may come from the measurement alone."""

_PAIRS = (("noisy", "torch"), ("soft", "torch"), ("noisy", "soft"), ("noisy", "flashrnn"))
_TITLES = {"both_ms": "fwd+bwd", "graph_ms": "as a graph", "inference_ms": "inference", "memory_mib": "memory"}
_LEAST = {"memory_mib": 1.0}
"""A ratio to less than this is left out: less than 1 MiB of memory cannot be measured."""


def ratio(row: Row, column: str, ours: str = "noisy", theirs: str = "torch") -> float | None:
    """One layer's time or memory over another's; None where one was not measured."""
    found = getattr(row, column)
    if ours not in found or theirs not in found or found[theirs] <= _LEAST.get(column, 0.0):
        return None
    return found[ours] / found[theirs]


def geometric_mean(values: Sequence[float]) -> float:
    """The n-th root of the product of n positive numbers.

    >>> geometric_mean([0.5, 2.0])
    1.0
    """
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def summary(rows: Sequence[Row], width: int | None = None) -> str:
    """All of it as text, in lines of at most `width` where one is given.

    The means are over the drawn cases; fixed rows, which are no sample, are only listed.
    """
    drawn, fixed = ([row for row in rows if row.case.fixed == kind] for kind in (False, True))
    parts = [f"{len(drawn)} drawn cases", table(drawn, width)] if drawn else []
    if fixed:
        parts += ["fixed rows", table(fixed, width)]
    if drawn:
        parts += [f"geometric means over {len(drawn)} drawn cases", _means(drawn, width)]
    return "\n".join([*parts, *(wrapped(line, width, "    ") for line in slower(rows))])


def table(rows: Sequence[Row], width: int | None = None) -> str:
    """Every row: our times with noise, torch's, and all ratios."""
    header = ["case", "fwd+bwd", "torch"]
    columns = [(column, *pair) for column in COLUMNS for pair in _PAIRS if _present(rows, column, *pair)]
    header += [f"{ours}/{theirs} {_TITLES[column]}" for column, ours, theirs in columns]
    cells = [
        (
            row.case.name, f"{row.both_ms['noisy']:.2f} ms", f"{row.both_ms['torch']:.2f} ms",
            *(_shown(ratio(row, column, ours, theirs)) for column, ours, theirs in columns),
        )
        for row in rows
    ]  # fmt: skip
    return text_table(header, cells, width, kept=(2,))


def _present(rows: Iterable[Row], column: str, ours: str, theirs: str) -> bool:
    return any(ratio(row, column, ours, theirs) is not None for row in rows)


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _means(rows: Sequence[Row], width: int | None) -> str:
    """Geometric means of each pair and column, over all rows and over those of each cell and dtype."""
    groups: dict[str, Callable[[Row], bool]] = {"all": lambda row: True}
    for cell in dict.fromkeys(row.case.cell for row in rows):
        groups[cell] = lambda row, cell=cell: row.case.cell == cell
    for dtype in dict.fromkeys(row.case.dtype for row in rows):
        groups[dtype] = lambda row, dtype=dtype: row.case.dtype == dtype
    columns = [column for column in COLUMNS if any(_present(rows, column, *pair) for pair in _PAIRS)]
    cells = []
    for ours, theirs in _PAIRS:
        for group, belongs in groups.items():
            chosen = [row for row in rows if belongs(row)]
            found = [[r for row in chosen if (r := ratio(row, column, ours, theirs)) is not None] for column in columns]
            if any(found):
                means = (f"{geometric_mean(values):.3f}" if values else "" for values in found)
                cells.append((f"{ours} / {theirs}", group, str(len(chosen)), *means))
    return text_table(("ratio", "cases", "count", *(_TITLES[column] for column in columns)), cells, width, repeated=3)


def slower(rows: Sequence[Row]) -> list[str]:
    """A line for each ratio to torch above 1, the largest first, and a line that counts them."""
    found = [
        (value, row.case.name, column, ours)
        for row in rows
        for column in COLUMNS
        for ours in ("noisy", "soft")
        if (value := ratio(row, column, ours)) is not None and value > 1.0
    ]
    beyond = sum(value > 1.0 + NOISE for value, *_ in found)
    lines = [
        f"  {value:.2f} {_TITLES[column]}, {ours}, {name}"
        + (f" (within {NOISE:.0%} measurement noise)" if value <= 1.0 + NOISE else "")
        for value, name, column, ours in sorted(found, reverse=True)
    ]
    title = f"{len(found)} ratios to torch are above 1.0, {beyond} of them above {1.0 + NOISE:.2f}"
    return [title + (":" if lines else ""), *lines]
