"""The summary that noisify, denoisify and accelerate print: what was replaced, what was left, and why."""

from __future__ import annotations

from collections.abc import Sequence

from noisyact.conversion.inventory import Found, rows_of
from noisyact.text_table import terminal_width, text_table

__all__ = ["summary"]


def summary(replaced: Sequence[Found], left: Sequence[Found]) -> str:
    """Format a conversion as a table.

    Args:
        replaced: the replaced modules by their old type; `why` is the new type.
        left: the modules and function calls that the conversion did not replace, with the reason or the place.

    >>> print(summary([Found("rnn", "GRU", why="NoisyGRU")], [Found("", "torch.tanh", "net.py:7")]))
    what      module       type        now, or why not
    replaced  rnn          GRU         NoisyGRU
    left      (the model)  torch.tanh  net.py:7
    """
    rows = rows_of("replaced", replaced) + rows_of("left", left)
    if not rows:
        return "nothing to replace"
    return text_table(("what", "module", "type", "now, or why not"), rows, terminal_width(), kept=(1, 2, 3))
