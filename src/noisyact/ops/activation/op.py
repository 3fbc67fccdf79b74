"""The activation as a torch operator with gradients of x and p. The noise is given as a seed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from noisyact.ops.activation import native, reference, triton
from noisyact.ops.activation.arguments import check, check_gradient
from noisyact.ops.dispatch import batched, plain, traced, transformed
from noisyact.pairs import HardPair
from noisyact.schemes import Scheme, scheme

__all__ = ["has_kernel", "noisy_activation"]


def noisy_activation(
    x: Tensor, p: Tensor | None, scale: Tensor, seed: Tensor | None, scheme: Scheme, pair: HardPair,
    defer_p: Callable[[Tensor], None] | None = None,
) -> Tensor:  # fmt: skip
    """phi(x, xi) with xi from the seed, or the expectation if seed is None.

    Args:
        x: a floating-point tensor of any shape.
        p: one element, or one for each element of x's last dimension; None for a scheme without p, or for p = 1.
        scale: the scheme's c or sigma, one element.
        seed: one int64, from :func:`noisyact.noise.draw_seed`.
        scheme: the noise scheme.
        pair: h and u.
        defer_p: a function that backward calls with the gradient of p in parts, [parts, p], instead of returning it.
            :func:`noisyact.deferred_gradients` sums the parts over all calls of a loop.

    Returns: a tensor of x's shape and dtype.
    """
    if not traced():
        if defer_p is None and has_torch_function((x,)):
            return handle_torch_function(noisy_activation, (x,), x, p, scale, seed, scheme, pair)
        if plain(x, p):
            # Skip torch's dispatcher: its host overhead exceeds the time of a GPU kernel.
            check(x, p, scale, seed)
            if torch.is_grad_enabled():
                return _EagerActivation.apply(x, p, scale, seed, scheme, pair, defer_p)  # pyright: ignore[reportReturnType]
            return _path(x).forward(x, p, scale, seed, scheme, pair)
    return _activation(x, p, scale, seed, *_encode(scheme, pair))[0]


def _encode(scheme: Scheme, pair: HardPair) -> tuple[str, list[float]]:
    """Convert a scheme and a pair to types that a torch operator accepts."""
    return str(scheme), [pair.slope, pair.offset, pair.low, pair.high]


@functools.lru_cache(maxsize=256)
def _decode_cached(scheme_text: str, *pair_numbers: float) -> tuple[Scheme, HardPair]:
    return scheme(scheme_text), HardPair(*pair_numbers)


def _decode(scheme_text: str, pair_numbers: list[float]) -> tuple[Scheme, HardPair]:
    return _decode_cached(scheme_text, *pair_numbers)


def has_kernel(x: Tensor) -> bool:
    """Whether a fused kernel supports x. Otherwise callers use torch operations, which the compiler fuses better."""
    return (native.serves(x) or triton.serves(x)) and not transformed()


def _path(x: Tensor) -> ModuleType:
    for path in (native, triton):
        if path.serves(x):
            return path
    return reference


def _forward(
    x: Tensor, p: Tensor | None, scale: Tensor, seed: Tensor | None, scheme: Scheme, pair: HardPair
) -> tuple[Tensor, Tensor | float]:
    """phi and a copy of the scale it was computed with, because annealing may change the scale before backward."""
    path = _path(x)
    if scale.is_cpu:
        used = float(scale)
        return path.forward(x, p, used, seed, scheme, pair), used
    if path is triton:
        used = torch.empty((), dtype=torch.float32, device=x.device)
        return triton.forward(x, p, scale, seed, scheme, pair, used), used
    used = scale.detach().clone()
    return path.forward(x, p, used, seed, scheme, pair), used


@torch.library.custom_op("noisyact::activation", mutates_args=())
def _activation(
    x: Tensor, p: Tensor | None, scale: Tensor, seed: Tensor | None, scheme_text: str, pair_numbers: list[float]
) -> tuple[Tensor, Tensor]:
    """phi and the scale it was computed with."""
    check(x, p, scale, seed)
    y, used = _forward(x, p, scale, seed, *_decode(scheme_text, pair_numbers))
    return y.contiguous(), _tensor(used, x)


def _tensor(scale: Tensor | float, x: Tensor) -> Tensor:
    dtype = reference.working_dtype(x.dtype)
    return scale.to(dtype) if isinstance(scale, Tensor) else torch.tensor(scale, dtype=dtype)


@torch.library.custom_op("noisyact::activation_backward", mutates_args=())
def _activation_backward(
    g: Tensor, x: Tensor, p: Tensor | None, scale: Tensor, seed: Tensor | None, scheme_text: str,
    pair_numbers: list[float],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    check(x, p, scale, seed)
    check_gradient(g, x)
    gx, gp = _path(x).backward(g, x, p, scale, seed, *_decode(scheme_text, pair_numbers))
    return gx.contiguous(), gp.to(x.dtype if p is None else p.dtype)


@_activation.register_fake
def _(x: Tensor, p: Any, scale: Tensor, seed: Any, scheme_text: str, pair_numbers: list[float]):
    check(x, p, scale, seed)  # torch calls this if a single tensor is on the meta device
    used = torch.empty((), dtype=reference.working_dtype(x.dtype), device=scale.device)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), used


@_activation_backward.register_fake
def _(g: Tensor, x: Tensor, p: Any, scale: Any, seed: Any, scheme_text: str, pair_numbers: list[float]):
    check(x, p, scale, seed)
    check_gradient(g, x)
    gp = torch.empty(0, dtype=x.dtype, device=x.device) if p is None else torch.empty_like(p)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), gp


def _keep(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    x, p, _, seed, ctx.scheme_text, ctx.pair_numbers = inputs
    ctx.save_for_backward(x, p, output[1], seed)


def _differentiate(ctx: Any, g: Tensor, _: Tensor) -> tuple:
    x, p, scale, seed = ctx.saved_tensors
    gx, gp = _activation_backward(g, x, p, scale, seed, ctx.scheme_text, ctx.pair_numbers)
    return gx, None if p is None else gp, None, None, None, None


def _keep_all(ctx: Any, inputs: tuple, output: Any) -> None:
    *tensors, ctx.scheme_text, ctx.pair_numbers = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_again(ctx: Any, g_gx: Tensor, g_gp: Tensor) -> tuple:
    """Higher derivatives: torch differentiates the first derivative's formula."""
    g, x, p, scale, seed = ctx.saved_tensors
    decoded = _decode(ctx.scheme_text, ctx.pair_numbers)
    if p is None:
        pull = torch.func.vjp(lambda g, x: reference.backward(g, x, None, scale, seed, *decoded)[0], g, x)[1]
        return (*pull(g_gx), *([None] * 5))
    pull = torch.func.vjp(lambda g, x, p: reference.backward(g, x, p, scale, seed, *decoded), g, x, p)[1]
    return (*pull((g_gx, g_gp)), *([None] * 4))


