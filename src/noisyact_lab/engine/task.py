"""What a run trains: the state that changes while it trains, and how it changes."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import torch

__all__ = ["Task"]


class Task(abc.ABC):
    """One run of one arm.

    A run that is stopped and resumed must end as one that was not. So all state is in what is named here: `modules`
    and `optimizers` by their state_dicts, `generators` by their states, and `memory`, which JSON can hold. The engine
    also keeps the state of torch's own generators.

    Args:
        updates: how many there are, unless :meth:`end` ends the run before.
        evaluate_every: the number of updates from one evaluation, and its checkpoint, to the next.
    """

    end_key: ClassVar[str] = "ended"
    """The key in `memory` of the update at which a run ended early."""
    spreads: ClassVar[bool] = False
    """Whether a run can be spread over several devices by :meth:`spread`."""

    def __init__(self, updates: int, evaluate_every: int) -> None:
        self.planned_updates, self.evaluate_every = updates, evaluate_every
        self.modules: dict[str, torch.nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.generators: dict[str, torch.Generator] = {}
        self.memory: dict[str, Any] = {}

    @property
    def updates(self) -> int:
        """The number of updates in all; :meth:`end` lowers it."""
        return self.memory.get(self.end_key, self.planned_updates)

    def end(self, count: int) -> None:
        """End the run after `count` updates."""
        self.memory[self.end_key] = count

    def due(self, count: int) -> bool:
        """Whether an evaluation and a checkpoint follow after `count` updates."""
        return count % self.evaluate_every == 0 or count == self.updates

    @abc.abstractmethod
    def update(self, index: int) -> dict[str, float]:
        """Make one update; returns what is to be recorded of it."""

    @abc.abstractmethod
    def evaluate(self, index: int) -> dict[str, float]:
        """Measure the model after `index` updates."""

    @abc.abstractmethod
    def result(self, evaluations: list[dict[str, float]]) -> dict[str, float]:
        """The run's numbers, from all its evaluations."""

    def samples(self) -> list[dict[str, Any]]:
        """Tables of text to keep of a finished run: dictionaries with a title, columns and rows."""
        return []

    def pictures(self) -> dict[str, Any]:
        """Figures of matplotlib to keep of a finished run, by name."""
        return {}

    def spread(self, group: Any) -> None:
        """Take this process's share of every batch, and average the gradients over the group, from now on.

        Called once, before a checkpoint is loaded, where `spreads` is true. A batch that cannot be shared out evenly is
        a ValueError. The group is a :class:`noisyact_lab.engine.process_group.ProcessGroup`.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be spread over devices")
