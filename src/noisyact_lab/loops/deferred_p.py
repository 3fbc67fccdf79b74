"""The p of a noisy function that a recurrence calls at every step: its gradient summed once, for all steps.

At each step a kernel leaves the gradient of p in some parts. Autograd would have them summed, and the sum added to that
of the steps before: two small launches a step, which take a GPU as long as the kernel itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from noisyact_lab.loops.deferred_leaf import Pile, anchored

__all__ = ["P"]


class P:
    """p in the form in which an operation takes it that leaves its gradient in parts."""

    def __init__(self, p: Tensor) -> None:
        self._held = p  # as long as its id is a key
        parts = _Parts(p)
        self.of_use: tuple[Tensor, Callable[[Tensor], None]] = anchored(parts, p), parts.pile.leave


class _Parts:
    """What the uses have left."""

    def __init__(self, p: Tensor) -> None:
        self._shape, self._dtype = p.shape, p.dtype
        self.pile = Pile()

    def gradients(self, needed: Sequence[bool]) -> tuple[Tensor | None]:
        """Of p."""
        parts = [tensor for (tensor,) in self.pile.take()]
        if not parts:
            return (None,)
        return (torch.cat(parts).sum(dim=0).view(self._shape).to(self._dtype),)
