"""Matrix products in float32 and float64 on a CPU for the recurrent layers, bit-identical for any number of threads."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from noisyact.ops import native

__all__ = ["matmul"]


_MATMUL = struct.Struct("=3Q7q")
"""The structure `matmul` of native.c: addresses of left, right and out; rows, columns, depth; the factors' strides.

A ctypes.Structure takes longer to fill than a small product takes to compute."""

_NAMES = {torch.float32: "noisyact_matmul", torch.float64: "noisyact_matmul_double"}


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` by the C kernel: [r, k] and [k, c] in float32 or float64, with any strides.

    >>> matmul(torch.ones(2, 3), torch.ones(3, 2).t().contiguous().t())
    tensor([[3., 3.],
            [3., 3.]])
    """
    dtype = left.dtype
    if dtype not in _NAMES or right.dtype is not dtype or not (left.is_cpu and right.is_cpu):
        raise _misfit(left, right)
    shape, other = left.shape, right.shape
    if len(shape) != 2 or len(other) != 2 or shape[1] != other[0] or left.is_neg() or right.is_neg():
        raise _misfit(left, right)
    rows, depth, columns = *shape, other[1]
    out = torch.empty(rows, columns, dtype=dtype, device=native.CPU)
    begins = left.data_ptr(), right.data_ptr()
    if 0 in begins and left.numel() and right.numel():
        raise ValueError("a factor of a matrix product has no memory: its storage was freed")
    settings = _MATMUL.pack(*begins, out.data_ptr(), rows, columns, depth, *left.stride(), *right.stride())
    if native.function(_NAMES[dtype], 1)(settings, native.threads()):
        raise MemoryError(f"no memory for a matrix product of {tuple(shape)} and {tuple(other)}")
    return out


def _misfit(left: Tensor, right: Tensor) -> ValueError:
    factors = " and ".join(f"{tuple(t.shape)} of {t.dtype} on {t.device}" for t in (left, right))
    return ValueError(
        f"a matrix product takes factors of one dtype, float32 or float64, [r, k] and [k, c] on the CPU, not {factors}"
    )
