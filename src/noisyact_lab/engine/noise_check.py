"""The manipulation check: how saturated the units of a run are, and how much noise they draw, at each evaluation.

The noise of a unit depends on its saturation. An arm whose units hardly saturate draws hardly any noise and tests
nothing about it. So each evaluation records, for each nonlinearity of the model (for each gate of a recurrent layer),

- `saturated`: the share of saturated activations;
- `sigma`: the mean standard deviation of the noise;
- `drawn`: the share of activations whose sigma is above 0, for functions with noise;
- `p`: the mean |p|, for functions that learn it.

They are measured on one small batch with noise and dropout as in training, outside of what a CUDA graph records. The
model and the random generators are left as they were, so a run's numbers are the same with and without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from noisyact.diagnostics.saturation import saturation
from noisyact_lab.engine.task import Task

__all__ = ["HARDLY", "NUMBERS", "hardly_drawn", "measured"]

NUMBERS = ("saturated", "sigma", "drawn", "p")
HARDLY = 0.01
"""Noise was hardly ever drawn if it was drawn in less than this share of the activations of every nonlinearity."""

Units = dict[str, dict[str, float]]
"""The numbers of each nonlinearity, by its name in the model."""


def measured(task: Task) -> Units:
    """The numbers of each nonlinearity now; those that it does not have, or that are not finite, are left out."""
    arguments = task.probe()
    if arguments is None:
        return {}
    training = task.model.training
    task.model.train()
    try:
        groups = saturation(task.model, *arguments).groups
    finally:
        task.model.train(training)
    numbers = {group.name or group.kind: {name: getattr(group, name) for name in NUMBERS} for group in groups}
    return {
        unit: {name: float(f"{value:.6g}") for name, value in of_unit.items() if math.isfinite(value)}
        for unit, of_unit in numbers.items()
    }


def hardly_drawn(units: Mapping[str, Mapping[str, float]]) -> bool:
    """Whether noise was hardly ever drawn, though some of these nonlinearities have noise.

    For NAN, NAH, NANIL and NANIS `drawn` is the share of saturated activations: their sigma is 0 elsewhere. NANI draws
    noise everywhere.

    >>> hardly_drawn({"lstm.l0.f": {"saturated": 0.002, "drawn": 0.002}, "lstm.l0.g": {"drawn": 0.0}})
    True
    >>> hardly_drawn({"lstm.l0.f": {"drawn": 0.002}, "lstm.l0.g": {"drawn": 0.03}})
    False
    >>> hardly_drawn({"lstm.l0.f": {"saturated": 0.0}})  # no noise, so none is missing
    False
    """
    shares = [unit["drawn"] for unit in units.values() if "drawn" in unit]
    return bool(shares) and max(shares) < HARDLY
