"""The learning rate of an update under a schedule."""

from __future__ import annotations

__all__ = ["warmed_up_and_decayed"]


def warmed_up_and_decayed(update: int, updates: int, warmup: int) -> float:
    """The factor of the rate: it grows in proportion to the update for `warmup` updates, then falls linearly to 0.

    ``min((update + 1) / (warmup + 1), (updates - update) / (updates - warmup))``: 1 at update `warmup`, and 0 after the
    last.

    >>> [warmed_up_and_decayed(update, 6, 2) for update in range(6)]
    [0.3333333333333333, 0.6666666666666666, 1.0, 0.75, 0.5, 0.25]
    """
    if not 0 <= warmup < updates:
        raise ValueError(f"warmup={warmup}: must be 0 or more and less than the {updates:,} updates of the run")
    return min((update + 1) / (warmup + 1), (updates - update) / (updates - warmup))
