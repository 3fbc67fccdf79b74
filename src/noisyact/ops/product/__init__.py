"""Matrix products in float32 on a CPU, for the recurrent layers."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from noisyact.ops import native

__all__ = ["product"]


class _Product(ctypes.Structure):
    """`product` in native.c."""

    _fields_ = (
        ("left", ctypes.c_void_p),
        ("right", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("depth", ctypes.c_int64),
        ("left_row", ctypes.c_int64),
        ("left_k", ctypes.c_int64),
        ("right_k", ctypes.c_int64),
        ("right_column", ctypes.c_int64),
    )


def product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """``left @ right + bias`` by the C kernel: [r, k] and [k, c] in float32, any strides; bias [c].

    >>> product(torch.ones(2, 3), torch.ones(3, 2).t().contiguous().t())
    tensor([[3., 3.],
            [3., 3.]])
    """
    library = native.library()
    assert library is not None
    out = torch.empty(left.shape[0], right.shape[1])
    bias = None if bias is None else bias.contiguous()
    settings = _Product(
        left.data_ptr(), right.data_ptr(), None if bias is None else bias.data_ptr(), out.data_ptr(),
        left.shape[0], right.shape[1], left.shape[1], *left.stride(), *right.stride(),
    )  # fmt: skip
    if library.noisyact_product(ctypes.byref(settings), torch.get_num_threads()):
        raise MemoryError(f"no memory for a product of {tuple(left.shape)} and {tuple(right.shape)}")
    return out
