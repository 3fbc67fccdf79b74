"""What a run trains: its state, how an update changes it, and the processes that train it together."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from noisyact.diagnostics.saturation import saturation
from noisyact_lab.gpu.cuda_graph import captured

__all__ = ["SINGLE_PROCESS", "ProcessGroup", "Task"]

_NOISE = ("saturated", "sigma", "drawn", "p", "at_limits")

_T = TypeVar("_T")
M = TypeVar("M", bound=nn.Module)


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


class Task(abc.ABC, Generic[M]):
    """One run of one arm: it trains one model with one optimiser, on one device or spread over several.

    A subclass defines `_step` and calls `self.step`, which is the same recorded as a CUDA graph on a GPU. The step
    calls `self.trained`, not `self.model`, so that gradients are averaged where the run is spread.

    A run that is stopped and resumed must end as one that was not. So all state is in what is named here: `modules`
    and `optimizers` by their state_dicts, `generators` by their states, and `memory`, which JSON can hold. The engine
    also keeps the state of torch's own generators.

    Args:
        name: of the experiment, for errors.
        settings: of the run; has `batch`, the rows that several devices share out.
        model: already on its device.
        optimizer: of its parameters, able to step inside a CUDA graph.
        optimizer_name: its name in a checkpoint.
        updates: how many there are, unless :meth:`end` ends the run before; by default the setting.
        evaluate_every: the number of updates from one evaluation, and its checkpoint, to the next; by default the
            setting.
    """

    end_key: ClassVar[str] = "ended"
    """The key in `memory` of the update at which a run ended early."""
    spreads: ClassVar[bool] = True
    """Whether a run can be spread over several devices by :meth:`spread`."""
    tested: ClassVar[str] = "model"
    """The name, in `modules`, of the model that is tested in the end and used afterwards."""
    _step: Callable[..., Any]
    """A function of tensors: all that an update does, in operations on static tensors."""

    def __init__(
        self, name: str, settings: Any, model: M, optimizer: torch.optim.Optimizer, optimizer_name: str = "adam", *,
        updates: int | None = None, evaluate_every: int | None = None,
    ) -> None:  # fmt: skip
        self.name, self.settings, self.model, self.optimizer = name, settings, model, optimizer
        self.planned_updates = updates or settings.updates
        self.evaluate_every = evaluate_every or settings.evaluate_every
        self.modules: dict[str, nn.Module] = {"model": model}
        self.optimizers: dict[str, torch.optim.Optimizer] = {optimizer_name: optimizer}
        self.generators: dict[str, torch.Generator] = {}
        self.memory: dict[str, Any] = {}
        weight = next(model.parameters())
        self.device = weight.device
        self.group = SINGLE_PROCESS
        self.trained: nn.Module = model
        self.step = captured(self._step, [weight])
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        """The sum of what :meth:`add_loss` was given since the last evaluation."""

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

    def probe(self) -> tuple[Any, ...] | None:
        """The model's arguments for a small batch, on which :meth:`measure_noise` measures the noise.

        The same at every evaluation, and no random number is drawn for it. None if there is nothing to measure.
        """
        return None

    def measure_noise(self) -> dict[str, dict[str, float]]:
        """The manipulation check: how saturated each nonlinearity is, and how much noise it draws.

        The noise of a unit depends on its saturation, so an arm whose units hardly saturate tests nothing about it.
        Each nonlinearity (each gate of a recurrent layer) has, as far as they exist and are finite,

        - `saturated`: the share of saturated activations;
        - `sigma`: the mean standard deviation of the noise;
        - `drawn`: the share of activations whose sigma is above 0, for functions with noise;
        - `p`: the mean |p|, for functions that learn it;
        - `at_limits`: the share of values that are exactly a limit of the function, such as 0 or 1.

        They are measured on one small batch with noise and dropout as in training, outside of CUDA graphs. The model
        and the random generators are left as they were, so a run's numbers are the same with and without it.
        """
        arguments = self.probe()
        if arguments is None:
            return {}
        training = self.model.training
        self.model.train()
        try:
            groups = saturation(self.model, *arguments).groups
        finally:
            self.model.train(training)
        numbers = {group.name or group.kind: {name: getattr(group, name) for name in _NOISE} for group in groups}
        return {
            unit: {name: float(f"{value:.6g}") for name, value in of_unit.items() if math.isfinite(value)}
            for unit, of_unit in numbers.items()
        }

    def samples(self) -> list[dict[str, Any]]:
        """Tables of text to keep of a finished run: dictionaries with a title, columns and rows."""
        return []

    def signatures(self) -> dict[str, str]:
        """How numbers of the result are computed, by their names, where a scorer has a signature for that."""
        return {}

    def vocabularies(self) -> dict[str, tuple[str, ...]]:
        """The words whose numbers the model reads and predicts, by the name of what has them."""
        return {}

    def pictures(self) -> dict[str, Any]:
        """Figures of matplotlib to keep of a finished run, by name."""
        return {}

    def spread(self, group: ProcessGroup) -> None:
        """Take this process's share of every batch, and average the gradients over the group, from now on.

        Called once, before a checkpoint is loaded, where `spreads` is true. A batch that cannot be shared out evenly is
        a ValueError. The step is not recorded: a graph cannot send gradients.
        """
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
