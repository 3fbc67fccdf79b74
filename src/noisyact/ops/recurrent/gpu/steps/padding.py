"""Layers whose rows are no multiple of 16 bytes, with further units and inputs that change nothing.

cuBLAS has fast kernels only for rows that begin at a multiple of 16 bytes. A further unit has weights of zero, so the
other units do not see it, whatever noise it draws. The noise of a unit depends on its number, which stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noisyact.ops.recurrent.gpu.call import StackCall
from noisyact.ops.recurrent.gpu.steps.copies import Copy, copy_all
from noisyact.ops.recurrent.types import GATES, LayerWeights, StateRules

__all__ = ["Padding", "padding_for"]

_LEAST_WORK = 1 << 33
"""The additions and multiplications of a layer from which on faster products save more time than the padding costs."""


class Padding(NamedTuple):
    """The widths of stacked layers, before and after."""

    kind: str
    inputs: int
    hidden: int
    wide_inputs: int
    wide_hidden: int

    def call(self, call: StackCall) -> StackCall:
        """The call with wide states in its rules."""
        return call if call.rules is None else call._replace(rules=list(map(self._rules, call.rules)))

    def _rules(self, rules: StateRules) -> StateRules:
        reset_h, reset_c = self.widened(rules.reset_h, rules.reset_c)
        return rules._replace(reset_h=reset_h, reset_c=reset_c)

    def widened(self, *states: Tensor | None) -> list[Any]:
        """Tensors of [..., H], such as states, with further units of zeros."""
        copies: list[Copy] = []
        found = [None if h is None else self._resized(copies, h, h.shape[-1], self.wide_hidden) for h in states]
        copy_all(copies)
        return found

    def cut(self, *states: Tensor | None) -> list[Any]:
        """The given units of tensors of [..., wide H]."""
        copies: list[Copy] = []
        found = [None if h is None else self._resized(copies, h, self.wide_hidden, self.hidden) for h in states]
        copy_all(copies)
        return found

    def widened_all(
        self, x: Tensor, layers: Sequence[LayerWeights], *states: Tensor | None
    ) -> tuple[Tensor, list[Tensor], list[LayerWeights], list[Any]]:
        """The wide input, the memory of the wide weights of each layer, these weights, and wide states."""
        copies: list[Copy] = []
        wide_x = x
        if self.wide_inputs != self.inputs:
            wide_x = self._resized(copies, x, self.inputs, self.wide_inputs)
        memory, wide_layers = self._wide_weights(copies, layers)
        wide_states = [None if h is None else self._resized(copies, h, self.hidden, self.wide_hidden) for h in states]
        copy_all(copies)
        return wide_x, memory, wide_layers, wide_states

    def widened_weights(self, layers: Sequence[LayerWeights]) -> list[Tensor]:
        """The memory of the wide weights of each layer."""
        copies: list[Copy] = []
        memory, _ = self._wide_weights(copies, layers)
        copy_all(copies)
        return memory

    def _wide_weights(
        self, copies: list[Copy], layers: Sequence[LayerWeights]
    ) -> tuple[list[Tensor], list[LayerWeights]]:
        """The memory of the wide weights of each layer and these weights, and to `copies` what fills them."""
        memory, wide_layers = [], []
        for index, own in enumerate(layers):
            sizes = [math.prod(shape) for shape in self._wide_shapes(own, index)]
            memory.append(own.w_hh.new_empty(sum(sizes)))
            wide_layers.append(self.weights(own, index, memory[-1]))
            for name, narrow, wide in zip(LayerWeights._fields, own, wide_layers[-1], strict=True):
                if narrow is not None:
                    copies.append(self._copy(name, narrow, wide))
        return memory, wide_layers

    def keeps_weights(self, rows: int) -> bool:
        """Whether backward gets the wide weights of forward: not if they would be most of what it keeps."""
        return rows >= 2 * self.wide_hidden

    def weights(self, own: LayerWeights, index: int, memory: Tensor) -> LayerWeights:
        """The wide weights of a layer in this memory. Those above the first take the wide h of the one below."""
        shapes = self._wide_shapes(own, index)
        w_ih, w_hh, *others = memory.split_with_sizes([math.prod(shape) for shape in shapes])
        found = iter((w_ih.view(shapes[0]), w_hh.view(shapes[1]), *others))
        return LayerWeights(*(None if narrow is None else next(found) for narrow in own))  # pyright: ignore[reportArgumentType]

    def _wide_shapes(self, own: LayerWeights, index: int) -> list[tuple[int, ...]]:
        """The shapes of the weights that a layer has, in their order."""
        gates, vectors = GATES[self.kind] * self.wide_hidden, (own.b_ih, own.b_hh, own.p)
        shapes: list[tuple[int, ...]] = [(gates, self._wide_inputs(index)), (gates, self.wide_hidden)]
        return shapes + [(v.numel() // self.hidden * self.wide_hidden,) for v in vectors if v is not None]

    def _wide_inputs(self, index: int) -> int:
        return self.wide_hidden if index else self.wide_inputs

    def _copy(self, name: str, narrow: Tensor, wide: Tensor) -> Copy:
        """The copy of a weight of a layer to a wide one."""
        if name not in ("w_ih", "w_hh"):
            lines = narrow.numel() // self.hidden
            return Copy(narrow, wide, 1, lines, self.hidden, lines, self.wide_hidden)
        columns = narrow.shape[1]
        return Copy(narrow, wide, GATES[self.kind], self.hidden, columns, self.wide_hidden, wide.shape[1])

    def cut_gradients(
        self, dx: Tensor | None, found: list[Tensor | None], states: Sequence[Tensor | None]
    ) -> tuple[Tensor | None, list[Tensor | None], list[Tensor | None]]:
        """The gradients of what was given from those of the wide input, weights (in their order) and states."""
        copies: list[Copy] = []
        if dx is not None and self.wide_inputs != self.inputs:
            dx = self._resized(copies, dx, self.wide_inputs, self.inputs)
        count = len(LayerWeights._fields)
        narrow = [
            None if wide is None else self._cut_gradient(copies, LayerWeights._fields[i % count], i // count, wide)
            for i, wide in enumerate(found)
        ]
        of_states = [None if d is None else self._resized(copies, d, self.wide_hidden, self.hidden) for d in states]
        copy_all(copies)
        return dx, narrow, of_states

    def _cut_gradient(self, copies: list[Copy], name: str, index: int, wide: Tensor) -> Tensor:
        if name not in ("w_ih", "w_hh"):
            return self._resized(copies, wide.view(-1, self.wide_hidden), self.wide_hidden, self.hidden).view(-1)
        gates = GATES[self.kind]
        narrow = wide.new_empty(gates * self.hidden, self.inputs if name == "w_ih" and index == 0 else self.hidden)
        copies.append(
            Copy(wide, narrow, gates, self.wide_hidden, wide.shape[1], self.hidden, narrow.shape[1])
        )  # fmt: skip
        return narrow

    @staticmethod
    def _resized(copies: list[Copy], tensor: Tensor, before: int, after: int) -> Tensor:
        """A tensor whose last dimension has another size, and to `copies` what fills it."""
        tensor = tensor if tensor.is_contiguous() else tensor.contiguous()
        to = tensor.new_empty(*tensor.shape[:-1], after)
        lines = tensor.numel() // before
        copies.append(Copy(tensor, to, 1, lines, before, lines, after))
        return to


def padding_for(kind: str, x: Tensor, weights: Sequence[LayerWeights]) -> Padding | None:
    """The padding of stacked layers; None if they need none.

    Products in float64, and in float32 without TF32, are as fast with any rows. A layer with a projection is left as it
    is, because it is small compared with what surrounds it, and one with little work because it would save nothing.
    """
    exact = x.dtype is torch.float64 or (x.dtype is torch.float32 and not torch._C._get_cublas_allow_tf32())
    if exact or weights[0].w_hr is not None:
        return None
    multiple = 16 // x.element_size()
    sizes = x.shape[-1], weights[0].w_hh.shape[1]
    wide = [-(-size // multiple) * multiple for size in sizes]
    if wide == [*sizes] or 2 * weights[0].w_hh.shape[0] * sum(sizes) * (x.numel() // x.shape[-1]) < _LEAST_WORK:
        return None
    return Padding(kind, *sizes, *wide)
