"""What a loop uses at every step, as one node of autograd's graph: its gradient is asked for when all uses are through.

The uses send no gradient this way; each leaves what it has in a shared place, and the anchor takes it from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Left", "Pile", "anchored"]


class Left(Protocol):
    """What the uses have left during a backward pass."""

    def gradients(self, needed: Sequence[bool]) -> tuple[Tensor | None, ...]:
        """Of the anchored tensor and of those beside it, as far as they are needed; None where nothing was left."""
        ...


class Pile:
    """What uses leave one after the other during a backward pass."""

    def __init__(self) -> None:
        self._left: list[tuple[int, tuple[Tensor, ...]]] = []

    def leave(self, *tensors: Tensor) -> None:
        """Of one use."""
        self._left.append((torch._C._current_graph_task_id(), tensors))

    def take(self) -> list[tuple[Tensor, ...]]:
        """Of all uses of this pass. One that did not ask for the gradient has left something too; that goes."""
        now = torch._C._current_graph_task_id()
        left = [tensors for task, tensors in self._left if task == now]
        self._left.clear()
        return left


def anchored(left: Left, tensor: Tensor, *beside: Tensor | None) -> Tensor:
    """The tensor, for uses that leave its gradient, and those of the tensors beside it, in `left`.

    A use is a function of autograd that takes what is returned here as an argument and has None for its gradient.
    """
    anchor = _Anchor.apply(left, tensor, *beside)
    assert isinstance(anchor, Tensor)
    return anchor


class _Anchor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Left, tensor: Tensor, *beside: Tensor | None) -> Tensor:
        ctx.left = left
        ctx.set_materialize_grads(False)  # none comes this way
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *_: None
    ) -> tuple[Tensor | None, ...]:
        return None, *ctx.left.gradients(ctx.needs_input_grad[1:])
