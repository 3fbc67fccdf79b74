"""The operation registered with torch: noise comes in as a seed, gradients of x and p, compile, vmap."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from noisyact.ops.activation import native, reference
from noisyact.pairs import HardPair
from noisyact.schemes import Scheme, scheme

__all__ = ["noisy_activation"]


def noisy_activation(
    x: Tensor, p: Tensor | None, scale: Tensor, seed: Tensor | None, scheme: Scheme, pair: HardPair
) -> Tensor:
    """phi(x, xi) with xi from the seed, or its expectation where seed is None.

    Args:
        x: any shape, a floating dtype.
        p: shape (1,), or one for each place of x's last dimension; None for a scheme that has none, or for p = 1.
        scale: the scheme's c or sigma, one element.
        seed: one int64, from :func:`noisyact.noise.draw_seed`.
        scheme: which noise.
        pair: h and u.

    Returns: x's shape and dtype.
    """
    # A scheme and a pair in the types that torch lets an operator take; _decode turns them back.
    return _activation(x, p, scale, seed, str(scheme), [pair.slope, pair.offset, pair.low, pair.high])


@functools.lru_cache(maxsize=256)
def _decode_cached(scheme_text: str, *pair_numbers: float) -> tuple[Scheme, HardPair]:
    return scheme(scheme_text), HardPair(*pair_numbers)


def _decode(scheme_text: str, pair_numbers: list[float]) -> tuple[Scheme, HardPair]:
    return _decode_cached(scheme_text, *pair_numbers)


@torch.library.custom_op("noisyact::activation", mutates_args=())
def _activation(
    x: Tensor, p: Tensor | None, scale: Tensor, seed: Tensor | None, scheme_text: str, pair_numbers: list[float]
) -> Tensor:
    path = native if native.serves(x) else reference
    return path.forward(x, p, scale, seed, *_decode(scheme_text, pair_numbers))


@torch.library.custom_op("noisyact::activation_backward", mutates_args=())
def _activation_backward(
    g: Tensor, x: Tensor, p: Tensor | None, scale: Tensor, seed: Tensor | None, scheme_text: str,
    pair_numbers: list[float],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    path = native if native.serves(x) else reference
    return path.backward(g, x, p, scale, seed, *_decode(scheme_text, pair_numbers))


@_activation.register_fake
def _(x: Tensor, p: Any, scale: Any, seed: Any, scheme_text: str, pair_numbers: list[float]) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@_activation_backward.register_fake
def _(g: Tensor, x: Tensor, p: Any, scale: Any, seed: Any, scheme_text: str, pair_numbers: list[float]):
    gp = torch.empty(0, dtype=x.dtype, device=x.device) if p is None else torch.empty_like(p)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), gp


def _keep(ctx: Any, inputs: tuple, output: Any) -> None:
    *tensors, ctx.scheme_text, ctx.pair_numbers = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, g: Tensor) -> tuple:
    x, p, scale, seed = ctx.saved_tensors
    gx, gp = _activation_backward(g, x, p, scale, seed, ctx.scheme_text, ctx.pair_numbers)
    return gx, None if p is None else gp, None, None, None, None


def _differentiate_again(ctx: Any, g_gx: Tensor, g_gp: Tensor) -> tuple:
    """The second derivative: the first one's formula in torch, differentiated by torch."""
    g, x, p, scale, seed = ctx.saved_tensors
    with torch.enable_grad():
        inputs = [t.detach().requires_grad_() for t in (g, x, p) if t is not None]
        g_, x_, p_ = inputs if p is not None else (*inputs, None)
        gx, gp = reference.backward(g_, x_, p_, scale, seed, *_decode(ctx.scheme_text, ctx.pair_numbers))
        outputs, cotangents = ((gx,), (g_gx,)) if p is None else ((gx, gp), (g_gx, g_gp))
        found = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True, materialize_grads=True)
    return (*found, *([None] * (7 - len(found))))


_activation.register_autograd(_differentiate, setup_context=_keep)
_activation_backward.register_autograd(_differentiate_again, setup_context=_keep)


def _batched(function: Any) -> Any:
    """vmap of the torch path: batched seeds give every member its own noise."""

    def rule(info: Any, in_dims: tuple, *args: Any) -> tuple:
        *tensors, scheme_text, pair_numbers = args
        kept = [i for i, tensor in enumerate(tensors) if tensor is not None]

        def run(*given: Tensor) -> Any:
            full: list[Any] = [None] * len(tensors)
            for i, tensor in zip(kept, given, strict=True):
                full[i] = tensor
            return function(*full, *_decode(scheme_text, pair_numbers))

        dims = tuple(in_dims[i] for i in kept)
        result = torch.vmap(run, in_dims=dims, randomness=info.randomness)(*(tensors[i] for i in kept))
        return result, (0, 0) if isinstance(result, tuple) else 0

    return rule


_activation.register_vmap(_batched(reference.forward))
_activation_backward.register_vmap(_batched(reference.backward))
