"""Arguments of the C kernels: a noisy function as a structure, a tensor as an address."""

from __future__ import annotations

import ctypes
import math
from typing import Self

import torch
from torch import Tensor

from noisyact import equations
from noisyact.estimators import Estimator, Gate, SaturatingSigmoid
from noisyact.pairs import HardPair
from noisyact.schemes import NAH, NANI, Scheme

__all__ = ["DoubleUnit", "Unit", "address", "contiguous"]

_FUNCTIONS = ("piecewise", "sigmoid", "tanh")
"""The enumeration `function` of phi.h."""


_INTEGERS = ("scheme", "stochastic", "clip", "one_sided", "function", "binary")
_REALS = ("expectation", "shift", "alpha", "scale", "stretch", "slope", "offset", "low", "high")
_MEAN = 3
"""The schemes with noise at the input whose draw is "mean" have codes of their own in phi.h, that much higher."""


class _UnitBase(ctypes.Structure):
    """How a structure `unit` of phi.h is filled, whatever its number type."""

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
        stochastic = stochastic and scheme.draws
        if scheme.smooths and function != "piecewise":
            raise ValueError(
                f"{scheme!r}: the mean of noise at the input is for hard functions, not for the {function}"
            )
        if isinstance(scheme, Gate) and not stochastic:
            scheme, scale = SaturatingSigmoid(0.0, scheme.stretched, scheme.rounds), 0.0
        shift = equations.MEAN_HALF_NORMAL if isinstance(scheme, NAH) and scheme.centred else 0.0
        return cls(
            scheme=scheme.code + (_MEAN if scheme.smooths else 0),
            stochastic=stochastic,
            clip=scheme.clips,
            one_sided=math.isinf(pair.low) or math.isinf(pair.high),
            function=_FUNCTIONS.index(function),
            binary=isinstance(scheme, Estimator) and scheme.rounds,
            # The kernels subtract the shift from the expectation too.
            expectation=0.0 if stochastic else equations.expected_epsilon(scheme) + shift,
            shift=shift,
            alpha=1.0 - scheme.leak,
            scale=scale,
            stretch=scheme.stretched if isinstance(scheme, Gate) else 0.0,
            slope=pair.slope,
            offset=pair.offset,
            low=pair.low,
            high=pair.high,
        )


class Unit(_UnitBase):
    """The structure `unit` of phi.h in float32."""

    _fields_ = (*((name, ctypes.c_int32) for name in _INTEGERS), *((name, ctypes.c_float) for name in _REALS))


class DoubleUnit(_UnitBase):
    """The structure `unit` of phi.h in float64."""

    _fields_ = (*((name, ctypes.c_int32) for name in _INTEGERS), *((name, ctypes.c_double) for name in _REALS))


def contiguous(tensor: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The tensor in a dtype and contiguous, as the C kernels need it."""
    if tensor.dtype is dtype and tensor.is_contiguous() and not tensor.is_neg():
        return tensor
    return tensor.to(dtype).resolve_neg().contiguous()


def address(tensor: Tensor | None, count: int | None = None, dtype: torch.dtype = torch.float32) -> int | None:
    """The address of a tensor's data for a C kernel, after checks; None, a null pointer, for None.

    Args:
        tensor: a result of :func:`contiguous`.
        count: the number of elements that the kernel expects.
        dtype: the dtype that the kernel expects.
    """
    if tensor is None:
        return None
    if not tensor.is_cpu or tensor.dtype is not dtype or not tensor.is_contiguous() or tensor.is_neg():
        raise ValueError(
            f"a C kernel takes contiguous {str(dtype).removeprefix('torch.')} tensors on the CPU here, not "
            f"{tensor.dtype} of strides {tensor.stride()} on {tensor.device}"
        )
    elements, begin = tensor.numel(), tensor.data_ptr()
    if count is not None and elements != count:
        raise ValueError(f"a C kernel needs a tensor of {count} elements here, not of shape {tuple(tensor.shape)}")
    if begin == 0 and elements:
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} has no memory: its storage was freed")
    return begin
