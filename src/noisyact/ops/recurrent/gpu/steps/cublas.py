"""Products over all steps of a layer by torch, that is by cuBLAS."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from noisyact.ops.recurrent.gpu.call import StackCall

__all__ = ["ProductsAsCudnn", "recurrent_weights", "ruled_weights"]


class ProductsAsCudnn:
    """A context manager in which float32 products use TF32 if cuDNN does.

    nn.LSTM follows cuDNN's setting, and torch.mm has another one. Both are settings of torch.backends, accessed here
    with less host overhead.
    """

    def __enter__(self) -> None:
        self._before, wanted = torch._C._get_cublas_allow_tf32(), torch._C._get_cudnn_allow_tf32()
        self._changed = self._before != wanted
        if self._changed:
            torch._C._set_cublas_allow_tf32(wanted)

    def __exit__(self, *error: object) -> None:
        if self._changed:
            torch._C._set_cublas_allow_tf32(self._before)


def recurrent_weights(dgates: Tensor, wide: int, y: Tensor, h0: Any, before: Any, batch: int, reverse: bool) -> Tensor:
    """The gradient of W_hh: the product of each row's gradient, the last columns of `dgates`, and the previous h."""
    rows, width = dgates.shape
    hidden, column = y.shape[-1], width - wide
    if before is not None:
        first = y.new_zeros(batch, hidden) if h0 is None else h0
        return torch.mm(dgates[:, column:].t(), torch.cat([y, first])[before])
    count = rows - batch
    after, earlier, entry = (0, batch, count) if reverse else (batch, 0, 0)
    # as_strided replaces three views, because host overhead dominates small networks.
    later = dgates.as_strided((wide, count), (1, width), after * width + column)
    gradient = torch.mm(later, y.as_strided((count, hidden), (hidden, 1), y.storage_offset() + earlier * hidden))
    if h0 is None:
        return gradient
    return gradient.addmm_(dgates.as_strided((wide, batch), (1, width), entry * width + column), h0)


def ruled_weights(dgates: Tensor, y: Tensor, h0: Any, call: StackCall, rules: Any) -> Tensor:
    """The gradient of W_hh where resets or recurrent dropout change what the recurrent product sees.

    Args:
        dgates: [rows, gates H], the gradients of W_hh h.
        y: h at every step.
        h0: [batch, H], the initial h; None for zeros.
        rules: the layer's :class:`KernelRules`.
    """
    hidden, batch = y.shape[-1], call.batch
    if call.offsets is not None and call.before is not None:  # without resets
        first = y.new_zeros(batch, hidden) if h0 is None else h0
        sizes = call.offsets.diff()
        starts = torch.repeat_interleave(call.offsets[:-1], sizes, output_size=len(dgates))
        place = torch.arange(len(dgates), device=y.device) - starts
        return torch.mm(dgates.t(), rules.times_dropout(torch.cat([y, first])[call.before], place))
    every, by_step = y.view(-1, batch, hidden), dgates.unflatten(0, (-1, batch))
    later, earlier, entry = slice(1, None), slice(0, -1), 0
    if call.reverse:
        later, earlier, entry = earlier, later, -1
    before = rules.seen(every[earlier], later)
    gradient = torch.mm(by_step[later].flatten(0, 1).t(), before.flatten(0, 1))
    first = rules.seen_at_first(h0, call.reverse)
    return gradient if first is None else gradient.addmm_(by_step[entry].t(), first)
