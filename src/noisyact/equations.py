"""The paper's equations in the paper's notation: the reference that every fast path must equal.

All functions use plain torch operations and take the noise as an argument. sigma is computed as
``(c / 4) tanh^2(p Delta / 2)``, which equals ``c (sigmoid(p Delta) - 1/2)^2`` without its cancellation near zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noisyact.estimators import Estimator, Gate, SaturatingSigmoid, SlopeAnnealing, StraightThrough
from noisyact.pairs import HardPair, Pair
from noisyact.schemes import NAH, NANI, NANIS, Scheme

__all__ = [
    "MEAN_HALF_NORMAL", "Paths", "delta", "derivative", "direction", "expected_epsilon", "limits_of", "logistic",
    "logit", "noise_sigma", "path_derivatives", "phi", "sigma", "smoothed",
]  # fmt: skip

MEAN_HALF_NORMAL = math.sqrt(2 / math.pi)
"""``E|xi|`` for a standard normal xi."""


def delta(h: Tensor, u: Tensor) -> Tensor:
    """``Delta = h - u``; 0 where h and u are the same infinity."""
    return torch.where(h == u, torch.zeros_like(h), h - u)


def sigma(Delta: Tensor, p: Tensor | float, c: Tensor | float) -> Tensor:
    """``sigma = c (sigmoid(p Delta) - 1/2)^2``: even in p, 0 where h is not saturated, at most c / 4.

    >>> sigma(torch.tensor([0.0, -1.0, -100.0]), p=1.0, c=0.5)
    tensor([0.0000, 0.0267, 0.1250])
    """
    limit = torch.finfo(Delta.dtype).max  # an infinite Delta times p = 0 would be NaN
    t = torch.tanh(0.5 * (p * Delta.clamp(-limit, limit)))
    return 0.25 * c * (t * t)


def direction(x: Tensor, leak: float) -> Tensor:
    """``d(x) = -sgn(x) sgn(1 - alpha)`` with ``sgn(0) = 1``: inwards for alpha <= 1, outwards for alpha > 1.

    >>> direction(torch.tensor([-2.0, 0.0, 2.0]), leak=1 - 1.15)
    tensor([-1.,  1.,  1.])
    """
    outward = torch.where(x >= 0, 1.0, -1.0).to(x.dtype)
    return -outward if leak >= 0 else outward


def expected_epsilon(scheme: Scheme) -> float:
    """``E[epsilon]``: sqrt(2 / pi) for half-normal noise, 0 for normal noise and for centred noise.

    >>> round(expected_epsilon(NAH()), 10)
    0.7978845608
    >>> expected_epsilon(NAH(draw="centred"))
    0.0
    """
    return MEAN_HALF_NORMAL if isinstance(scheme, NAH) and not scheme.centred else 0.0


def phi(
    x: Tensor, pair: HardPair | Pair, scheme: Scheme, scale: Tensor | float, p: Tensor | float, xi: Tensor | None
) -> Tensor:
    """The noisy activation phi(x, xi), or its expectation if xi is None.

    Noise at the output (NAN, NAH) is Algorithm 1 of the paper: ``phi = alpha h + (1 - alpha) u + d sigma epsilon`` with
    epsilon = xi or |xi|, less its mean if the scheme is centred; with ``draw="mean"`` epsilon is its mean, whatever xi
    is. Noise at the input is ``phi = h(x + sigma xi)``; sigma is fixed (NANI), learned (NANIL), or fixed where
    |x| >= x_t and 0 elsewhere (NANIS). ``scale`` replaces the scheme's c or sigma for annealing.

    The expectation of noise at the input is h(x), as in the paper: xi is replaced by its mean. With ``draw="mean"`` phi
    is :func:`smoothed` instead, whatever xi is.

    The docstrings of :mod:`noisyact.estimators` have the formulas of the estimators, whose scale this replaces too.
    """
    if isinstance(scheme, Estimator):
        return _estimate(x, pair, scheme, scale, xi)
    if scheme.smooths:
        return smoothed(x, pair, noise_sigma(x, pair, scheme, scale, p))
    if scheme.at_input:
        if xi is None:
            return pair.h(x)
        if isinstance(scheme, NANI):
            return pair.h(x + scale * xi)
        if isinstance(scheme, NANIS):
            return pair.h(x + torch.where(pair.saturated(x), scale * xi, torch.zeros_like(x)))
        return pair.h(x + sigma(delta(pair.h(x), pair.u(x)), p, scale) * xi)
    h, u = pair.h(x), pair.u(x)
    Delta = delta(h, u)
    value = _leaky(h, Delta, scheme)
    epsilon = _epsilon(scheme, xi)
    if isinstance(epsilon, Tensor) or epsilon:
        value = value + direction(x, scheme.leak) * sigma(Delta, p, scale) * epsilon
    return pair.clip(value) if scheme.clips else value


def smoothed(x: Tensor, pair: HardPair | Pair, sigma: Tensor) -> Tensor:
    """``E[h(x + sigma xi)]``, the piecewise linear h smoothed by a Gaussian; h(x) where sigma is 0.

    With ``s = slope sigma``, ``z_low = (u - low) / s``, ``z_high = (u - high) / s`` and the normal distribution Phi, it
    is ``low + s (G(z_low) - G(z_high))``, where ``G(z) = E[max(z + xi, 0)] = z Phi(z) + Phi'(z)``. An infinite limit
    has no term: for ReLU it is ``s G(u / s)``. The derivatives are ``slope (Phi(z_low) - Phi(z_high))`` by x and
    ``slope (Phi'(z_low) - Phi'(z_high))`` by sigma.

    >>> smoothed(torch.tensor([0.0, 1.0, 9.0]), HardPair(1.0, 0.0, -1.0, 1.0), torch.tensor(0.5))
    tensor([0.0000, 0.8005, 1.0000])
    """
    pair = _piecewise(pair)
    spread, z_low, z_high = _distances(x, pair, sigma)
    if z_low is None:
        value = pair.high - spread * _mean_above(-z_high)
    else:
        value = pair.low + spread * (_mean_above(z_low) - (0.0 if z_high is None else _mean_above(z_high)))
    return torch.where(sigma > 0, value, pair.h(x))


_FAR = 40.0
"""So many standard deviations from a limit, the normal distribution is 0 or 1 in every dtype."""


def _piecewise(pair: HardPair | Pair) -> HardPair:
    if isinstance(pair, Pair):
        raise ValueError(f"draw='mean' of noise at the input is for piecewise linear functions, not for {pair}")
    return pair


def _distances(x: Tensor, pair: HardPair, sigma: Tensor) -> tuple[Tensor, Any, Any]:
    """s, z_low and z_high of :func:`smoothed`; None for a side without a limit, and s = slope where sigma is 0.

    x is kept near the limits: beyond, where h is constant, the difference of two large numbers would lose it.
    """
    sigma = torch.where(sigma > 0, sigma, torch.ones_like(sigma))
    if pair.low > -math.inf:
        x = torch.maximum(x, pair.x_low - _FAR * sigma)
    if pair.high < math.inf:
        x = torch.minimum(x, pair.x_high + _FAR * sigma)
    spread, u = pair.slope * sigma, pair.u(x)
    z_low = (u - pair.low) / spread if pair.low > -math.inf else None
    return spread, z_low, (u - pair.high) / spread if pair.high < math.inf else None


def _mean_above(z: Tensor) -> Tensor:
    """``E[max(z + xi, 0)]``."""
    near = z.clamp(max=_FAR)
    return torch.where(z > _FAR, z, near * _normal(near) + _density(near))


def _normal(z: Tensor | None) -> Tensor | float:
    """The normal distribution Phi(z); for a limit that is missing, infinitely far above, it is 0."""
    return 0.0 if z is None else 0.5 + 0.5 * torch.erf(z * math.sqrt(0.5))


def _density(z: Tensor | None) -> Tensor | float:
    """The normal density; 0 for a limit that is missing."""
    return 0.0 if z is None else torch.exp(-0.5 * z * z) * (1 / math.sqrt(2 * math.pi))


def _leaky(h: Tensor, Delta: Tensor, scheme: Scheme) -> Tensor:
    """``alpha h + (1 - alpha) u``. Without a leak the term is omitted, because 0 times an infinite Delta is NaN."""
    return h if scheme.leak == 0 else h - scheme.leak * Delta


def _epsilon(scheme: Scheme, xi: Tensor | None) -> Tensor | float:
    if xi is None or not scheme.draws:
        return expected_epsilon(scheme)
    if not isinstance(scheme, NAH):
        return xi
    return xi.abs() - MEAN_HALF_NORMAL if scheme.centred else xi.abs()


def limits_of(pair: HardPair | Pair, scheme: Scheme) -> tuple[float, float]:
    """The limits of a function, or an error if a scheme that needs both gets a function without.

    >>> from noisyact.estimators import GumbelGate
    >>> limits_of(HardPair(1.0, 0.0, -1.0, 1.0), GumbelGate())
    (-1.0, 1.0)
    """
    limits = (pair.low, pair.high) if isinstance(pair, HardPair) else pair.limits
    if limits is None or not all(map(math.isfinite, limits)):
        raise ValueError(f"{scheme!r} is for functions with a finite limit on both sides, not for {pair}")
    return limits


def logit(x: Tensor, pair: HardPair | Pair, scheme: Scheme) -> Tensor:
    """``z = 4 (u - middle) / (high - low)``: the sigmoid of z has the middle, the limits and the slope of the function.

    >>> from noisyact.estimators import GumbelGate
    >>> logit(torch.tensor([1.0]), HardPair(1.0, 0.0, -1.0, 1.0), GumbelGate())
    tensor([2.])
    """
    low, high = limits_of(pair, scheme)
    steepness, middle = 4 / (high - low), 0.5 * (low + high)
    if isinstance(pair, Pair):
        return steepness * (pair.u(x) - middle)
    return (steepness * pair.slope) * x + steepness * (pair.offset - middle)


def logistic(xi: Tensor) -> Tensor:
    """``lambda(xi) = logit(Phi(xi))``: noise with the logistic distribution from standard normal noise.

    >>> logistic(torch.tensor([0.0, 1.0, -1.0]))
    tensor([ 0.0000,  1.6683, -1.6683])
    """
    return torch.special.log_ndtr(xi) - torch.special.log_ndtr(-xi)


def _estimate(x: Tensor, pair: HardPair | Pair, scheme: Estimator, scale: Tensor | float, xi: Tensor | None) -> Tensor:
    """phi of an estimator. Its gradient by autograd is that of the value before it is rounded."""
    if isinstance(scheme, StraightThrough):
        h, u = pair.h(x), pair.u(x)
        carrier = torch.where(_passes(h, u, scale), u, torch.zeros_like(u))
        return _with_gradient_of(carrier, _nearest_limit(h, pair, scheme) if scheme.rounds else h)
    if isinstance(scheme, SlopeAnnealing):
        h = pair.h(scale * x)
        return _with_gradient_of(h, _nearest_limit(h, pair, scheme)) if scheme.rounds else h
    assert isinstance(scheme, Gate)
    low, high = limits_of(pair, scheme)
    w = _noisy_logit(x, pair, scheme, scale, xi)[0]
    value = pair.clip(low + (high - low) * ((1 + 2 * scheme.stretched) * torch.sigmoid(w) - scheme.stretched))
    return _with_gradient_of(value, _rounded(w >= 0, value, pair, scheme)) if scheme.rounds else value


def _passes(h: Tensor, u: Tensor, width: Tensor | float) -> Tensor:
    """Where the gradient of a straight-through estimator passes."""
    return (delta(h, u).abs() <= width) & torch.isfinite(u)


def _with_gradient_of(carrier: Tensor, value: Tensor) -> Tensor:
    """The value with the gradient of the carrier, which is finite or NaN."""
    return value.detach() + (carrier - carrier.detach())


def _nearest_limit(h: Tensor, pair: HardPair | Pair, scheme: Scheme) -> Tensor:
    return _rounded(h >= 0.5 * sum(limits_of(pair, scheme)), h, pair, scheme)


def _rounded(up: Tensor, value: Tensor, pair: HardPair | Pair, scheme: Scheme) -> Tensor:
    """The high limit where `up` is True and the low one elsewhere; NaN where the value is."""
    low, high = (torch.full_like(value, limit) for limit in limits_of(pair, scheme))
    return torch.where(value.isnan(), value, torch.where(up, high, low))


def _noisy_logit(
    x: Tensor, pair: HardPair | Pair, scheme: Gate, scale: Tensor | float, xi: Tensor | None
) -> tuple[Tensor, Tensor | float]:
    """The argument of a gate's sigmoid, and its derivative by z."""
    z = logit(x, pair, scheme)
    if xi is None:
        return z, 1.0
    if isinstance(scheme, SaturatingSigmoid):
        return z + scale * xi, 1.0
    return (z + logistic(xi)) / scale, 1.0 / scale


