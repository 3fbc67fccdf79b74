"""Saturating functions as the paper uses them: a pair of h and its linearisation u.

The paper expands a smooth saturating f to first order about zero, ``u(x) = f(0) + f'(0) x``, and clips the result to
the limits of f: ``h(x) = max(min(u(x), high), low)``. :class:`HardPair` describes this form by four numbers,
:func:`harden` builds it from f, and :class:`Pair` takes any h and u as functions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

__all__ = ["HARD_SIGMOID", "HARD_TANH", "RELU", "HardPair", "Pair", "harden"]


@dataclasses.dataclass(frozen=True)
class HardPair:
    """``u(x) = slope x + offset`` and ``h(x) = clip(u(x), low, high)``.

    A side that does not saturate has an infinite limit: ReLU is ``HardPair(1, 0, 0, inf)``. The slope is positive, and
    the linear part must contain x = 0, because u is an expansion about zero.

    >>> HARD_SIGMOID.h(torch.tensor([-3.0, 0.0, 2 / 3, 3.0]))
    tensor([0.0000, 0.5000, 0.6667, 1.0000])
    >>> HARD_SIGMOID.x_low, HARD_SIGMOID.x_high
    (-2.0, 2.0)
    """

    slope: float
    offset: float
    low: float
    high: float

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
                raise ValueError(f"HardPair({field.name}={value!r}): {field.name} must be a number")
            object.__setattr__(self, field.name, float(value))
        if not 0 < self.slope < math.inf:
            raise ValueError(f"HardPair(slope={self.slope}): slope must be positive and finite")
        if not (math.isfinite(self.offset) and self.low <= self.offset <= self.high and self.low < self.high):
            raise ValueError(f"{self}: needs low <= offset <= high, low < high and a finite offset")
        if math.isinf(self.low) and math.isinf(self.high):
            raise ValueError(f"{self}: neither side saturates; give at least one finite limit")

    @property
    def x_low(self) -> float:
        """The x below which h is saturated."""
        return (self.low - self.offset) / self.slope

    @property
    def x_high(self) -> float:
        """The x above which h is saturated; the paper's threshold x_t."""
        return (self.high - self.offset) / self.slope

    def u(self, x: Tensor) -> Tensor:
        """The linearisation u(x)."""
        if self.slope == 1.0 and self.offset == 0.0:
            return x
        return self.slope * x + self.offset

    def h(self, x: Tensor) -> Tensor:
        """The hard function h(x). Its gradient at the kinks is the slope."""
        return self.clip(self.u(x))

    def clip(self, value: Tensor) -> Tensor:
        """Clip a value to the range of h."""
        return _clip(value, self.low, self.high)

    def saturated(self, x: Tensor) -> Tensor:
        """Whether each element of x lies on or beyond a threshold."""
        u = self.u(x)
        return (u <= self.low) | (u >= self.high)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Any h and u as functions of a tensor; they need not be piecewise linear.

    The noise depends on ``Delta = h(x) - u(x)``, so a smooth h is slightly noisy wherever it differs from u.

    Args:
        h: the activation function.
        u: its linearisation about zero.
        x_t: the saturation thresholds (x_low, x_high). NANIS requires them.
        limits: the range (low, high) of h. Schemes with ``clip=True`` require it.

    >>> pair = Pair(h=torch.tanh, u=lambda x: x, x_t=(-1.0, 1.0), limits=(-1.0, 1.0))
    >>> pair.saturated(torch.tensor([0.5, 1.5]))
    tensor([False,  True])
    """

    h: Callable[[Tensor], Tensor]
    u: Callable[[Tensor], Tensor]
    x_t: tuple[float, float] | None = None
    limits: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name in ("h", "u"):
            if not callable(getattr(self, name)):
                raise TypeError(f"Pair({name}={getattr(self, name)!r}): {name} must be a function of a tensor")
        for name in ("x_t", "limits"):
            value = getattr(self, name)
            if value is not None and not (len(value) == 2 and value[0] < value[1]):
                raise ValueError(f"Pair({name}={value!r}): {name} must be two increasing numbers")

    def clip(self, value: Tensor) -> Tensor:
        """Clip a value to the range of h."""
        if self.limits is None:
            raise ValueError("clip=True needs the range of h: give Pair(limits=(low, high))")
        return _clip(value, *self.limits)

    def saturated(self, x: Tensor) -> Tensor:
        """Whether each element of x lies on or beyond a threshold."""
        if self.x_t is None:
            raise ValueError("the thresholds of h are not known: give Pair(x_t=(x_low, x_high))")
        return (x <= self.x_t[0]) | (x >= self.x_t[1])


HARD_TANH = HardPair(slope=1.0, offset=0.0, low=-1.0, high=1.0)
HARD_SIGMOID = HardPair(slope=0.25, offset=0.5, low=0.0, high=1.0)
RELU = HardPair(slope=1.0, offset=0.0, low=0.0, high=math.inf)


def harden(f: Callable[[Tensor], Tensor]) -> HardPair:
    """Build the hard version of a smooth saturating function: its expansion about zero, clipped to its limits.

    Args:
        f: an elementwise, differentiable function with a positive slope at zero and a limit on at least one side.

    >>> harden(torch.tanh)
    HardPair(slope=1.0, offset=0.0, low=-1.0, high=1.0)
    >>> harden(torch.sigmoid) == HARD_SIGMOID
    True
    >>> atan = harden(torch.atan)
    >>> round(atan.high, 4), atan.x_high == atan.high
    (1.5708, True)
    """
    zero = torch.zeros((), dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        offset = f(zero)
        (slope,) = torch.autograd.grad(offset, zero)
    low, high = (_limit(f, sign) for sign in (-1.0, 1.0))
    try:
        return HardPair(float(slope), float(offset.detach()), low, high)
    except ValueError as error:
        raise ValueError(f"{getattr(f, '__name__', f)!r} has no hard version: {error}") from None


def _clip(value: Tensor, low: float, high: float) -> Tensor:
    """``max(min(value, high), low)`` with gradient 1 at the limits, as in the kernels.

    The gradient of torch.clamp at its limits is 1 or 0, depending on the torch release.
    """
    clipped = torch.clamp(value.detach(), low, high)
    if not (value.requires_grad or _recorded()):
        return clipped  # torch.where below only matters for the derivative
    return torch.where(value == clipped, value, clipped)


def _recorded() -> bool:
    """Whether a compiler, a trace or forward mode may differentiate the current operations."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or getattr(forward_ad, "_current_level", 0) >= 0
    )


def _limit(f: Callable[[Tensor], Tensor], sign: float) -> float:
    """The limit of f at sign * infinity; infinite if f has none."""
    far, further = (float(v) for v in f(sign * torch.tensor([1e100, 1e200], dtype=torch.float64)))
    if math.isclose(far, further, rel_tol=1e-12, abs_tol=1e-12):
        return further
    return math.copysign(math.inf, further - far)
