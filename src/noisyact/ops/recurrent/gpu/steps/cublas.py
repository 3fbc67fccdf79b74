"""Products over all steps of a layer by torch, that is by cuBLAS."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["ProductsAsCudnn", "recurrent_weights"]


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
