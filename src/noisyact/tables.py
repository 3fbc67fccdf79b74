"""Plain-text tables for what the library prints."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["text_table"]


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell, two spaces between, no trailing space.

    >>> print(text_table(("name", "share"), [("tanh", "0.5"), ("gate", "0.25")]))
    name  share
    tanh  0.5
    gate  0.25
    """
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows])
    return "\n".join(line.rstrip() for line in lines)
