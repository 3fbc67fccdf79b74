"""What the C kernels are handed: a noisy function as a structure, a tensor as an address."""

from __future__ import annotations

import ctypes
import math
from typing import Self

from torch import Tensor

from noisyact import equations
from noisyact.pairs import HardPair
from noisyact.schemes import NANI, Scheme

__all__ = ["Unit", "address"]


class Unit(ctypes.Structure):
    """`unit` in phi.h."""

    _fields_ = (
        ("scheme", ctypes.c_int32),
        ("stochastic", ctypes.c_int32),
        ("clip", ctypes.c_int32),
        ("one_sided", ctypes.c_int32),
        ("expectation", ctypes.c_float),
        ("alpha", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("slope", ctypes.c_float),
        ("offset", ctypes.c_float),
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )

    @classmethod
    def of(cls, scheme: Scheme | None, pair: HardPair, scale: float, stochastic: bool) -> Self:
        """The structure for a scheme and a pair; no scheme is h alone, which is input noise of strength 0."""
        if scheme is None:
            scheme, scale, stochastic = NANI(sigma=0.0), 0.0, False
        return cls(
            scheme=scheme.code,
            stochastic=stochastic,
            clip=scheme.clips,
            one_sided=math.isinf(pair.low) or math.isinf(pair.high),
            expectation=0.0 if stochastic else equations.expected_epsilon(scheme),
            alpha=1.0 - scheme.leak,
            scale=scale,
            slope=pair.slope,
            offset=pair.offset,
            low=pair.low,
            high=pair.high,
        )


def address(tensor: Tensor | None) -> ctypes.c_void_p:
    """Where a tensor's data begins; null for None."""
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())
