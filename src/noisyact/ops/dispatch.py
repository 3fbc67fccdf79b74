"""How a call reaches a kernel: straight by its address, through torch's dispatcher, or not at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from noisyact.compiling import constant

__all__ = ["batched", "plain", "traced", "tracing", "transformed"]

_BATCHED: Any = torch._C._parse_dispatch_key("Batched")  # of gradients under is_grads_batched
_PLAIN = (Tensor, torch.nn.Parameter, type(None))


def plain(*tensors: Tensor | None) -> bool:
    """Whether these are tensors with memory of their own, and no mode listens to what is done with them."""
    for tensor in tensors:
        if type(tensor) not in _PLAIN:
            return False
    return torch._C._len_torch_dispatch_stack() == 0


def tracing() -> bool:
    """Whether torch.jit.trace records."""
    return torch._C._get_tracing_state() is not None


def traced() -> bool:
    """Whether torch.compile, torch.export or torch.jit.trace records: operations then go through the dispatcher."""
    return torch.compiler.is_compiling() or tracing()


@constant
def transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work. No kernel takes part in either.

    torch takes no custom operator through torch.func.grad, and forward mode would drop the tangent of one without a
    word.
    """
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def batched(*gradients: Tensor | None) -> bool:
    """Whether backward is given several gradients at once, as by is_grads_batched or by vmap over backward."""
    for gradient in gradients:
        if gradient is not None and torch._C._dispatch_keys(gradient).has(_BATCHED):
            return True
    return torch._C._are_functorch_transforms_active()
