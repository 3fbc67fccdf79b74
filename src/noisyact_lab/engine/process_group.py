"""The processes that train one run together, as a task sees them. Most runs are a single process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

__all__ = ["SINGLE_PROCESS", "ProcessGroup"]

_T = TypeVar("_T")


class ProcessGroup:
    """A single process, for which most methods do nothing; :func:`noisyact_lab.engine.distributed.join` has several."""

    rank = 0
    size = 1
    device: torch.device | None = None
    """The device of this process; None for a single process, which uses that of its job."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes the run's files."""
        return self.rank == 0

    def averaged(self, module: nn.Module) -> nn.Module:
        """The module to call in training: its gradients are averaged over the processes."""
        return module

    def backward(self, loss: Tensor) -> None:
        """Call this in place of ``loss.backward()``."""
        loss.backward()

    def share(self, batch: Tensor, dim: int = 0) -> Tensor:
        """This process's part of a batch."""
        return batch

    def check_even(self, experiment: str, batch: int) -> None:
        """Raise an error for a batch that cannot be shared out evenly."""
        if batch % self.size:
            raise ValueError(f"{experiment}: batch={batch}: must be a multiple of the {self.size} devices")

    def all_gather(self, share: Tensor, dim: int = 0) -> Tensor:
        """The shares of all processes, concatenated."""
        return share

    def mean(self, number: Tensor) -> Tensor:
        """The mean of a number over the processes."""
        return number

    def on_first(self, compute: Callable[[], _T]) -> _T:
        """Compute something in the first process, and return it in all; tensors come on the CPU.

        An OSError or a ValueError, which a user can correct, is raised in all processes as well.
        """
        return compute()

    def reseed(self, seed: int, update: int) -> None:
        """Seed torch's generators differently in each process but the first, whose generators stay as they are.

        The seeds depend only on `seed` and `update`: a checkpoint has the generators of the first process only.
        """


SINGLE_PROCESS = ProcessGroup()
