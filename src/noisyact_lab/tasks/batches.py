"""The batches of a run: drawn from a generator that a checkpoint keeps, or epoch by epoch from the seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

__all__ = ["EpochBatches", "RandomBatches"]

_AHEAD = 50
"""The most updates whose batches are drawn at once."""
B = TypeVar("B")


class RandomBatches:
    """Batches from a generator on the CPU, so that all devices see the same; several are drawn and copied at once.

    The draws never go past the next evaluation: a checkpoint is made there, and the generator must then be where the
    updates are.

    Args:
        draw: the batches of the updates from the first to before the last, [updates, ...], or of fewer, but of one at
            least. It is asked for all updates in order.
        updates: how many there are.
        evaluate_every: the number of updates from one evaluation to the next.
        device: of the batches.

    >>> generator = torch.Generator().manual_seed(0)
    >>> draw = lambda first, last: torch.randint(9, (last - first, 2), generator=generator)
    >>> batches = RandomBatches(draw, 9, 3, "cpu")
    >>> batches.at(0), batches.at(1)
    (tensor([8, 0]), tensor([2, 6]))
    """

    def __init__(
        self, draw: Callable[[int, int], Tensor], updates: int, evaluate_every: int, device: torch.device | str
    ) -> None:
        self._draw, self._updates, self._every, self._device = draw, updates, evaluate_every, torch.device(device)
        self._first, self._batches = 0, torch.empty(0)

    def at(self, index: int) -> Tensor:
        """The batch of an update."""
        if not self._first <= index < self._first + len(self._batches):
            evaluation = min((index // self._every + 1) * self._every, self._updates)
            batches = self._draw(index, min(index + _AHEAD, evaluation))
            if self._device.type == "cuda":  # from pinned memory the host does not wait for the copy
                batches = batches.pin_memory().to(self._device, non_blocking=True)
            self._first, self._batches = index, batches
        return self._batches[index - self._first]


class EpochBatches(Generic[B]):
    """Batches that are drawn anew for each epoch and follow from seed and epoch, so that a resumed run sees the same.

    Args:
        draw: all batches of an epoch, from the epoch's generator.
        count: the number of batches of an epoch.
        seed: of the first epoch's generator; two runs must not have seeds that differ by less than their epochs.

    >>> batches = EpochBatches(lambda generator: torch.randperm(6, generator=generator).view(3, 2), 3, seed=0)
    >>> batches.at(4)
    tensor([2, 0])
    """

    def __init__(self, draw: Callable[[torch.Generator], Sequence[B] | Tensor], count: int, seed: int) -> None:
        self._draw, self._count, self._seed = draw, count, seed
        self._epoch, self._batches = -1, ()

    def at(self, index: int) -> B:
        """The batch of an update."""
        epoch, place = divmod(index, self._count)
        if self._epoch != epoch:
            self._batches = self._draw(torch.Generator().manual_seed(self._seed + epoch))
            self._epoch = epoch
        return self._batches[place]  # pyright: ignore[reportReturnType]
