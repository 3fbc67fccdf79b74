"""Checks of an activation's arguments. The kernels get the tensors' addresses without further checks."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["check", "check_dim", "check_gradient", "check_x"]


def check(x: Tensor, p: Tensor | None, scale: Tensor | None, seed: Tensor | None) -> None:
    """Raise a TypeError or ValueError that names an argument the operation cannot take and what is allowed."""
    check_x(x)
    if p is not None:
        _check_p(x, p)
    if scale is not None:
        _check_scale(x, scale)
    if seed is not None:
        _check_seed(x, seed)


def check_x(x: Tensor) -> None:
    """Raise a TypeError unless x is a floating-point tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, not {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"x must be real floating point (float16, bfloat16, float32, float64), not {x.dtype}")


def check_dim(x: Tensor, p: Tensor, dim: int) -> int:
    """Return the dimension of x that p belongs to, counted from the front, or raise an error if p does not fit it."""
    check_x(x)
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim must be a whole number, not {dim!r}")
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim={dim}: x of shape {tuple(x.shape)} has no such dimension")
    if p.shape[-1:] != (p.numel(),) or p.numel() != x.shape[dim]:
        raise ValueError(
            f"p of shape {tuple(p.shape)} does not fit x of shape {tuple(x.shape)}: it must have one element, or one "
            f"for each element of x's dimension {dim}"
        )
    return dim % x.dim()


def check_gradient(g: Tensor, x: Tensor) -> None:
    """Raise an error unless the gradient of the result has x's shape and device and is floating point."""
    if not g.is_floating_point():
        raise TypeError(f"the gradient must be floating point, not {g.dtype}")
    if g.shape != x.shape or g.device != x.device:
        raise ValueError(
            f"the gradient must have the shape and device of x, {tuple(x.shape)} on {x.device}, not {tuple(g.shape)} "
            f"on {g.device}"
        )


def _check_p(x: Tensor, p: Tensor) -> None:
    if not isinstance(p, Tensor) or not p.is_floating_point():
        raise TypeError(f"p must be a floating-point tensor or None, not {p!r}")
    if p.numel() != 1 and (x.dim() == 0 or p.numel() != x.shape[-1] or p.shape[-1] != p.numel()):
        raise ValueError(
            f"p of shape {tuple(p.shape)} does not fit x of shape {tuple(x.shape)}: it must have one element, or one "
            "for each element of x's last dimension"
        )
    if p.device != x.device:
        raise ValueError(f"p is on {p.device} and x on {x.device}; they must be on the same device")


def _check_scale(x: Tensor, scale: Tensor) -> None:
    if not isinstance(scale, Tensor) or not scale.is_floating_point():
        raise TypeError(f"scale must be a floating-point tensor or None, not {scale!r}")
    if scale.numel() != 1:
        raise ValueError(f"scale must have one element, not the shape {tuple(scale.shape)}")
    _check_place(x, "scale", scale)


def _check_seed(x: Tensor, seed: Tensor) -> None:
    if not isinstance(seed, Tensor):
        raise TypeError(f"seed must be a tensor, such as torch.tensor(7), not {seed!r}")
    if seed.dtype != torch.int64 or seed.numel() != 1:
        raise ValueError(f"seed must be one int64, not {seed.dtype} of shape {tuple(seed.shape)}")
    _check_place(x, "seed", seed)


def _check_place(x: Tensor, name: str, number: Tensor) -> None:
    if number.device != x.device and number.device.type != "cpu":
        raise ValueError(f"{name} is on {number.device} and x on {x.device}; it must be on x's device or the CPU")
