"""The activation by the C kernel on a CPU, in float32. The kernel reads and writes 16-bit floats itself."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from noisyact.compiling import constant
from noisyact.ops import native
from noisyact.ops.native.unit import Unit, address, contiguous
from noisyact.pairs import HardPair
from noisyact.schemes import Scheme

__all__ = ["backward", "forward", "serves"]


_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The enumeration `dtype` of sixteen_bits.h. Tensors of other dtypes are converted to float32."""


class _Activation(ctypes.Structure):
    """The structure `activation` of native.c."""

    _fields_ = (
        ("unit", Unit),
        ("dtype", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("elements", ctypes.c_int64),
        ("p_size", ctypes.c_int64),
    )


def serves(x: Tensor) -> bool:
    """Whether the C kernel supports x."""
    return x.device.type == "cpu" and x.dtype != torch.float64 and _present()


@constant
def _present() -> bool:
    return native.library() is not None


def forward(
    x: Tensor, p: Tensor | None, scale: Tensor | float, seed: Tensor | None, scheme: Scheme, pair: HardPair
) -> Tensor:
    """Compute reference.forward by the C kernel."""
    dtype = x.dtype if x.dtype in _DTYPES else torch.float32
    flat, flat_p = contiguous(x, dtype), None if p is None else contiguous(p)
    y = torch.empty_like(flat)
    n = flat.numel()
    settings = _settings(dtype, n, flat_p, scale, seed, scheme, pair)
    native.function("noisyact_activation_forward", 4)(
        ctypes.addressof(settings), address(flat, n, dtype), address(flat_p), address(y, n, dtype), native.threads()
    )
    return y if y.dtype is x.dtype else y.to(x.dtype)


def backward(
    g: Tensor, x: Tensor, p: Tensor | None, scale: Tensor | float, seed: Tensor | None, scheme: Scheme, pair: HardPair
) -> tuple[Tensor, Tensor]:
    """Compute reference.backward by the C kernel."""
    dtype = x.dtype if x.dtype in _DTYPES and g.dtype is x.dtype else torch.float32
    flat_g, flat, flat_p = contiguous(g, dtype), contiguous(x, dtype), None if p is None else contiguous(p)
    n, p_size = flat.numel(), 0 if flat_p is None else flat_p.numel()
    gx, gp = torch.empty_like(flat), torch.empty(p_size, device=native.CPU)
    partial = torch.zeros(-(-n // _chunk(p_size)) * p_size, device=native.CPU)
    settings = _settings(dtype, n, flat_p, scale, seed, scheme, pair)
    native.function("noisyact_activation_backward", 7)(
        ctypes.addressof(settings), address(flat_g, n, dtype), address(flat, n, dtype), address(flat_p),
        address(gx, n, dtype), address(gp), address(partial), native.threads(),
    )  # fmt: skip
    return gx if gx.dtype is x.dtype else gx.to(x.dtype), gp if p is None else gp.reshape(p.shape).to(p.dtype)


@functools.lru_cache(maxsize=256)
def _chunk(p_size: int) -> int:
    """The number of elements in a chunk of backward. Each chunk has its own partial sums."""
    chunk = native.loaded().noisyact_activation_chunk
    chunk.restype = ctypes.c_int64  # for a p of 2^25 elements a chunk has 2^31
    return chunk(ctypes.c_int64(p_size))


def _settings(
    dtype: torch.dtype, elements: int, p: Tensor | None, scale: Tensor | float, seed: Tensor | None, scheme: Scheme,
    pair: HardPair,
) -> _Activation:  # fmt: skip
    return _Activation(
        unit=Unit.of(scheme, pair, float(scale), stochastic=seed is not None),
        dtype=_DTYPES[dtype],
        seed=0 if seed is None else int(seed),
        elements=elements,
        p_size=0 if p is None else p.numel(),
    )
