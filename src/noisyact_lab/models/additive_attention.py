"""Additive attention: how well each place answers a query, ``e = v . f(k + q)``.

Written as it stands, f(k + q) is a tensor as large as all places times all units, made and read several times at every
step of a decoder. Where a kernel serves, on a GPU, it is not made.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from noisyact.activations import NoisyActivation, NoisyHardSigmoid, NoisyHardTanh
from noisyact.equations import expected_epsilon
from noisyact.noise import draw_seed
from noisyact.ops.attention import triton
from noisyact.pairs import HardPair

__all__ = ["Drawn", "additive_scores", "drawn"]

_OURS = (NoisyActivation, NoisyHardTanh, NoisyHardSigmoid)  # a subclass of theirs may compute something else


def additive_scores(
    keys: Tensor, query: Tensor, function: nn.Module, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """``e[b, w, s] = v . f(keys[b, s] + query[b, w]) + bias``.

    Gradients through it are autograd's, of the tensor made whole. Without gradients, and within
    `noisyact_lab.loops.deferred_gradients.gathered_gradients`, it is not made on a GPU.

    Args:
        keys: [batch, places, size].
        query: [batch, width, size].
        function: f, elementwise: nn.Tanh, a noisy activation, any module.
        weight: v, [1, size], the weight of an nn.Linear(size, 1).
        bias: its bias, [1].

    Returns: [batch, width, places].

    >>> keys, query = torch.zeros(2, 7, 4), torch.zeros(2, 1, 4)
    >>> additive_scores(keys, query, nn.Tanh(), torch.ones(1, 4)).shape
    torch.Size([2, 1, 7])
    """
    if has_torch_function((keys, query, weight)):
        return handle_torch_function(additive_scores, (keys, query, weight), keys, query, function, weight, bias)
    if not torch.is_grad_enabled() and (found := drawn(keys, query, function, weight)) is not None:
        e = triton.scores(keys, query, weight[0], *found)
        return e if bias is None else e + bias
    return F.linear(function(keys[:, None] + query[:, :, None]), weight, bias).squeeze(3)


class Drawn(NamedTuple):
    """A function with its noise, as the kernels take it."""

    p: Tensor | None
    scale: Tensor | None
    seed: Tensor | None
    function: triton.Function


def drawn(keys: Tensor, query: Tensor, function: nn.Module, weight: Tensor) -> Drawn | None:
    """The function with noise drawn for this call; None, and nothing drawn, where no kernel serves."""
    if not triton.serves(keys) or _elsewhere(keys.device) or _hooked(function):
        return None
    batch, _, size = keys.shape
    kernels = query.dim() == 3 and query.numel() > 0 and (query.shape[0], query.shape[2]) == (batch, size)
    if not kernels or weight.shape != (1, size) or not all(_like(keys, tensor) for tensor in (keys, query, weight)):
        return None  # torch's operations broadcast what can be, and say what is wrong with the rest
    if type(function) is nn.Tanh:
        return Drawn(None, None, None, triton.Function())
    if not isinstance(function, NoisyActivation) or type(function) not in _OURS:
        return None
    stochastic = function.training or function.eval_noise == "sample"
    if not isinstance(function.pair, HardPair) or not (stochastic or function.eval_noise == "expectation"):
        return None
    noise, p = function.noise, function.p
    if p is not None and (p.numel() > 1 or not _like(keys, p)):
        return None
    if not stochastic and not expected_epsilon(noise):
        p = None  # it has no part in the result, and no gradient
    seed = draw_seed(keys.device) if stochastic else None
    return Drawn(p, function.scale, seed, triton.Function(noise, function.pair, stochastic))


def _like(keys: Tensor, tensor: Tensor) -> bool:
    """Whether a tensor is a plain one, of the same dtype and on the same device."""
    return type(tensor) in (Tensor, nn.Parameter) and (tensor.dtype, tensor.device) == (keys.dtype, keys.device)


def _elsewhere(device: torch.device) -> bool:
    """Whether torch is at something for which the operations must be torch's own."""
    return (
        torch.compiler.is_compiling()
        or torch.is_autocast_enabled(device.type)
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
    )


def _hooked(module: Any) -> bool:
    """Whether somebody wants to be told when the module is called."""
    hooks = torch.nn.modules.module
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        or hooks._global_forward_hooks or hooks._global_forward_pre_hooks or hooks._global_backward_hooks
    )  # fmt: skip
