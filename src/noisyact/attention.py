"""Additive attention with a noisy function: the score of each key for a query, ``e = v . f(k + q)``.

In torch operations f(k + q) is a tensor of all places times all units that every step of a decoder writes and reads
several times. The GPU kernels never write it to memory.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from noisyact.activations import NoisyActivation, NoisyHardSigmoid, NoisyHardTanh
from noisyact.equations import expected_epsilon
from noisyact.noise import draw_seed
from noisyact.ops.attention import triton
from noisyact.pairs import HardPair

__all__ = ["additive_scores", "drawn_noise"]

_OURS = (NoisyActivation, NoisyHardTanh, NoisyHardSigmoid)  # a subclass may compute something else


def additive_scores(
    keys: Tensor, query: Tensor, function: nn.Module, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """``e[b, w, s] = v . f(keys[b, s] + query[b, w]) + bias``.

    On a GPU a kernel computes the scores if gradients are disabled, or inside :func:`noisyact.deferred_gradients`.
    Otherwise torch operations compute them.

    Args:
        keys: [batch, places, size].
        query: [batch, width, size].
        function: the elementwise f: nn.Tanh, a noisy activation, or any other module.
        weight: v, [1, size], the weight of an nn.Linear(size, 1).
        bias: the bias of that layer, [1].

    Returns: [batch, width, places].

    >>> keys, query = torch.zeros(2, 7, 4), torch.zeros(2, 1, 4)
    >>> additive_scores(keys, query, nn.Tanh(), torch.ones(1, 4)).shape
    torch.Size([2, 1, 7])
    """
    if has_torch_function((keys, query, weight)):
        return handle_torch_function(additive_scores, (keys, query, weight), keys, query, function, weight, bias)
    if not torch.is_grad_enabled() and (noise := drawn_noise(keys, query, function, weight)) is not None:
        e = triton.scores(keys, query, weight[0], *noise)
        return e if bias is None else e + bias
    return F.linear(function(keys[:, None] + query[:, :, None]), weight, bias).squeeze(3)


def drawn_noise(keys: Tensor, query: Tensor, function: nn.Module, weight: Tensor) -> triton.Noise | None:
    """The function with noise drawn for this call. None if the kernels cannot run; no noise is drawn then."""
    if not triton.serves(keys) or _needs_torch(keys.device) or _hooked(function):
        return None
    batch, _, size = keys.shape
    kernels = query.dim() == 3 and query.numel() > 0 and (query.shape[0], query.shape[2]) == (batch, size)
    if not kernels or weight.shape != (1, size) or not all(_like(keys, tensor) for tensor in (keys, query, weight)):
        return None  # torch operations broadcast, or raise an error that names the problem
    if type(function) is nn.Tanh:
        return triton.Noise(None, None, None, triton.Function())
    if not isinstance(function, NoisyActivation) or type(function) not in _OURS:
        return None
    noisy = function.training or function.eval_noise == "sample"
    if not isinstance(function.pair, HardPair) or not (noisy or function.eval_noise == "expectation"):
        return None
    noise, p = function.noise, function.p
    stochastic = noisy and noise.draws
    if p is not None and (p.numel() > 1 or not _like(keys, p)):
        return None
    if not (stochastic or noise.smooths or expected_epsilon(noise)):
        p = None  # the result does not depend on it
    seed = draw_seed(keys.device) if stochastic else None
    return triton.Noise(p, function.scale, seed, triton.Function(noise, function.pair, stochastic))


def _like(keys: Tensor, tensor: Tensor) -> bool:
    """Whether a tensor has no subclass and the same dtype and device as the keys."""
    return type(tensor) in (Tensor, nn.Parameter) and (tensor.dtype, tensor.device) == (keys.dtype, keys.device)


def _needs_torch(device: torch.device) -> bool:
    """Whether torch.compile, torch.func, autocast or a dispatch mode is active. The kernels support none of them."""
    return (
        torch.compiler.is_compiling()
        or torch.is_autocast_enabled(device.type)
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
    )


def _hooked(module: Any) -> bool:
    """Whether a call of the module runs hooks."""
    hooks = torch.nn.modules.module
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        or hooks._global_forward_hooks or hooks._global_forward_pre_hooks or hooks._global_backward_hooks
    )  # fmt: skip
