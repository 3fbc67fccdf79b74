"""The keys of an additive attention that a recurrence looks at in every step: their gradient summed where it arises.

Autograd would make the gradient of all keys at each step, and add one to the other. Here each step's backward kernel
adds its part to one tensor, and the query alone has a gradient of its own at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from noisyact.ops.attention import triton
from noisyact_lab.loops.deferred_leaf import anchored
from noisyact_lab.models.additive_attention import Drawn

__all__ = ["Keys"]


class Keys:
    """Keys with the v and p that they are scored with.

    Args:
        keys: [batch, places, size].
        weight: v, [1, size].
        p: of the function, or None.
    """

    def __init__(self, keys: Tensor, weight: Tensor, p: Tensor | None) -> None:
        self._held = keys, weight, p  # as long as their ids are keys of a table
        summed = _Summed(p)
        self._of_use = anchored(summed, keys, weight, p), weight.detach()[0], None if p is None else p.detach(), summed

    def scores(self, query: Tensor, noise: Drawn) -> Tensor:
        """[batch, width, places] of a query, [batch, width, size]; its function has this p."""
        e = _Use.apply(query, *self._of_use, noise)
        assert isinstance(e, Tensor)
        return e


class _Summed:
    """The gradients of keys, v and p, added up during a backward pass."""

    def __init__(self, p: Tensor | None) -> None:
        self._p = () if p is None else p.shape
        self._sums: triton.Sums | None = None
        self._task = -1

    def of(self, keys: Tensor, p: Tensor | None) -> triton.Sums:
        """Those of this pass, which begin with zeros."""
        now = torch._C._current_graph_task_id()
        if self._sums is None or self._task != now:  # a pass that did not ask for them has left some
            self._sums, self._task = triton.sums_for(keys, p), now
        return self._sums

    def gradients(self, needed: Sequence[bool]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Of keys, v and p."""
        sums = self._sums if self._task == torch._C._current_graph_task_id() else None
        self._sums = None
        if sums is None:
            return None, None, None
        return sums.keys, sums.v.sum(dim=0, keepdim=True), None if sums.p is None else sums.p.sum().view(self._p)


class _Use(torch.autograd.Function):
    """One use of the keys."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys: Tensor, v: Tensor, p: Tensor | None, summed: _Summed, noise: Drawn
    ) -> Tensor:
        ctx.save_for_backward(query, keys, v, p, noise.scale, noise.seed)
        ctx.summed, ctx.function = summed, noise.function
        return triton.scores(keys, query, v, p, noise.scale, noise.seed, noise.function)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, None, None, None, None, None]:
        query, keys, v, p, scale, seed = ctx.saved_tensors
        sums = ctx.summed.of(keys, p)
        gq = triton.add_gradients(gradients[0], keys, query, v, p, scale, seed, ctx.function, sums)
        return gq, None, None, None, None, None