def _estimate_slope(
    x: Tensor, pair: HardPair | Pair, scheme: Estimator, scale: Tensor | float, xi: Tensor | None
) -> Tensor:
    """dphi/dx of an estimator in closed form."""
    du, zero = _slopes(pair, x)[1], torch.zeros_like(x)
    if isinstance(scheme, StraightThrough):
        return torch.where(_passes(pair.h(x), pair.u(x), scale), du, zero)
    if isinstance(scheme, SlopeAnnealing):
        return scale * _slopes(pair, scale * x)[0]
    assert isinstance(scheme, Gate)
    low, high = limits_of(pair, scheme)
    w, rate = _noisy_logit(x, pair, scheme, scale, xi)
    s, wide = torch.sigmoid(w), 1 + 2 * scheme.stretched
    value = low + (high - low) * (wide * s - scheme.stretched)
    return torch.where(value == pair.clip(value), 4 * du * wide * rate * s * torch.sigmoid(-w), zero)


class Paths(NamedTuple):
    """dphi/dx along the paper's three paths (through u, h and sigma), and dphi/dp."""

    linear: Tensor
    nonlinear: Tensor
    stochastic: Tensor
    dp: Tensor


def path_derivatives(
    x: Tensor, pair: HardPair | Pair, scheme: Scheme, scale: Tensor | float, p: Tensor | float, xi: Tensor | None
) -> Paths:
    """The derivatives of :func:`phi` in closed form, along each path: through u, through h and through sigma.

    With ``t = tanh(p Delta / 2)``, ``d sigma/d Delta = (c/4) t (1 - t^2) p`` and ``d Delta/dx = h' - u'``. At the
    output the paths are ``(1 - alpha) u'``, ``alpha h'`` and ``d epsilon sigma'``. At the input they are 0,
    ``h'(x + sigma xi)`` and ``h'(x + sigma xi) sigma' xi``; those of its mean are with :func:`smoothed`. Autograd
    computes h' and u' of a :class:`Pair`. The derivative of a straight-through estimator is through u, those of the
    other estimators are through h.
    """
    if isinstance(scheme, Estimator):
        own, zero = _estimate_slope(x, pair, scheme, scale, xi), torch.zeros_like(x)
        return Paths(own, zero, zero, zero) if isinstance(scheme, StraightThrough) else Paths(zero, own, zero, zero)
    h, u = pair.h(x), pair.u(x)
    dh, du = _slopes(pair, x)
    Delta = delta(h, u)
    limit = torch.finfo(x.dtype).max
    t = torch.tanh(0.5 * (p * Delta.clamp(-limit, limit)))
    rate = 0.25 * scale * t * (1 - t * t)  # d sigma / d (p Delta)
    zero = torch.zeros_like(x)
    if scheme.smooths:
        at = noise_sigma(x, pair, scheme, scale, p)
        _, low, high = _distances(x, _piecewise(pair), at)
        inside = (1.0 if low is None else _normal(low)) - _normal(high)
        nonlinear = torch.where(at > 0, du * inside, dh)
        if not scheme.learns_p:
            return Paths(zero, nonlinear, zero, zero)
        by_sigma = torch.where(at > 0, du * (_density(low) - _density(high)), zero)
        return Paths(zero, nonlinear, by_sigma * rate * p * (dh - du), by_sigma * rate * Delta)
    if scheme.at_input:
        nonlinear = _slopes(pair, x if xi is None else x + noise_sigma(x, pair, scheme, scale, p) * xi)[0]
        if xi is None or not scheme.learns_p:
            return Paths(zero, nonlinear, zero, zero)
        return Paths(zero, nonlinear, nonlinear * xi * rate * p * (dh - du), nonlinear * xi * rate * Delta)
    noise = direction(x, scheme.leak) * _epsilon(scheme, xi)
    paths = Paths(scheme.leak * du, (1 - scheme.leak) * dh, noise * rate * p * (dh - du), noise * rate * Delta)
    if scheme.clips:
        value = _leaky(h, Delta, scheme) + noise * (0.25 * scale * t * t)
        open_ = value == pair.clip(value)
        paths = Paths(*(torch.where(open_, path, zero) for path in paths))
    return paths


