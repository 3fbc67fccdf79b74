"""Adadelta with a compiled step that reads the parameters once on a GPU. torch's own step reads them eleven times."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from noisyact.ops.triton import obstacle

__all__ = ["adadelta"]


def adadelta(parameters: Iterable[nn.Parameter], learning_rate: float, device: torch.device) -> torch.optim.Optimizer:
    """Create torch's Adadelta with rho = 0.95 and eps = 1e-6. On a GPU it can step inside a CUDA graph.

    With Triton on a GPU the step is compiled, so that the first step takes about ten seconds.

    Args:
        parameters: the parameters, all on `device`.
        learning_rate: the factor that every update is multiplied by.
        device: the device of the parameters.

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
