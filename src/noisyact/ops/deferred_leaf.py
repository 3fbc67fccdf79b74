"""A tensor that a loop uses at every step, as one node of autograd's graph.

The uses of the tensor send no gradient along the graph. Each of them records its contribution in a shared place, and
the node, which autograd runs after all uses, computes the gradient from the contributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Contributions", "Deferred", "deferred_leaf"]


class Deferred(Protocol):
    """Gradients that are computed after all uses of a tensor."""

    def gradients(self, needed: Sequence[bool]) -> tuple[Tensor | None, ...]:
        """The gradients of the leaf and of the tensors beside it; None where no use contributed anything."""
        ...


class Contributions:
    """What the uses of a tensor record, one after the other, during a backward pass."""

    def __init__(self) -> None:
        self._found: list[tuple[int, tuple[Tensor, ...]]] = []

    def add(self, *tensors: Tensor) -> None:
        """Record the contribution of one use."""
        self._found.append((torch._C._current_graph_task_id(), tensors))

    def take(self) -> list[tuple[Tensor, ...]]:
        """Remove and return the contributions to this pass; those to a pass that did not need them are dropped."""
        now = torch._C._current_graph_task_id()
        found = [tensors for task, tensors in self._found if task == now]
        self._found.clear()
        return found


def deferred_leaf(deferred: Deferred, tensor: Tensor, *beside: Tensor | None) -> Tensor:
    """Return the tensor for uses that record its gradient, and those of the tensors beside it, in `deferred`.

    A use is a function of autograd that takes the returned tensor as an argument and gives None as its gradient.
    """
    return _Leaf.apply(deferred, tensor, *beside)  # pyright: ignore[reportReturnType]


class _Leaf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, deferred: Deferred, tensor: Tensor, *beside: Tensor | None) -> Tensor:
        ctx.deferred = deferred
        ctx.set_materialize_grads(False)  # the uses send none
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *_: None
    ) -> tuple[Tensor | None, ...]:
        return None, *ctx.deferred.gradients(ctx.needs_input_grad[1:])
