"""Plain-text tables."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

__all__ = ["terminal_width", "text_table", "wrapped"]

_GAP = "  "
_LEAST = 12
"""Where the last column has less room than this, its wrapped lines begin below the first column instead."""


def terminal_width() -> int | None:
    """The columns of the terminal, or of the variable COLUMNS; None if there is neither, as in a file or a notebook."""
    return shutil.get_terminal_size((0, 0)).columns or None


def text_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    kept: Sequence[int] = (),
    repeated: int = 1,
) -> str:
    """Format a table. Columns are padded to their widest cell and separated by two spaces.

    Args:
        header: the names of the columns.
        rows: the cells of each row.
        width: the maximum line length. If the table is wider, the names are wrapped; columns that still do not fit go
            to another table below, which repeats the first columns; cells that still do not fit are wrapped.
        kept: the indices of columns that must stay next to the preceding column.
        repeated: how many of the first columns name a row, and are repeated.

    >>> print(text_table(("name", "share"), [("tanh", "0.5"), ("gate", "0.25")]))
    name  share
    tanh  0.5
    gate  0.25
    >>> print(text_table(("name", "share of all", "slope"), [("tanh", "0.5", "0.1")], width=14))
    name  share
          of all
    tanh  0.5
    <BLANKLINE>
    name  slope
    tanh  0.1
    """
    columns = [([name], [row[i] for row in rows]) for i, name in enumerate(header)]
    if width is None or _wide(columns) <= width:
        return _block(columns, width)
    columns = [(_narrow(name, cells), cells) for (name,), cells in columns]
    blocks = [columns[:repeated]]
    i = repeated
    while i < len(columns):
        end = next((j for j in range(i + 1, len(columns)) if j not in kept), len(columns))
        if len(blocks[-1]) > repeated and _wide(blocks[-1] + columns[i:end]) > width:
            blocks.append(columns[:repeated])
        blocks[-1] = blocks[-1] + columns[i:end]
        i = end
    return "\n\n".join(_block(block, width) for block in blocks)


def wrapped(text: str, width: int | None, indent: str = "") -> str:
    """Wrap a paragraph to lines of at most `width` and indent all lines but the first. Longer words stay whole.

    >>> print(wrapped("presets smoke, short, paper", 16, "  "))
    presets smoke,
      short, paper
    """
    if width is None:
        return text
    lines = textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


_Column = tuple[list[str], list[str]]


def _wide(columns: Sequence[_Column]) -> int:
    return sum(max(map(len, [*names, *cells])) for names, cells in columns) + len(_GAP) * (len(columns) - 1)


def _narrow(name: str, cells: list[str]) -> list[str]:
    """The name, wrapped to the width of the column, which is that of its widest cell or of the name's longest word."""
    return wrapped(name, max(map(len, ["-", *name.split(), *cells]))).split("\n")


def _block(columns: Sequence[_Column], width: int | None) -> str:
    high = max(len(names) for names, _ in columns)
    padded = []
    for names, cells in columns:
        column = [*names, *[""] * (high - len(names)), *cells]
        padded.append([cell.ljust(max(map(len, column))) for cell in column])
    lines = [_GAP.join(line).rstrip() for line in zip(*padded, strict=True)]
    if width is None:
        return "\n".join(lines)
    begin = sum(len(column[0]) + len(_GAP) for column in padded[:-1])  # of the last column
    indent = " " * (begin if width - begin >= _LEAST else 2 * len(_GAP))
    return "\n".join(line if len(line) <= width else wrapped(line, width, indent) for line in lines)