def noise_sigma(x: Tensor, pair: HardPair | Pair, scheme: Scheme, scale: Tensor | float, p: Tensor | float) -> Tensor:
    """The noise's standard deviation: learned (NAN, NAH, NANIL), fixed (NANI), or fixed where saturated (NANIS).

    Of the estimators the gates have noise, at the logit: sigma, or pi / sqrt(3) for logistic noise.

    >>> noise_sigma(torch.tensor([0.0, 2.0]), HardPair(1.0, 0.0, -1.0, 1.0), NANIS(), 0.3, 1.0)
    tensor([0.0000, 0.3000])
    """
    if isinstance(scheme, NANI | SaturatingSigmoid):
        return torch.zeros_like(x) + scale
    if isinstance(scheme, Estimator):
        return torch.full_like(x, math.pi / math.sqrt(3) if scheme.draws else 0.0)
    if isinstance(scheme, NANIS):
        return torch.where(pair.saturated(x), torch.zeros_like(x) + scale, torch.zeros_like(x))
    return sigma(delta(pair.h(x), pair.u(x)), p, scale)


def _slopes(pair: HardPair | Pair, x: Tensor) -> tuple[Tensor, Tensor]:
    """``h'(x)`` and ``u'(x)``."""
    if isinstance(pair, Pair):
        return derivative(pair.h, x), derivative(pair.u, x)
    u, slope = pair.u(x), torch.zeros_like(x) + pair.slope
    return torch.where((u >= pair.low) & (u <= pair.high), slope, torch.zeros_like(x)), slope


def derivative(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``f'(x)`` of any elementwise function, computed by autograd.

    >>> derivative(torch.square, torch.tensor([0.0, 2.0]))
    tensor([0., 4.])
    """
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        y = f(leaf)
        return torch.autograd.grad(y.sum(), leaf)[0] if y.requires_grad else torch.zeros_like(x)
