"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["table"]


def table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: int | None = None) -> str:
    """A Markdown table.

    Args:
        header: the names of the columns.
        rows: the cells.
        numbers: the index of the first column of numbers, which are aligned to the right; None for no such column.

    >>> print(table(["arm", "ours"], [["NAN", "1.2"], ["a|b", "3"]], numbers=1))
    | arm | ours |
    |---|--:|
    | NAN | 1.2 |
    | a\\|b | 3 |
    """
    rule = ["---" if numbers is None or i < numbers else "--:" for i in range(len(header))]
    lines = [header, *rows]
    shown = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([shown[0], "|" + "|".join(rule) + "|", *shown[1:]])
