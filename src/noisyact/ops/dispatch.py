"""Conditions that decide whether a call goes directly to a kernel, through torch's dispatcher, or to neither."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from noisyact.compiling import constant

__all__ = ["batched", "exporting", "exporting_to_onnx", "plain", "traced", "tracing", "transformed"]

_BATCHED: Any = torch._C._parse_dispatch_key("Batched")  # the dispatch key of gradients under is_grads_batched
_PLAIN = frozenset((Tensor, torch.nn.Parameter, type(None)))


def plain(*tensors: Tensor | None) -> bool:
    """Whether no tensor is of a subclass and no dispatch mode is active, so that a kernel can use the addresses."""
    return _PLAIN.issuperset(map(type, tensors)) and torch._C._len_torch_dispatch_stack() == 0


def tracing() -> bool:
    """Whether torch.jit.trace is tracing."""
    return torch._C._get_tracing_state() is not None


def traced() -> bool:
    """Whether torch.compile, torch.export or torch.jit.trace is tracing. Operations must then use the dispatcher."""
    return torch.compiler.is_compiling() or tracing()


@constant
def exporting() -> bool:
    """Whether torch.export, or torch.onnx.export by way of it, is tracing.

    Marked as a constant, because some torch releases replace the flag by True in everything that torch.compile traces.
    """
    return torch.compiler.is_exporting()


@constant
def exporting_to_onnx() -> bool:
    """Whether torch.onnx.export is tracing, with either of its exporters."""
    return "torch.onnx" in sys.modules and torch.onnx.is_in_onnx_export()


@constant
def transformed() -> bool:
    """Whether a torch.func transform or forward-mode differentiation is active. The kernels support neither.

    torch.func.grad does not support custom operators, and forward mode would silently drop their tangents.
    """
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def batched(*gradients: Tensor | None) -> bool:
    """Whether backward receives several gradients at once, from is_grads_batched or from vmap over backward."""
    for gradient in gradients:
        if gradient is not None and torch._C._dispatch_keys(gradient).has(_BATCHED):
            return True
    return torch._C._are_functorch_transforms_active()
