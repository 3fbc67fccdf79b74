"""Compilation of a model's GPU kernels before its first call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from noisyact.activations import check_model
from noisyact.conversion.inventory import unchanged
from noisyact.conversion.replacing import Model

__all__ = ["precompile"]


def precompile(model: Model, *inputs: Tensor | Sequence[int], **keywords: Any) -> Model:
    """Compile the GPU kernels that a model needs for inputs of these shapes, so that training compiles none.

    Triton compiles a kernel at its first call and keeps it on disk for later processes. This function runs the model
    forward and backward in training mode, and forward in evaluation mode without gradients. The backward pass starts
    from the first tensor of the output, and then from all of them, because a layer whose final state has a gradient
    needs another kernel. Parameters, their `grad`, buffers, training flags and random generators do not change. On a
    CPU nothing is compiled, but the model is run in the same way.

    A kernel serves any number of steps, and any batch size for which the layer is divided into programs in the same
    way. Give the largest batch of training; call again for a much smaller one, such as a single sequence in inference.

    Args:
        model: any module, on the device on which it will run.
        inputs: the model's positional arguments. A shape stands for random numbers of that shape, with the dtype and
            the device of the first parameter. Give tensors where the model takes something else, such as token ids.
        keywords: the model's keyword arguments.

    Returns: the model.

    >>> import noisyact as na
    >>> lstm = precompile(na.NoisyLSTM(16, 32), (20, 8, 16))  # steps, batch, features
    """
    check_model(model)
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    with unchanged(model):
        given = [_example(value, like) for value in inputs]
        model.train()
        with torch.enable_grad():
            _differentiate(model(*given, **keywords), model)
        model.eval()
        with torch.no_grad():
            model(*given, **keywords)
    return model


def _example(value: Any, like: Tensor) -> Any:
    """The value itself, or random numbers if it is a shape."""
    if not (isinstance(value, (tuple, list)) and all(isinstance(size, int) for size in value)):
        return value
    if min(value, default=1) < 1:
        raise ValueError(f"the sizes of a shape must be at least 1, not {tuple(value)}")
    return torch.randn(tuple(value), dtype=like.dtype, device=like.device)


def _differentiate(output: Any, model: nn.Module) -> None:
    """Run the backward pass of the first tensor in a model's output, and of all, without writing any `grad`."""
    outputs = [t for t in _tensors(output) if t.requires_grad]
    wanted = [p for p in model.parameters() if p.requires_grad]
    for some in (outputs[:1], outputs) if len(outputs) > 1 else (outputs,):
        if some and wanted:
            ones = [torch.ones_like(t) for t in some]
            torch.autograd.grad(some, wanted, ones, retain_graph=True, allow_unused=True)


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
