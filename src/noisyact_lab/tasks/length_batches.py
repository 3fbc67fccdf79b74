"""Batches of sentences of about the same length, padded to few lengths: each shape needs a CUDA graph."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["padded_length", "random_batches", "sorted_batches"]

L = TypeVar("L", int, Tensor)


def padded_length(length: L, multiple: int, ends: int = 0) -> L:
    """The length, or lengths, rounded up to a multiple, and the ends beside it.

    >>> padded_length(9, 4), padded_length(torch.tensor([1, 11, 12, 51]), 10, ends=1)
    (12, tensor([ 1, 11, 21, 51]))
    """
    return (length - ends + multiple - 1) // multiple * multiple + ends


def sorted_batches(lengths: Tensor, size: int) -> list[tuple[Tensor, int]]:
    """All sentences, the shortest first: the rows of each batch, and the length of its longest.

    >>> sorted_batches(torch.tensor([7, 2, 5]), 2)
    [(tensor([1, 2]), 5), (tensor([0]), 7)]
    """
    return [(rows, int(lengths[rows].max())) for rows in lengths.argsort(stable=True).split(size)]


def random_batches(lengths: Tensor, size: int, generator: torch.Generator, *, drop_longest: bool = False) -> Tensor:
    """Sentences in random batches of about the same length, [batches, size]: shuffled, sorted, cut, batches shuffled.

    Args:
        lengths: what the sentences are sorted by.
        size: sentences of a batch.
        generator: on the CPU.
        drop_longest: the sentences that would not fill a batch are the longest ones; else they are random.
    """
    kept = len(lengths) // size * size
    rows = torch.randperm(len(lengths), generator=generator)
    rows = rows if drop_longest else rows[:kept]
    batches = rows[lengths[rows].argsort(stable=True)][:kept].view(-1, size)
    return batches[torch.randperm(len(batches), generator=generator)]
