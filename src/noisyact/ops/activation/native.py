"""The operation by the C kernel: float32 on a CPU; shorter floats pass through float32."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from noisyact.compiling import constant
from noisyact.ops import native
from noisyact.ops.native.unit import Unit, address
from noisyact.pairs import HardPair
from noisyact.schemes import Scheme

__all__ = ["backward", "forward", "serves"]


class _Activation(ctypes.Structure):
    """`activation` in native.c."""

    _fields_ = (
        ("unit", Unit),
        ("seed", ctypes.c_uint64),
        ("elements", ctypes.c_int64),
        ("p_size", ctypes.c_int64),
    )


def serves(x: Tensor) -> bool:
    """Whether the C kernel can take x."""
    return x.device.type == "cpu" and x.dtype != torch.float64 and _present()


@constant
def _present() -> bool:
    return native.library() is not None


def forward(x: Tensor, p: Tensor | None, scale: Tensor, seed: Tensor | None, scheme: Scheme, pair: HardPair) -> Tensor:
    """As reference.forward."""
    library = native.library()
    assert library is not None
    flat, flat_p = _contiguous(x), None if p is None else _contiguous(p)
    y = torch.empty_like(flat)
    settings = _settings(flat, flat_p, scale, seed, scheme, pair)
    library.noisyact_activation_forward(
        ctypes.byref(settings), address(flat), address(flat_p), address(y), torch.get_num_threads()
    )
    return y.to(x.dtype)


def backward(
    g: Tensor, x: Tensor, p: Tensor | None, scale: Tensor, seed: Tensor | None, scheme: Scheme, pair: HardPair
) -> tuple[Tensor, Tensor]:
    """As reference.backward."""
    library = native.library()
    assert library is not None
    flat_g, flat, flat_p = _contiguous(g), _contiguous(x), None if p is None else _contiguous(p)
    gx = torch.empty_like(flat)
    gp = torch.empty(0 if p is None else p.numel())
    library.noisyact_activation_chunk.restype = ctypes.c_int64  # a p of 2^25 places has chunks of 2^31 elements
    chunk = library.noisyact_activation_chunk(ctypes.c_int64(gp.numel()))
    partial = torch.zeros(-(-flat.numel() // chunk) * gp.numel())
    settings = _settings(flat, flat_p, scale, seed, scheme, pair)
    library.noisyact_activation_backward(
        ctypes.byref(settings), address(flat_g), address(flat), address(flat_p), address(gx), address(gp),
        address(partial), torch.get_num_threads(),
    )  # fmt: skip
    return gx.to(x.dtype), gp if p is None else gp.reshape(p.shape).to(p.dtype)


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float32).contiguous()


def _settings(
    x: Tensor, p: Tensor | None, scale: Tensor, seed: Tensor | None, scheme: Scheme, pair: HardPair
) -> _Activation:
    return _Activation(
        unit=Unit.of(scheme, pair, float(scale), stochastic=seed is not None),
        seed=0 if seed is None else int(seed),
        elements=x.numel(),
        p_size=0 if p is None else p.numel(),
    )
