"""The weights that were best in validation, and the patience with which a run waits for better ones."""

from __future__ import annotations

import copy
import math
from typing import Generic, TypeVar

from torch import nn

from noisyact_lab.engine.task import Task

__all__ = ["BestWeights"]

M = TypeVar("M", bound=nn.Module)


class BestWeights(Generic[M]):
    """Keeps the weights with the lowest validation loss, as the module `best` of a task.

    Args:
        task: whose module `model` is evaluated.
        model: that module.
        loss_key: the key of the lowest loss in the task's memory.
        update_key: the key of the update at which it was measured; None where it is not kept.
        patience: evaluations in a row without a lower loss after which the run ends, counted from that update; None
            where it does not end.
    """

    def __init__(
        self, task: Task, model: M, loss_key: str, update_key: str | None = None, patience: int | None = None
    ) -> None:
        self._task, self._trained, self.model = task, model, copy.deepcopy(model)
        self._loss_key, self._update_key, self._patience = loss_key, update_key, patience
        task.modules["best"] = self.model

    def offer(self, loss: float, count: int) -> None:
        """Keep the model's weights if the validation loss after `count` updates is the lowest so far."""
        memory, update_key = self._task.memory, self._update_key
        if loss < memory.get(self._loss_key, math.inf):
            memory[self._loss_key] = loss
            if update_key is not None:
                memory[update_key] = count
            self.model.load_state_dict(self._trained.state_dict())
            return
        waited = 0 if update_key is None else count - memory.get(update_key, 0)
        if self._patience is not None and waited >= self._patience * self._task.evaluate_every:
            self._task.end(count)
