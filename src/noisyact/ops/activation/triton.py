"""The operation by the Triton kernels: float32 and shorter floats on a CUDA device, computed in float32."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from noisyact.equations import expected_epsilon
from noisyact.ops.triton import obstacle
from noisyact.pairs import HardPair
from noisyact.schemes import Scheme

__all__ = ["backward", "forward", "serves"]

TILE = 2048
"""Elements that a program takes at once: 16 for each of its threads."""
WARPS = 4
PROGRAMS = 2048
"""At least so many, if there are as many tiles: several for each multiprocessor of a large GPU."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_HARD, _NO_NOISE = 0, -1  # phi.py's HARD and NONE, which cannot be imported before Triton is


def serves(x: Tensor) -> bool:
    """Whether the Triton kernels can take x. The environment variable NOISYACT_TRITON=0 says no."""
    return x.device.type == "cuda" and x.dtype in _DTYPES and _present(x.device.index)


@torch.compiler.assume_constant_result
def _present(device: int) -> bool:
    return obstacle(torch.device("cuda", device)) is None


def forward(x: Tensor, p: Tensor | None, scale: Tensor, seed: Tensor | None, scheme: Scheme, pair: HardPair) -> Tensor:
    """As reference.forward."""
    x, p = x.contiguous(), None if p is None else p.contiguous()
    y = torch.empty_like(x)
    n, features = x.numel(), 1 if p is None else p.numel()
    if n == 0:
        return y
    constants = _constants(features > 1, seed is not None, scheme, pair)
    with torch.cuda.device_of(x):
        _kernels().forward_kernel[(_programs(n, features),)](
            x, p, _on(x, scale), _on(x, seed), y, n, features, **constants
        )
    return y


def backward(
    g: Tensor, x: Tensor, p: Tensor | None, scale: Tensor, seed: Tensor | None, scheme: Scheme, pair: HardPair
) -> tuple[Tensor, Tensor]:
    """As reference.backward."""
    g, x, p = g.contiguous(), x.contiguous(), None if p is None else p.contiguous()
    gx = torch.empty_like(x)
    n, features = x.numel(), 1 if p is None else p.numel()
    if n == 0:
        return gx, x.new_zeros(0) if p is None else torch.zeros_like(p)
    programs = _programs(n, features)
    places = programs if features == 1 else min(programs * TILE, n)
    partial = None if p is None else torch.empty(places, dtype=torch.float32, device=x.device)
    constants = _constants(features > 1, seed is not None, scheme, pair)
    with torch.cuda.device_of(x):
        _kernels().backward_kernel[(programs,)](
            g, x, p, _on(x, scale), _on(x, seed), gx, partial, n, features, **constants
        )
    if p is None or partial is None:
        return gx, x.new_zeros(0)
    # No atomic sums: the programs are as many, and their parts are added in the same order, at every call.
    return gx, partial.view(-1, features).sum(0).reshape(p.shape).to(p.dtype)


@functools.cache
def _kernels() -> Any:
    from noisyact.ops.activation import triton_kernels

    return triton_kernels


def _programs(n: int, features: int) -> int:
    """How many programs share the tiles. The more tiles a program has, the fewer parts are to be added up afterwards.

    With several features the programs' tiles are together a whole number of rows, or there is a program for each tile.
    """
    tiles = -(-n // TILE)
    wanted = max(PROGRAMS, tiles // (8 if features == 1 else 32))
    unit = features // math.gcd(features, TILE)
    return min(tiles, -(-wanted // unit) * unit)


def _on(x: Tensor, number: Tensor | None) -> Tensor | float | None:
    """A one-element tensor as the kernels take it: where x is, or, if it can be read without waiting, its value."""
    if number is None or number.device == x.device:
        return number
    return float(number) if number.device.type == "cpu" and number.is_floating_point() else number.to(x.device)


@functools.lru_cache(maxsize=256)
def _constants(per_feature: bool, stochastic: bool, scheme: Scheme, pair: HardPair) -> dict[str, Any]:
    """What the kernels are compiled for."""
    noise = scheme.code if stochastic or not scheme.at_input else _NO_NOISE
    return {
        "GROUPS": TILE // 64,
        "PER_FEATURE": per_feature,
        "EXPECTED": None if stochastic else expected_epsilon(scheme),
        "FUNCTION": (noise, scheme.leak, scheme.clips, pair.slope, pair.offset, pair.low, pair.high, _HARD),
        "num_warps": WARPS,
    }
