"""Matrix products in float32 on a CPU, for the recurrent layers."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from noisyact.ops import native
from noisyact.ops.native.unit import address, contiguous

__all__ = ["product"]


_PRODUCT = struct.Struct("=4Q7q")
"""`product` in native.c: the addresses of left, right, bias and out; rows, columns, depth; both strides of each factor.

A ctypes.Structure takes longer to fill in than a small product takes."""


def product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """``left @ right + bias`` by the C kernel: [r, k] and [k, c] in float32, any strides; bias [c].

    >>> product(torch.ones(2, 3), torch.ones(3, 2).t().contiguous().t())
    tensor([[3., 3.],
            [3., 3.]])
    """
    if left.dtype is not torch.float32 or right.dtype is not torch.float32 or not (left.is_cpu and right.is_cpu):
        raise _misfit(left, right)
    shape, other = left.shape, right.shape
    if len(shape) != 2 or len(other) != 2 or shape[1] != other[0] or left.is_neg() or right.is_neg():
        raise _misfit(left, right)
    rows, depth, columns = *shape, other[1]
    out = torch.empty(rows, columns)
    begins = left.data_ptr(), right.data_ptr()
    if 0 in begins and left.numel() and right.numel():
        raise ValueError("a factor of a product has no memory: its storage was freed")
    if bias is not None:
        if bias.dtype is not torch.float32 or bias.shape != other[1:]:
            raise ValueError(f"the bias must be {columns} of float32, not {tuple(bias.shape)} of {bias.dtype}")
        bias = contiguous(bias)
    settings = _PRODUCT.pack(
        *begins, address(bias, columns) or 0, out.data_ptr(), rows, columns, depth, *left.stride(), *right.stride()
    )
    if native.function("noisyact_product", 1)(settings, native.threads()):
        raise MemoryError(f"no memory for a product of {tuple(shape)} and {tuple(other)}")
    return out


def _misfit(left: Tensor, right: Tensor) -> ValueError:
    factors = " and ".join(f"{tuple(t.shape)} of {t.dtype} on {t.device}" for t in (left, right))
    return ValueError(f"a product takes float32 matrices [r, k] and [k, c] on the CPU, not {factors}")
