"""The activation by the Triton kernels: float32 and 16-bit floats on a CUDA device, computed in float32."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from noisyact.compiling import constant
from noisyact.equations import expected_epsilon
from noisyact.estimators import Estimator
from noisyact.ops.activation.arguments import check_gradient
from noisyact.ops.triton import constants_of, obstacle, on
from noisyact.pairs import HardPair
from noisyact.schemes import Scheme

__all__ = ["at", "backward", "forward", "function_constants", "readable", "serves"]

TILE = 1024
"""The number of elements that a program processes at a time: 8 for each thread."""
WARPS = 4
PROGRAMS = 2048
"""The minimum number of programs, if there are that many tiles: several for each multiprocessor of a large GPU."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_HARD = 0  # HARD of phi.py; importing it would import Triton


def serves(x: Tensor) -> bool:
    """Whether the Triton kernels support x. The environment variable NOISYACT_TRITON=0 disables them."""
    return x.device.type == "cuda" and x.dtype in _DTYPES and _present(x.device.index)


@constant
def _present(device: int) -> bool:
    return obstacle(torch.device("cuda", device)) is None


def forward(
    x: Tensor, p: Tensor | None, scale: Tensor | float, seed: Tensor | None, scheme: Scheme, pair: HardPair,
    used: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Compute reference.forward by the Triton kernel, which stores the scale it has read in `used` for backward."""
    x, p = readable(x, x), None if p is None else readable(x, p)
    y = torch.empty_like(x)
    n, features = x.numel(), 1 if p is None else p.numel()
    if n == 0:
        return y
    tensors = (x, p, at(x, scale), at(x, seed), y, used)
    with on(x.device):
        _launchers(*_settings(tensors, scheme, pair))[0]((_programs(n, features),), tensors, (n, features))
    return y


def backward(
    g: Tensor, x: Tensor, p: Tensor | None, scale: Tensor | float, seed: Tensor | None, scheme: Scheme, pair: HardPair,
    summed: bool = True,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute reference.backward by the Triton kernel. Unless `summed`, the gradient of p is in float32 parts."""
    check_gradient(g, x)
    g, x, p = readable(x, g), readable(x, x), None if p is None else readable(x, p)
    gx = torch.empty_like(x)
    n, features = x.numel(), 1 if p is None else p.numel()
    if n == 0:
        return gx, x.new_zeros(0) if p is None else torch.zeros_like(p)
    programs = _programs(n, features)
    places = programs if features == 1 else min(programs * TILE, n)
    partial = None if p is None else torch.empty(places, dtype=torch.float32, device=x.device)
    tensors = (g, x, p, at(x, scale), at(x, seed), gx, partial)
    with on(x.device):
        _launchers(*_settings(tensors[1:], scheme, pair))[1]((programs,), tensors, (n, features))
    if p is None or partial is None:
        return gx, x.new_zeros(0)
    # No atomic sums: every call has the same number of programs and adds their parts in the same order.
    partial = partial.view(-1, features)
    return gx, partial.sum(0).reshape(p.shape).to(p.dtype) if summed else partial


def _programs(n: int, features: int) -> int:
    """The number of programs that share the tiles. Fewer programs leave fewer partial sums to add.

    With several features, one tile of every program together covers whole rows, or there is one program per tile.
    """
    tiles = -(-n // TILE)
    wanted = max(PROGRAMS, tiles // (8 if features == 1 else 32))
    unit = features // math.gcd(features, TILE)
    return min(tiles, -(-wanted // unit) * unit)


def readable(x: Tensor, tensor: Tensor) -> Tensor:
    """Return a contiguous tensor for a kernel, or raise a ValueError if it is not on x's device."""
    if tensor.device != x.device:
        raise ValueError(f"a kernel takes tensors on one device, not on {x.device} and {tensor.device}")
    return (tensor.resolve_neg() if tensor.is_neg() else tensor).contiguous()


def at(x: Tensor, number: Tensor | float | None) -> Tensor | float | None:
    """Return a one-element tensor for a kernel: on x's device, or as a float if it is on the CPU."""
    if not isinstance(number, Tensor):
        return number
    if number.numel() != 1:
        raise ValueError(f"a kernel takes one number here, not a tensor of shape {tuple(number.shape)}")
    if number.device == x.device:
        return number
    return float(number) if number.is_cpu and number.is_floating_point() else number.to(x.device)


def _settings(tensors: tuple[Any, ...], scheme: Scheme, pair: HardPair) -> tuple:
    """The settings that the kernels are compiled for; the tensors begin with x, p, scale and seed."""
    x, p, scale, seed = tensors[:4]
    dtypes = tuple([getattr(t, "dtype", None) for t in (x, p, scale)])
    return p is not None and p.numel() > 1, seed is not None, scheme, pair, TILE, WARPS, dtypes


@functools.lru_cache(maxsize=256)
def _launchers(
    per_feature: bool, stochastic: bool, scheme: Scheme, pair: HardPair, tile: int, warps: int, dtypes: tuple
) -> tuple[Any, Any]:
    """The launchers of the forward and the backward kernel."""
    from noisyact.ops.triton import ahead

    ahead.prepare()
    from noisyact.ops.activation.triton_kernels import backward_kernel, forward_kernel
    from noisyact.ops.triton.launch import Launcher

    constants = {
        "GROUPS": tile // 64, "PER_FEATURE": per_feature, **function_constants(scheme, pair, stochastic),
        "num_warps": warps,
    }  # fmt: skip
    return Launcher(forward_kernel, constants), Launcher(backward_kernel, constants)


def function_constants(scheme: Scheme, pair: HardPair, stochastic: bool) -> dict[str, Any]:
    """The compile-time constants of a function: FUNCTION, and EXPECTED, which is None if noise is drawn."""
    is_h = scheme.at_input and not (stochastic or scheme.smooths or isinstance(scheme, Estimator))
    constants = constants_of(None if is_h else scheme, stochastic)
    return {
        "EXPECTED": None if stochastic else expected_epsilon(scheme),
        "FUNCTION": (*constants, pair.slope, pair.offset, pair.low, pair.high, _HARD),
    }
