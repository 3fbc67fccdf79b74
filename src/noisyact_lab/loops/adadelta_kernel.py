"""The kernel of Adadelta: all that a step does to a number of a parameter."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from noisyact.ops.triton import check, on

__all__ = ["update"]

_SIZES: dict[str, Any] = {"BLOCK": 2048}


@triton.jit
def _kernel(weight_ptr, gradient_ptr, square_ptr, delta_ptr, count, lr, rho, rest, eps, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    g = tl.load(gradient_ptr + at, inside, 0.0)
    s = rho * tl.load(square_ptr + at, inside, 0.0) + rest * g * g
    a = tl.load(delta_ptr + at, inside, 0.0)
    delta = g * tl.sqrt(a + eps) / tl.sqrt(s + eps)
    tl.store(square_ptr + at, s, inside)
    tl.store(delta_ptr + at, rho * a + rest * delta * delta, inside)
    tl.store(weight_ptr + at, tl.load(weight_ptr + at, inside, 0.0) - lr * delta, inside)


def update(weight: Tensor, gradient: Tensor, square: Tensor, delta: Tensor, lr: float, rho: float, eps: float) -> None:
    """One parameter, in place; all tensors contiguous float32."""
    shape = tuple(weight.shape)
    check(weight, weight=(weight, shape), gradient=(gradient, shape), s=(square, shape), a=(delta, shape))
    if not all(tensor.is_contiguous() for tensor in (weight, gradient, square, delta)):
        raise ValueError("a parameter, its gradient and its state must be contiguous")
    count = weight.numel()
    if count:
        blocks = triton.cdiv(count, _SIZES["BLOCK"])
        with on(weight.device):
            _kernel[(blocks,)](weight, gradient, square, delta, count, lr, rho, 1.0 - rho, eps, **_SIZES)
