"""The scores of additive attention with gradients, for keys that a recurrence uses at every step.

Autograd would compute the gradient of all keys at each step and add it to the sum. Here the backward kernel of each
step adds its part to one tensor, and only the query gets a gradient at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from noisyact.ops.attention import triton
from noisyact.ops.deferred_leaf import deferred_leaf

__all__ = ["DeferredKeys"]


class DeferredKeys:
    """Keys whose gradient is summed over all queries, together with the gradients of v and p.

    Args:
        keys: [batch, places, size].
        weight: v, [1, size].
        p: the p of the noisy function, or None.
    """

    def __init__(self, keys: Tensor, weight: Tensor, p: Tensor | None) -> None:
        self._held = keys, weight, p  # keeps their ids unique, which the caller uses as a key
        sums = _Sums(p)
        self._arguments = (
            deferred_leaf(sums, keys, weight, p), weight.detach()[0], None if p is None else p.detach(), sums,
        )  # fmt: skip

    def scores(self, query: Tensor, noise: triton.Noise) -> Tensor:
        """The scores, [batch, width, places], of a query, [batch, width, size]. noise.p must be this object's p."""
        return _Scores.apply(query, *self._arguments, noise)  # pyright: ignore[reportReturnType]


class _Sums:
    """The gradients of keys, v and p, summed during a backward pass."""

    def __init__(self, p: Tensor | None) -> None:
        self._p_shape = () if p is None else p.shape
        self._sums: triton.Sums | None = None
        self._task = -1

    def of_this_pass(self, keys: Tensor, p: Tensor | None) -> triton.Sums:
        """The sums of the current backward pass, which start from zero."""
        now = torch._C._current_graph_task_id()
        if self._sums is None or self._task != now:  # sums of an earlier pass remain if it did not need the gradients
            self._sums, self._task = triton.sums_for(keys, p), now
        return self._sums

    def gradients(self, needed: Sequence[bool]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The gradients of keys, v and p."""
        sums = self._sums if self._task == torch._C._current_graph_task_id() else None
        self._sums = None
        if sums is None:
            return None, None, None
        gp = None if sums.p is None else sums.p.sum().view(self._p_shape)
        return sums.keys, sums.v.sum(dim=0, keepdim=True), gp


class _Scores(torch.autograd.Function):
    """The scores of one query."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys: Tensor, v: Tensor, p: Tensor | None, sums: _Sums, noise: triton.Noise
    ) -> Tensor:
        ctx.save_for_backward(query, keys, v, p, noise.scale, noise.seed)
        ctx.sums, ctx.function = sums, noise.function
        return triton.scores(keys, query, v, p, noise.scale, noise.seed, noise.function)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, None, None, None, None, None]:
        query, keys, v, p, scale, seed = ctx.saved_tensors
        sums = ctx.sums.of_this_pass(keys, p)
        gq = triton.add_gradients(gradients[0], keys, query, v, p, scale, seed, ctx.function, sums)
        return gq, None, None, None, None, None
