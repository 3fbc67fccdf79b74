"""Noisy activations as functions. The noise is given as xi, given as a seed, or drawn."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from noisyact import equations
from noisyact.compiling import as_call, constant, symbolic
from noisyact.noise import draw_seed, standard_normal
from noisyact.ops.activation import has_kernel, noisy_activation, reference
from noisyact.ops.activation.arguments import check, check_dim, check_x
from noisyact.ops.dispatch import traced
from noisyact.pairs import HARD_SIGMOID, HARD_TANH, RELU, HardPair, Pair
from noisyact.schemes import _KINDS, Scheme, scheme

__all__ = [
    "hard", "hard_sigmoid", "hard_tanh", "noisy", "noisy_hard_sigmoid", "noisy_hard_tanh", "noisy_relu",
    "standard_normal",
]  # fmt: skip


def hard_tanh(x: Tensor) -> Tensor:
    """``max(min(x, 1), -1)``: tanh expanded about zero and clipped. Its gradient at the kinks is 1.

    >>> hard_tanh(torch.tensor([-2.0, 0.5, 2.0]))
    tensor([-1.0000,  0.5000,  1.0000])
    """
    return hard(x, HARD_TANH)


def hard_sigmoid(x: Tensor) -> Tensor:
    """``max(min(0.25 x + 0.5, 1), 0)``, the paper's hard sigmoid. The slope of F.hardsigmoid is 1/6.

    >>> hard_sigmoid(torch.tensor([-2.0, 0.0, 1.0]))
    tensor([0.0000, 0.5000, 0.7500])
    """
    return hard(x, HARD_SIGMOID)


def hard(x: Tensor, pair: HardPair | Pair) -> Tensor:
    """The hard function h of a pair, without noise.

    >>> hard(torch.tensor([-1.0, 2.0]), RELU)
    tensor([0., 2.])
    """
    if symbolic(x):
        return as_call(hard, x, pair)
    check_x(x)
    return pair.h(x)


def noisy_hard_tanh(
    x: Tensor,
    noise: Scheme | str,
    p: Tensor | None = None,
    xi: Tensor | None = None,
    *,
    training: bool = True,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    dim: int = -1,
) -> Tensor:
    """The noisy hard tanh. See :func:`noisy` for the arguments.

    >>> x = torch.tensor([0.5, 3.0])
    >>> noisy_hard_tanh(x, "nah:alpha=1.0,c=0.5", p=torch.tensor([1.0]), xi=torch.tensor([9.0, -1.0]))
    tensor([0.5000, 0.9275])
    >>> noisy_hard_tanh(x, "nan:alpha=1.15", training=False)
    tensor([0.5000, 0.7000])
    """
    return noisy(x, HARD_TANH, noise, p, xi, training=training, generator=generator, seed=seed, dim=dim)


def noisy_hard_sigmoid(
    x: Tensor,
    noise: Scheme | str,
    p: Tensor | None = None,
    xi: Tensor | None = None,
    *,
    training: bool = True,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    dim: int = -1,
) -> Tensor:
    """The noisy hard sigmoid with the paper's ``u(x) = 0.25 x + 0.5``. See :func:`noisy` for the arguments.

    >>> noisy_hard_sigmoid(torch.tensor([0.0, 4.0]), "nan:alpha=1.0", training=False)
    tensor([0.5000, 1.0000])
    """
    return noisy(x, HARD_SIGMOID, noise, p, xi, training=training, generator=generator, seed=seed, dim=dim)


def noisy_relu(
    x: Tensor,
    noise: Scheme | str,
    p: Tensor | None = None,
    xi: Tensor | None = None,
    *,
    training: bool = True,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    dim: int = -1,
) -> Tensor:
    """The noisy ReLU, which saturates and is noisy below zero. See :func:`noisy` for the arguments.

    >>> noisy_relu(torch.tensor([-4.0, 2.0]), "nah:alpha=1.0", xi=torch.ones(2))
    tensor([0.1162, 2.0000])
    """
    return noisy(x, RELU, noise, p, xi, training=training, generator=generator, seed=seed, dim=dim)


def noisy(
    x: Tensor,
    pair: HardPair | Pair,
    noise: Scheme | str,
    p: Tensor | None = None,
    xi: Tensor | None = None,
    *,
    training: bool = True,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    scale: Tensor | None = None,
    dim: int = -1,
) -> Tensor:
    """The noisy version of any saturating function, given as a pair of h and its linearisation u.

    ``phi = alpha h + (1 - alpha) u + d sigma epsilon`` for NAN and NAH, ``phi = h(x + sigma xi)`` for NANI, NANIL and
    NANIS; the docstrings of the schemes and of the estimators give the details. float64 input is computed in float64,
    all other input in float32.

    Args:
        x: a floating-point tensor of any shape.
        pair: h and u, such as ``HARD_TANH`` or ``harden(torch.atan)``.
        noise: a scheme or its text, such as ``"nah:c=0.3"``.
        p: one element, or one for each element of x's dimension ``dim``. None means p = 1.
        xi: standard normal noise of x's shape, used instead of a draw. NAH takes its absolute value. A scheme with
            ``draw="mean"`` does not use it.
        training: False computes the expectation and draws no random number. The leak stays; epsilon becomes
            E|xi| = sqrt(2/pi) for NAH and 0 for the other schemes.
        generator: the generator that the seed is drawn from; torch's default generator if None.
        seed: one int64, used instead of a draw. It defines xi as ``standard_normal(seed, x.shape)``; the kernels
            compute xi from it without storing it.
        scale: a tensor that replaces the scheme's c or sigma, so that annealing does not trigger recompilation.
        dim: the dimension of x that p belongs to, such as 1 for the channels of [N, C, H, W].

    Returns: a tensor of x's shape and dtype.

    >>> from noisyact.pairs import harden
    >>> noisy(torch.tensor([1.0, 9.0]), harden(torch.atan), "nan", training=False)
    tensor([1.0000, 0.4564])
    """
    if symbolic(x):
        return as_call(noisy, x, pair, noise, p, xi, training=training, generator=generator, seed=seed, scale=scale)
    noise = _scheme(noise)
    if noise.needs_limits:
        equations.limits_of(pair, noise)
    training = training and noise.draws  # without a draw, phi is its own expectation
    if dim != -1 and isinstance(p, Tensor) and p.numel() != 1:
        start = check_dim(x, p, dim)
        if xi is not None:
            _check_xi(x, xi, seed)
            xi = xi.flatten(start)
        # Joined to one dimension, the elements keep their order: the kernels can run, and a seed gives the same xi.
        joined, p = x.flatten(start), facing(p, x, start).expand(x.shape[start:]).flatten()
        return noisy(
            joined, pair, noise, p, xi, training=training, generator=generator, seed=seed, scale=scale
        ).reshape(x.shape)
    check(x, p, scale, seed)
    if scale is None:
        # A compiled graph needs the scale on x's device. In eager mode, a CPU scalar saves the launch of a fill kernel.
        device = "cpu" if x.device.type == "cuda" and not torch.compiler.is_compiling() else x.device
        scale = torch.full((), noise.scale, dtype=reference.working_dtype(x.dtype), device=device)
    if not (noise.learns_p and (training or noise.smooths or equations.expected_epsilon(noise))):
        p = None  # the result does not depend on p: no path may give it a gradient
    if xi is not None:
        _check_xi(x, xi, seed)
        return _with_xi(x, pair, noise, p, xi if training else None, scale)
    if not training:
        if isinstance(pair, Pair) or traced() or not has_kernel(x):
            return _with_xi(x, pair, noise, p, None, scale)  # exporters and the compiler's fusion need torch operations
        return noisy_activation(x, p, scale, None, noise, pair)
    if seed is None:
        seed = draw_seed(x.device, generator)
    if isinstance(pair, Pair) or not has_kernel(x):
        return _with_xi(x, pair, noise, p, standard_normal(seed, x.shape), scale)
    return noisy_activation(x, p, scale, seed, noise, pair)


def facing(p: Tensor, x: Tensor, dim: int) -> Tensor:
    """p in a shape that broadcasts along a dimension of x.

    >>> facing(torch.ones(3), torch.ones(2, 3, 4, 5), 1).shape
    torch.Size([3, 1, 1])
    """
    return p if p.numel() == 1 else p.reshape(-1, *[1] * (x.dim() - 1 - dim % x.dim()))


def _scheme(noise: Scheme | str) -> Scheme:
    if isinstance(noise, str) and torch.compiler.is_compiling():
        # The compiler can trace the constructor of a scheme but not the parser. Settings are constants in the graph.
        kind = _KINDS[_setting(noise, "name")]
        return kind(**{name: _setting(noise, name) for name in kind.__match_args__})
    return scheme(noise)


@constant
def _setting(text: str, name: str) -> Any:
    return getattr(scheme(text), name)


def _with_xi(
    x: Tensor, pair: HardPair | Pair, noise: Scheme, p: Tensor | None, xi: Tensor | None, scale: Tensor
) -> Tensor:
    dtype = reference.working_dtype(x.dtype)
    wide_p = 1.0 if p is None else p.to(dtype).reshape(() if p.numel() == 1 else -1)
    wide_xi = None if xi is None else xi.to(dtype)
    wide_scale = scale.to(dtype).reshape(())
    return equations.phi(x.to(dtype), pair, noise, wide_scale, wide_p, wide_xi).to(x.dtype)


def _check_xi(x: Tensor, xi: Tensor, seed: Tensor | None) -> None:
    if seed is not None:
        raise ValueError("give xi or seed, not both")
    if not isinstance(xi, Tensor) or not xi.is_floating_point():
        raise TypeError(f"xi must be a floating-point tensor, not {xi!r}")
    if xi.shape != x.shape:
        raise ValueError(f"xi of shape {tuple(xi.shape)} does not fit x of shape {tuple(x.shape)}: they must be equal")
