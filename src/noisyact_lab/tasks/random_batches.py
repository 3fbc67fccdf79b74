"""Random batches of several updates, drawn at once and brought to the device in one copy."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Draws"]

_AHEAD = 50


class Draws:
    """What a task draws at random for each update, by a generator on the CPU, so that all devices see the same.

    The draws never go past the next evaluation: a checkpoint is made there, and the generator must then be where the
    updates are.

    Args:
        draw: the draws of the updates from the first to before the last, [updates, ...], or of fewer, but of one at
            least. It is asked for all updates in order.
        updates: in all.
        evaluate_every: so many of them.
        device: of the batches.

    >>> generator = torch.Generator().manual_seed(0)
    >>> draws = Draws(lambda first, last: torch.randint(9, (last - first, 2), generator=generator), 9, 3, "cpu")
    >>> draws.at(0), draws.at(1)
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
