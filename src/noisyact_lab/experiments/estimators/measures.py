"""What is measured of hard gates at the end of a run: the score, the score with rounded gates, and their values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import noisyact as na
from noisyact.conversion.inventory import unchanged
from noisyact.diagnostics.trace import trace
from noisyact.pairs import HARD_SIGMOID
from noisyact_lab.engine.task import M, Task
from noisyact_lab.experiments.estimators.arms import GateSettings

__all__ = ["GateTask", "gate_shares", "rounded_gates"]


@contextlib.contextmanager
def rounded_gates(model: nn.Module) -> Iterator[None]:
    """Within the context the gates of a model in evaluation mode are exactly 0 or 1."""
    na.set_eval_noise(model, "binary")
    try:
        yield
    finally:
        na.set_eval_noise(model, "expectation")


def gate_shares(model: nn.Module, *arguments: Any) -> dict[str, float]:
    """Run a model once in evaluation mode, and look at the gates of its recurrent layers.

    Returns, in per cent:

    - `exact_gates`: the share of gate values that are exactly 0 or 1;
    - `dead_units`: the share of gate units that are saturated at the same limit at every step of every sequence. A unit
      is one output of one gate of one layer. It is saturated where the hard sigmoid of its input is 0 or 1, for soft
      gates too. The derivative of the hard sigmoid is 0 there: hard gates that are trained as they are get no gradient
      through a dead unit, and the unit is a constant. The other ways to train may still pass one.

    >>> gru = na.NoisyGRU(2, 3, noise=None)
    >>> for bias in (gru.bias_ih_l0, gru.bias_hh_l0):
    ...     _ = torch.nn.init.constant_(bias, 5.0)
    >>> gate_shares(gru, torch.zeros(4, 1, 2))
    {'exact_gates': 100.0, 'dead_units': 100.0}
    """
    with unchanged(model), torch.no_grad(), trace(model) as calls:
        model.eval()(*arguments)
    gates: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for call in calls:
        if call.function.pair == HARD_SIGMOID:
            gates.setdefault(call.name, []).append((call.x.flatten(0, -2), call.output.flatten(0, -2)))
    if not gates:
        raise ValueError(f"{type(model).__name__} has no gates: neither an LSTM nor a GRU of noisyact")
    exact, dead = [], []
    for steps in gates.values():
        x, y = (torch.cat(parts) for parts in zip(*steps, strict=True))
        u = HARD_SIGMOID.u(x)
        exact.append(((y == 0) | (y == 1)).double().mean())
        dead.append(((u <= 0).all(dim=0) | (u >= 1).all(dim=0)).double().mean())
    return {
        name: 100 * torch.stack(shares).mean().item() for name, shares in (("exact_gates", exact), ("dead_units", dead))
    }


class GateTask(Task[M]):
    """The part of a task that all experiments about hard gates share. It stands before the experiment's own task.

    That task provides `final`, the model that is tested; `summary`, its numbers from training and validation;
    `test_score`, which measures the final model on the test data; and `examined`, the model's arguments for some
    validation data. The numbers of a run are `summary`, the score and the score after rounding, their gap,
    and :func:`gate_shares`.
    """

    settings: GateSettings
    test_metric: ClassVar[str]
    """The name of the score."""
    final: Any
    summary: Callable[[list[dict[str, float]]], dict[str, float]]
    test_score: Callable[[], float]
    examined: Callable[[], tuple[Any, ...]]

    def __init__(self, settings: Any, seed: int, device: torch.device) -> None:
        super().__init__(settings, seed, device)  # pyright: ignore[reportCallIssue]
        self.scheduler = self.settings.scheduler(self.model, self.planned_updates)

    def update(self, index: int) -> dict[str, float]:
        """Set the scale of the gates, and update as the experiment does."""
        scheduler = self.scheduler
        if scheduler is not None and scheduler.schedule(index) != scheduler.value:  # else nothing is launched
            scheduler.set_step(index)
        return super().update(index)  # pyright: ignore[reportAbstractUsage]

    def result(self, evaluations: list[dict[str, float]]) -> dict[str, float]:
        """The run's numbers. Without the setting `test` the test data have no part in them."""
        found = self.summary(evaluations) | gate_shares(self.final, *self.examined())
        if not self.settings.test:
            return found
        score = self.test_score()
        with rounded_gates(self.final):
            rounded = self.test_score()
        name = self.test_metric
        return {name: score, f"rounded_{name}": rounded, "rounding_gap": rounded - score} | found