_activation.register_autograd(_differentiate, setup_context=_keep)
_activation_backward.register_autograd(_differentiate_again, setup_context=_keep_all)


class _EagerActivation(torch.autograd.Function):
    """The operation and its gradient for eager calls, which skip torch's dispatcher."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        """Compute phi and save the tensors for backward, like the registered operator."""
        x, p, scale, seed, ctx.scheme, ctx.pair, ctx.defer_p = inputs
        y, ctx.scale = _forward(x, p, scale, seed, ctx.scheme, ctx.pair)
        ctx.save_for_backward(x, p, seed)
        return y

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Compute the gradients. Higher derivatives and batched gradients go through the registered operator."""
        (g,), scale = grad_outputs, ctx.scale
        x, p, seed = ctx.saved_tensors
        if torch.is_grad_enabled() or batched(g):
            gx, gp = _activation_backward(g, x, p, _tensor(scale, x), seed, *_encode(ctx.scheme, ctx.pair))
        elif ctx.defer_p is not None and _path(x) is triton:
            gx, gp = triton.backward(g, x, p, scale, seed, ctx.scheme, ctx.pair, summed=False)
        else:
            gx, gp = _path(x).backward(g, x, p, scale, seed, ctx.scheme, ctx.pair)
        if ctx.defer_p is not None:
            ctx.defer_p(gp.reshape(-1, p.numel()))
        return gx, None if p is None or ctx.defer_p is not None else gp, None, None, None, None, None
