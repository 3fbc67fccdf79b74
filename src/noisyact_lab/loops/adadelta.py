"""Adadelta on a GPU in one pass over each parameter: torch's takes eleven, which for big vocabularies is what it costs.

It is torch's optimiser in everything else: the same state, the same checkpoints, and where there is no Triton, or the
parameters are not float32 on a GPU, its own step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from noisyact.ops import triton

__all__ = ["Adadelta"]


class Adadelta(torch.optim.Adadelta):
    """``s = rho s + (1 - rho) g^2``, ``delta = g sqrt(a + eps) / sqrt(s + eps)``, ``a = rho a + (1 - rho) delta^2``,
    ``w = w - lr delta``; s and a begin with zeros.

    Args:
        params: as torch's optimisers take them.
        lr, rho, eps: the letters above.
        capturable: for steps inside a CUDA graph.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> weight.grad = torch.tensor([2.0])
    >>> Adadelta([weight], eps=1e-6).step()  # delta = 2 sqrt(1e-6) / sqrt(0.05 * 4 + 1e-6)
    >>> round(weight.item(), 6)
    0.995528
    """

    def __init__(
        self, params: Any, lr: float = 1.0, rho: float = 0.95, eps: float = 1e-6, capturable: bool = False
    ) -> None:
        super().__init__(params, lr, rho, eps, capturable=capturable)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Change the parameters that have a gradient."""
        groups = [self._parts(group) for group in self.param_groups] if closure is None else []
        if not groups or not all(_is_fit(tensor) for parts in groups for tensors in parts[:4] for tensor in tensors):
            return super().step(closure)
        from noisyact_lab.loops.adadelta_kernel import update

        for group, (weights, gradients, squares, deltas, steps) in zip(self.param_groups, groups, strict=True):
            for tensors in zip(weights, gradients, squares, deltas, strict=True):
                update(*tensors, group["lr"], group["rho"], group["eps"])
            if steps:
                torch._foreach_add_(steps, 1)  # pyright: ignore[reportPrivateImportUsage]
        return None

    def _parts(self, group: dict[str, Any]) -> tuple[list[Tensor], ...]:
        """The group's parameters, gradients, s, a and counts of steps; made at the first step."""
        parts: tuple[list[Tensor], ...] = ([], [], [], [], [])
        self._init_group(group, *parts)
        return parts


def _is_fit(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.is_contiguous() and triton.obstacle(tensor.device) is None
