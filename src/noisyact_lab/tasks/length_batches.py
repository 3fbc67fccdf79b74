"""Batches of sentences of about the same lengths, padded to few lengths: each shape is a CUDA graph of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from noisyact_lab.data.packed import Pairs

__all__ = ["BUCKET", "random_batches", "rounded_up", "sorted_batches"]

BUCKET = 10
"""Words, the end not counted, are padded to multiples of it."""


def rounded_up(lengths: Tensor) -> Tensor:
    """Lengths, the end counted, as they are padded.

    >>> rounded_up(torch.tensor([1, 11, 12, 51]))
    tensor([ 1, 11, 21, 51])
    """
    return (lengths + BUCKET - 2) // BUCKET * BUCKET + 1


def sorted_batches(lengths: Tensor, batch: int) -> list[tuple[Tensor, int]]:
    """Sentences of about the same length together: their rows, and the length to pad them to."""
    order = lengths.argsort(stable=True)
    return [(rows, int(rounded_up(lengths[rows].max()))) for rows in order.split(batch)]


def random_batches(pairs: Pairs, size: int, generator: torch.Generator) -> Tensor:
    """All pairs in random batches of about the same lengths: rows, [batches, size]; what is left over has no part.

    Pairs are shuffled, then ordered by the lengths to which they are padded, cut, and the batches shuffled.
    """
    shuffled = torch.randperm(len(pairs), generator=generator)
    lengths = [rounded_up(side.lengths[shuffled]) for side in (pairs.target, pairs.source)]
    order = (lengths[0] * (int(lengths[1].max()) + 1) + lengths[1]).argsort(stable=True)
    cut = shuffled[order][: len(pairs) // size * size].view(-1, size)
    return cut[torch.randperm(len(cut), generator=generator)]
