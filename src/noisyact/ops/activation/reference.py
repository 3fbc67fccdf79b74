"""The activation in plain torch: the reference for every fast path, and the fallback without one."""

from __future__ import annotations

import torch
from torch import Tensor

from noisyact import equations
from noisyact.noise import standard_normal
from noisyact.pairs import HardPair
from noisyact.schemes import Scheme

__all__ = ["backward", "forward", "working_dtype"]


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the computation: float64 for float64 input, float32 otherwise."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def forward(
    x: Tensor, p: Tensor | None, scale: Tensor | float, seed: Tensor | None, scheme: Scheme, pair: HardPair
) -> Tensor:
    """phi in x's shape and dtype, or the expectation if seed is None."""
    wide_x, wide_p, wide_scale, xi = _widen(x, p, scale, seed)
    return equations.phi(wide_x, pair, scheme, wide_scale, wide_p, xi).to(x.dtype)


def backward(
    g: Tensor, x: Tensor, p: Tensor | None, scale: Tensor | float, seed: Tensor | None, scheme: Scheme, pair: HardPair
) -> tuple[Tensor, Tensor]:
    """The gradients of x and of p (empty without a p)."""
    wide_x, wide_p, wide_scale, xi = _widen(x, p, scale, seed)
    wide_g = g.to(wide_x.dtype)
    paths = equations.path_derivatives(wide_x, pair, scheme, wide_scale, wide_p, xi)
    gx = wide_g * (paths.linear + paths.nonlinear + paths.stochastic)
    if p is None:
        return gx.to(x.dtype), torch.zeros(0, dtype=x.dtype, device=x.device)
    gp = wide_g * paths.dp
    gp = gp.sum().reshape(p.shape) if p.numel() == 1 else gp.sum_to_size(p.numel()).reshape(p.shape)
    return gx.to(x.dtype), gp.to(p.dtype)


def _widen(
    x: Tensor, p: Tensor | None, scale: Tensor | float, seed: Tensor | None
) -> tuple[Tensor, Tensor | float, Tensor | float, Tensor | None]:
    dtype = working_dtype(x.dtype)
    xi = None if seed is None else standard_normal(seed, x.shape).to(dtype)
    wide_p = 1.0 if p is None else p.to(dtype).reshape(() if p.numel() == 1 else -1)
    return x.to(dtype), wide_p, scale.to(dtype) if isinstance(scale, Tensor) else scale, xi
