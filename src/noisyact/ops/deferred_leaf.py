"""A single autograd node for a tensor that a loop uses at every step.

The uses of the tensor send no gradient along the graph. Each use records its contribution in a shared object. Autograd
runs the node after all uses, and the node computes the gradient from the contributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Contributions", "Deferred", "deferred_leaf"]


class Deferred(Protocol):
    """An object that computes gradients after all uses of a tensor."""

    def gradients(self, needed: Sequence[bool]) -> tuple[Tensor | None, ...]:
        """The gradients of the leaf and of the tensors beside it; None without contributions."""
        ...


class Contributions:
    """The contributions that the uses of a tensor record during a backward pass."""

    def __init__(self) -> None:
        self._found: list[tuple[int, tuple[Tensor, ...]]] = []

    def add(self, *tensors: Tensor) -> None:
        """Record the contribution of one use."""
        self._found.append((torch._C._current_graph_task_id(), tensors))

    def take(self) -> list[tuple[Tensor, ...]]:
        """Remove all contributions and return those to the current backward pass."""
        now = torch._C._current_graph_task_id()
        found = [tensors for task, tensors in self._found if task == now]
        self._found.clear()
        return found


def deferred_leaf(deferred: Deferred, tensor: Tensor, *beside: Tensor | None) -> Tensor:
    """Return a view of the tensor whose gradient, and those of the tensors beside it, `deferred` computes.

    A use is an autograd function that takes the returned tensor as an argument and returns None as its gradient.
    """
    return _Leaf.apply(deferred, tensor, *beside)  # pyright: ignore[reportReturnType]


class _Leaf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, deferred: Deferred, tensor: Tensor, *beside: Tensor | None) -> Tensor:
        ctx.deferred = deferred
        ctx.set_materialize_grads(False)  # the uses send no gradients
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *_: None
    ) -> tuple[Tensor | None, ...]:
        return None, *ctx.deferred.gradients(ctx.needs_input_grad[1:])
