"""Arguments of the C kernels: a noisy function as a structure, a tensor as an address."""

from __future__ import annotations

import ctypes
import math
from typing import Self

import torch
from torch import Tensor

from noisyact import equations
from noisyact.pairs import HardPair
from noisyact.schemes import NANI, Scheme

__all__ = ["Unit", "address", "contiguous"]

_FUNCTIONS = ("piecewise", "sigmoid", "tanh")
"""The enumeration `function` of phi.h."""


class Unit(ctypes.Structure):
    """The structure `unit` of phi.h."""

    _fields_ = (
        ("scheme", ctypes.c_int32),
        ("stochastic", ctypes.c_int32),
        ("clip", ctypes.c_int32),
        ("one_sided", ctypes.c_int32),
        ("function", ctypes.c_int32),
        ("expectation", ctypes.c_float),
        ("alpha", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("slope", ctypes.c_float),
        ("offset", ctypes.c_float),
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )

    @classmethod
    def of(
        cls, scheme: Scheme | None, pair: HardPair, scale: float, stochastic: bool, function: str = "piecewise"
    ) -> Self:
        """The structure for a scheme and a pair. No scheme means h without noise, as NANI with sigma = 0.

        Args:
            pair: u, and the limits and thresholds of h.
            function: h itself: "piecewise" for the h of the pair, or the soft "sigmoid" or "tanh".
        """
        if scheme is None:
            scheme, scale, stochastic = NANI(sigma=0.0), 0.0, False
        return cls(
            scheme=scheme.code,
            stochastic=stochastic,
            clip=scheme.clips,
            one_sided=math.isinf(pair.low) or math.isinf(pair.high),
            function=_FUNCTIONS.index(function),
            expectation=0.0 if stochastic else equations.expected_epsilon(scheme),
            alpha=1.0 - scheme.leak,
            scale=scale,
            slope=pair.slope,
            offset=pair.offset,
            low=pair.low,
            high=pair.high,
        )


def contiguous(tensor: Tensor) -> Tensor:
    """The tensor in float32 and contiguous, as the C kernels need it."""
    if tensor.dtype is torch.float32 and tensor.is_contiguous() and not tensor.is_neg():
        return tensor
    return tensor.to(torch.float32).resolve_neg().contiguous()


def address(tensor: Tensor | None, count: int | None = None) -> int | None:
    """The address of a tensor's data for a C kernel, after checks; None, a null pointer, for None.

    Args:
        tensor: a result of :func:`contiguous`.
        count: the number of elements that the kernel expects.
    """
    if tensor is None:
        return None
    if not tensor.is_cpu or tensor.dtype is not torch.float32 or not tensor.is_contiguous() or tensor.is_neg():
        raise ValueError(
            f"a C kernel takes contiguous float32 tensors on the CPU, not {tensor.dtype} of strides {tensor.stride()} "
            f"on {tensor.device}"
        )
    elements, begin = tensor.numel(), tensor.data_ptr()
    if count is not None and elements != count:
        raise ValueError(f"a C kernel needs a tensor of {count} elements here, not of shape {tuple(tensor.shape)}")
    if begin == 0 and elements:
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} has no memory: its storage was freed")
    return begin
