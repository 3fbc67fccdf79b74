"""What runs recorded about their noise (`Task.measure_noise`), at the end and averaged over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from noisyact_lab.engine.folder.files import is_finite, read_lines
from noisyact_lab.engine.folder.records import NOISE

__all__ = ["HARDLY", "Units", "hardly_drawn", "lines_of_noise", "mean_of_last", "said_of_last"]

HARDLY = 0.01
"""Noise was hardly ever drawn if it was drawn in less than this share of the activations of every nonlinearity."""

Units = dict[str, dict[str, float]]
"""The numbers of each nonlinearity, by its name in the model."""


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


def lines_of_noise(folder: Path) -> list[tuple[float, Units]]:
    """The update and the numbers of each nonlinearity, for each line; empty for a run that did not record them."""
    return [(line["update"], _checked(line["units"])) for line in read_lines(folder / NOISE)]


def _checked(units: Any) -> Units:
    """The units, or a ValueError if they are no numbers by name."""
    if not isinstance(units, dict) or not all(
        isinstance(numbers, dict) and all(map(is_finite, numbers.values())) for numbers in units.values()
    ):
        raise ValueError(f"{NOISE} has a line whose units are no numbers by name")
    return units


def mean_of_last(runs: Sequence[Units]) -> Units:
    """The mean over runs of each number of each nonlinearity.

    >>> mean_of_last([{"h": {"saturated": 0.5, "p": 1.0}}, {"h": {"saturated": 0.25}}])
    {'h': {'saturated': 0.375, 'p': 1.0}}
    """
    found: dict[str, dict[str, list[float]]] = {}
    for units in runs:
        for unit, numbers in units.items():
            for name, value in numbers.items():
                found.setdefault(unit, {}).setdefault(name, []).append(value)
    return {
        unit: {name: sum(values) / len(values) for name, values in numbers.items()} for unit, numbers in found.items()
    }


def said_of_last(units: Mapping[str, Mapping[str, float]]) -> str:
    """The largest share of activations that drew noise, and where.

    >>> said_of_last({"l0.f": {"drawn": 0.002}, "l0.g": {"drawn": 0.004}, "out": {"saturated": 0.9}})
    'at most 0.4%, in l0.g'
    """
    shares = {unit: numbers["drawn"] for unit, numbers in units.items() if "drawn" in numbers}
    unit = max(shares, key=lambda name: shares[name])
    return f"at most {100 * shares[unit]:.2g}%, in {unit}"
