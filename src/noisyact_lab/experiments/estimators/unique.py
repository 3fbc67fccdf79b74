"""Ways to train hard gates in the LSTM of `unique-plateau`, where a network can be stuck.

Unlike there, every run does all its updates, so that all arms are tested after the same training. Evaluations are on
validation sequences. The learning rate is chosen by their mean error, which is lower the sooner a run solves the task.

The preset `short` has embeddings from N(0, 1), with which no network is stuck, so that 6,000 updates can be enough.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from noisyact_lab.engine.experiment import Experiment
from noisyact_lab.experiments.estimators.arms import (
    GateSettings,
    choice_by,
    gate_agreement,
    gate_arms,
    gate_comparisons,
)
from noisyact_lab.experiments.estimators.measures import GateTask
from noisyact_lab.experiments.unique import UNIQUE_PLATEAU, Counter, PlateauTraining, Unique

__all__ = ["ESTIMATORS_UNIQUE", "CountGateSettings", "CountGates"]

_VALIDATION = 20_160_302
"""The seed of the validation sequences, which are the same for every arm and run."""
_EXAMINED = 200
"""Validation sequences on which gates are looked at."""
_MARGIN = 1.0
"""Points of test error that differ by less count as equal."""


@dataclasses.dataclass(frozen=True)
class CountGateSettings(PlateauTraining, GateSettings):
    """The defaults are the preset `paper`."""

    end_at_error: float | None = None


class CountGates(GateTask[Counter], Unique):
    """One run."""

    settings: CountGateSettings  # pyright: ignore[reportIncompatibleVariableOverride]
    watched = "valid_error"
    test_metric = "test_error"

    def __init__(self, settings: CountGateSettings, seed: int, device: torch.device) -> None:
        super().__init__(settings, seed, device)
        self.held_out = self.sequences_of(_VALIDATION)

    def scale(self) -> dict[str, float]:
        """The scale of the gates where it is annealed."""
        return {} if self.scheduler is None else {"scale": self.scheduler.value}

    @property
    def final(self) -> Counter:
        """The model after the last update."""
        return self.model

    def summary(self, evaluations: list[dict[str, float]]) -> dict[str, float]:
        """Also the mean validation error of all evaluations."""
        mean = sum(line[self.watched] for line in evaluations) / len(evaluations)
        return {**super().summary(evaluations), "mean_valid_error": mean}

    def test_score(self) -> float:
        """The error on the test sequences."""
        return self.error_of(self.test_x, self.test_unique)

    def examined(self) -> tuple[Tensor]:
        """Some of the validation sequences."""
        return (self.held_out[0][:, :_EXAMINED],)


ESTIMATORS_UNIQUE = Experiment(
    name="estimators-unique",
    title="Count the different integers of a sequence from small embeddings: ways to train hard gates",
    reproduces="nothing in the paper; it compares the paper's noise with other estimators in the network of "
    "unique-plateau",
    settings=CountGateSettings,
    presets={
        "smoke": UNIQUE_PLATEAU.presets["smoke"],
        "short": {"embedding_std": 1.0, "updates": 6000, "evaluate_every": 300, "test_sequences": 2000},
    },
    arms=gate_arms(0.5),
    metric="test_error",
    unit="% test error after the last update",
    agreement=gate_agreement("number of updates to 1% validation error, by log-rank,", "1 point of the test error"),
    start=CountGates,
    comparisons=gate_comparisons("rounded_test_error", _MARGIN, times="updates_to_1%"),
    choice=choice_by("mean_valid_error"),
    cost_of="hard",
    minutes={"smoke": 0.05, "short": 1.0, "paper": 12.0},
)
