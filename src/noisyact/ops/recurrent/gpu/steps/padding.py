"""Layers whose rows are no multiple of 16 bytes, with further units and inputs that change nothing.

cuBLAS has fast kernels only for rows that begin at a multiple of 16 bytes. A further unit has weights of zero, so the
other units do not see it, whatever noise it draws. The noise of a unit depends on its number, which stays the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noisyact.ops.recurrent.gpu.call import StackCall
from noisyact.ops.recurrent.types import GATES, LayerWeights, StateRules

__all__ = ["Padding", "padding_for"]


class Padding(NamedTuple):
    """The widths of stacked layers, before and after."""

    kind: str
    inputs: int
    hidden: int
    wide_inputs: int
    wide_hidden: int

    def widened_inputs(self, x: Tensor) -> Tensor:
        """The input with further columns of zeros."""
        return _widened(x, self.wide_inputs)

    def widened(self, h: Any) -> Any:
        """A tensor of [..., H], such as a state, with further units of zeros."""
        return None if h is None else _widened(h, self.wide_hidden)

    def cut(self, h: Any) -> Any:
        """The given units of a tensor of [..., H]."""
        return None if h is None else h[..., : self.hidden].contiguous()

    def cut_inputs(self, dx: Tensor | None) -> Tensor | None:
        """The given columns of the gradient of the input."""
        return None if dx is None else dx[..., : self.inputs].contiguous()

    def call(self, call: StackCall) -> StackCall:
        """The call with wide states in its rules."""
        return call if call.rules is None else call._replace(rules=list(map(self._rules, call.rules)))

    def _rules(self, rules: StateRules) -> StateRules:
        return rules._replace(reset_h=self.widened(rules.reset_h), reset_c=self.widened(rules.reset_c))

    def weights(self, layers: Sequence[LayerWeights]) -> list[LayerWeights]:
        """The wide weights of all layers. Those above the first have the wide h of the one below as their input."""
        return [
            own._replace(
                w_ih=self._of_units(own.w_ih, self.wide_hidden if index else self.wide_inputs),
                w_hh=self._of_units(own.w_hh, self.wide_hidden),
                **{name: self._of_each_unit(getattr(own, name)) for name in ("b_ih", "b_hh", "p")},
            )
            for index, own in enumerate(layers)
        ]

    def _of_units(self, w: Tensor, wide: int) -> Tensor:
        """[gates H, columns] to [gates wide H, wide columns]."""
        gates, columns = GATES[self.kind], w.shape[1]
        to = w.new_zeros(gates, self.wide_hidden, wide)
        to[:, : self.hidden, :columns] = w.view(gates, self.hidden, columns)
        return to.view(-1, wide)

    def _of_each_unit(self, v: Tensor | None) -> Tensor | None:
        """[n H] to [n wide H]."""
        return None if v is None else _widened(v.view(-1, self.hidden), self.wide_hidden).view(-1)

    def cut_gradients(self, found: list[Tensor | None]) -> list[Tensor | None]:
        """The gradients of the given weights from those of the wide ones, in the order of `LayerWeights`."""
        names = LayerWeights._fields
        return [self._cut_gradient(names[i % len(names)], i < len(names), d) for i, d in enumerate(found)]

    def _cut_gradient(self, name: str, is_first: bool, d: Tensor | None) -> Tensor | None:
        if d is None:
            return None
        if name not in ("w_ih", "w_hh"):
            return d.view(-1, self.wide_hidden)[:, : self.hidden].reshape(-1)
        columns = self.inputs if name == "w_ih" and is_first else self.hidden
        return d.view(GATES[self.kind], self.wide_hidden, -1)[:, : self.hidden, :columns].reshape(-1, columns)


def padding_for(kind: str, x: Tensor, weights: Sequence[LayerWeights]) -> Padding | None:
    """The padding of stacked layers; None if they need none.

    Products in float64, and in float32 without TF32, are as fast with any rows. A layer with a projection is left as it
    is, because it is small compared with what surrounds it.
    """
    exact = x.dtype is torch.float64 or (x.dtype is torch.float32 and not torch._C._get_cublas_allow_tf32())
    if exact or weights[0].w_hr is not None:
        return None
    multiple = 16 // x.element_size()
    sizes = x.shape[-1], weights[0].w_hh.shape[1]
    wide = [-(-size // multiple) * multiple for size in sizes]
    return None if wide == [*sizes] else Padding(kind, *sizes, *wide)


def _widened(tensor: Tensor, wide: int) -> Tensor:
    *form, width = tensor.shape
    if width == wide:
        return tensor
    to = tensor.new_zeros(*form, wide)
    to[..., :width] = tensor
    return to
