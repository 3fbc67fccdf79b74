"""Adadelta whose step on a GPU is one pass over the parameters; torch's own step takes eleven."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from noisyact.ops.triton import obstacle

__all__ = ["adadelta"]


def adadelta(parameters: Iterable[nn.Parameter], learning_rate: float, device: torch.device) -> torch.optim.Optimizer:
    """Torch's Adadelta with a decay of 0.95 and an epsilon of 1e-6; on a GPU it can step inside a CUDA graph.

    There its step is compiled, which takes about ten seconds at the first step.

    Args:
        parameters: all on the device.
        learning_rate: the factor of every update.
        device: where the parameters are.

    >>> weight = nn.Parameter(torch.tensor([1.0]))
    >>> weight.grad = torch.tensor([2.0])
    >>> adadelta([weight], 1.0, weight.device).step()  # by 2 sqrt(1e-6) / sqrt(0.05 * 4 + 1e-6)
    >>> round(weight.item(), 6)
    0.995528
    """
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.Adadelta(
        parameters, learning_rate, rho=0.95, eps=1e-6, foreach=on_gpu or None, capturable=on_gpu
    )
    if obstacle(device) is None:
        optimizer.step = torch.compile(optimizer.step)
    return optimizer
