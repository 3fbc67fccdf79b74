"""Training in bfloat16 with float32 weights: a copy of the model computes, and its gradients reach the weights.

Autocast casts each weight where it is used, and nothing is deferred under it (:mod:`noisyact.deferral`). A copy whose
weights are bfloat16 throughout is computed by the same kernels as any model, also inside a CUDA graph.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Generic, TypeVar

import torch
from torch import nn

__all__ = ["Bfloat16Copy"]

M = TypeVar("M", bound=nn.Module)


class Bfloat16Copy(Generic[M]):
    """The copy of a model. It has no state of its own: each update begins with :meth:`refresh`.

    Buffers are rounded too: a noise scale of 0.15 is 0.1504 in the copy.

    Args:
        model: has the weights that the optimiser steps, in float32.
        exact: the names of its submodules that compute in float32 in the copy too.

    >>> model = nn.Linear(1, 1)
    >>> copied = Bfloat16Copy(model)
    >>> copied.refresh()
    >>> copied.module(torch.ones(3, 1, dtype=torch.bfloat16)).sum().backward()
    >>> copied.return_gradients()
    >>> model.weight.grad
    tensor([[3.]])
    """

    def __init__(self, model: M, exact: Sequence[str] = ()) -> None:
        self._model = model
        self.module = copy.deepcopy(model).to(torch.bfloat16)
        for name in exact:
            self.module.get_submodule(name).float()
        """What an update computes with, in training mode as the model was."""

    @torch.no_grad()
    def refresh(self) -> None:
        """Round the model's weights and buffers into the copy, whose gradients are dropped."""
        for own, original in zip(_tensors(self.module), _tensors(self._model), strict=True):
            own.copy_(original)
        self.module.zero_grad()

    def return_gradients(self) -> None:
        """Make the gradients of the copy those of the model, in float32."""
        for own, original in zip(self.module.parameters(), self._model.parameters(), strict=True):
            original.grad = None if own.grad is None else own.grad.to(original.dtype)


def _tensors(module: nn.Module) -> itertools.chain[torch.Tensor]:
    return itertools.chain(module.parameters(), module.buffers())
