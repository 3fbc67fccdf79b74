"""Tasks that train one model with one optimiser: what the experiments share of an update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from noisyact_lab.engine.process_group import SINGLE_PROCESS, ProcessGroup
from noisyact_lab.engine.task import Task
from noisyact_lab.loops.cuda_graph import captured

__all__ = ["ModelTask"]

M = TypeVar("M", bound=nn.Module)


class ModelTask(Task, Generic[M]):
    """A run that trains one model with one optimiser, on one device or spread over several.

    A subclass defines `_step` and calls `self.step`, which is the same recorded as a CUDA graph on a GPU. The
    step calls `self.trained`, not `self.model`, so that gradients are averaged where the run is spread.

    Args:
        name: of the experiment, for errors.
        settings: of the run; has `batch`, the rows that several devices share out.
        model: already on its device.
        optimizer: of its parameters, able to step inside a CUDA graph.
        optimizer_name: its name in a checkpoint.
        updates: how many there are, at most; by default the setting.
        evaluate_every: the number of updates from one evaluation to the next; by default the setting.
    """

    spreads = True
    _step: Callable[..., Any]
    """A function of tensors: all that an update does, in operations on static tensors."""

    def __init__(
        self, name: str, settings: Any, model: M, optimizer: torch.optim.Optimizer, optimizer_name: str = "adam", *,
        updates: int | None = None, evaluate_every: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(updates or settings.updates, evaluate_every or settings.evaluate_every)
        weight = next(model.parameters())
        self.name, self.settings, self.model, self.optimizer = name, settings, model, optimizer
        self.device = weight.device
        self.modules["model"] = model
        self.optimizers[optimizer_name] = optimizer
        self.group: ProcessGroup = SINGLE_PROCESS
        self.trained: nn.Module = model
        self.step = captured(self._step, [weight])
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        """The sum of what :meth:`add_loss` was given since the last evaluation."""

    def spread(self, group: ProcessGroup) -> None:
        """Share out the rows of each batch. The step is not recorded: a graph cannot send gradients."""
        group.check_even(self.name, self.settings.batch)
        self.group, self.trained, self.step = group, group.averaged(self.model), self._step

    def descend(self, loss: Tensor, max_gradient_norm: float | None = None) -> None:
        """Step the optimiser by the loss's gradient, whose norm is clipped first."""
        self.optimizer.zero_grad()
        self.group.backward(loss)
        if max_gradient_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), max_gradient_norm)
        self.optimizer.step()

    def add_loss(self, loss: Tensor) -> None:
        """Count the loss of this update's rows; part of a step."""
        self.loss_sum += loss.detach()

    def mean_loss(self, count: int) -> float:
        """The mean loss of the updates since the last evaluation, with the noise and while the weights changed.

        Called once at each evaluation, after `count` updates.
        """
        since = (count - 1) % self.evaluate_every + 1
        mean = self.group.mean(self.loss_sum).item() / since
        self.loss_sum.zero_()
        return mean
