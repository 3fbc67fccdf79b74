"""Noise schedules, which map a step to the noise scale, and the scheduler that applies a schedule to a model.

Each schedule is an immutable callable that can be printed, compared and pickled.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from noisyact.activations import NoisyModule, check_model, set_noise_scale

__all__ = [
    "NoiseScheduler", "Schedule", "constant", "cosine", "exponential", "inverse_sqrt", "join", "linear",
    "piecewise",
]  # fmt: skip

Schedule = Callable[[int], float]
"""A function from a step (a whole number of at least 0) to the noise scale at that step."""


def _check_level(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}={value!r}: must be a finite number of at least 0")


def _check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r}: must be a whole number of at least 1")


def _check_step(step: int) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"step={step!r}: must be a whole number of at least 0")


def _between(start: float, end: float, share: float) -> float:
    """Interpolate from start (share 0) to end (share 1). Rounding never takes the result outside this range."""
    low, high = sorted((float(start), float(end)))
    return float(end) if share == 1.0 else min(max(start + share * (end - start), low), high)


@dataclasses.dataclass(frozen=True)
class constant:
    """The same value at every step.

    >>> constant(0.5)(1000)
    0.5
    """

    value: float

    def __post_init__(self) -> None:
        _check_level("value", self.value)

    def __call__(self, step: int) -> float:
        """Return the noise scale at a step."""
        _check_step(step)
        return float(self.value)


@dataclasses.dataclass(frozen=True)
class inverse_sqrt:
    """The paper's annealing: ``max(start / sqrt(t + 1), end)`` with ``t = step // every``.

    With the paper's 30, 0.5 and 200 the schedule reaches its end at step 719,800.

    >>> schedule = inverse_sqrt(start=30.0, end=0.5, every=200)
    >>> [schedule(step) for step in (0, 199, 600, 719_800)]
    [30.0, 30.0, 15.0, 0.5]
    """

    start: float = 30.0
    end: float = 0.5
    every: int = 200

    def __post_init__(self) -> None:
        _check_level("start", self.start)
        _check_level("end", self.end)
        _check_count("every", self.every)
        if self.end > self.start:
            raise ValueError(f"end={self.end!r} is above start={self.start!r}: this schedule must decrease")

    def __call__(self, step: int) -> float:
        """Return the noise scale at a step."""
        _check_step(step)
        return max(float(self.end), self.start / math.sqrt(step // self.every + 1))


@dataclasses.dataclass(frozen=True)
class linear:
    """Linear interpolation from start to end over ``steps`` steps, then constant at end.

    >>> [linear(1.0, 0.0, steps=4)(step) for step in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _check_level("start", self.start)
        _check_level("end", self.end)
        _check_count("steps", self.steps)

    def __call__(self, step: int) -> float:
        """Return the noise scale at a step."""
        _check_step(step)
        return _between(self.start, self.end, min(step / self.steps, 1.0))


@dataclasses.dataclass(frozen=True)
class cosine:
    """Half a period of a cosine from start to end over ``steps`` steps, then constant at end.

    >>> round(cosine(1.0, 0.0, steps=2)(1), 10)
    0.5
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _check_level("start", self.start)
        _check_level("end", self.end)
        _check_count("steps", self.steps)

    def __call__(self, step: int) -> float:
        """Return the noise scale at a step."""
        _check_step(step)
        return _between(self.start, self.end, math.sin(0.5 * math.pi * min(step / self.steps, 1.0)) ** 2)


@dataclasses.dataclass(frozen=True)
class exponential:
    """Exponential decay: ``max(start * rate ** (step / every), end)``.

    >>> exponential(8.0, rate=0.5, every=10, end=1.0)(20)
    2.0
    """

    start: float
    rate: float
    every: int = 1
    end: float = 0.0

    def __post_init__(self) -> None:
        _check_level("start", self.start)
        _check_level("end", self.end)
        _check_count("every", self.every)
        if isinstance(self.rate, bool) or not isinstance(self.rate, (int, float)) or not 0 < self.rate <= 1:
            raise ValueError(f"rate={self.rate!r}: must be above 0 and at most 1")
        if self.end > self.start:
            raise ValueError(f"end={self.end!r} is above start={self.start!r}: this schedule must decrease")

    def __call__(self, step: int) -> float:
        """Return the noise scale at a step."""
        _check_step(step)
        return max(float(self.end), self.start * self.rate ** (step / self.every))


@dataclasses.dataclass(frozen=True)
class join:
    """Consecutive schedules. Schedule i + 1 starts at step ``boundaries[i]``, where its own step is 0.

    >>> schedule = join([constant(2.0), linear(2.0, 0.0, steps=10)], boundaries=[100])
    >>> [schedule(step) for step in (0, 99, 100, 105, 110)]
    [2.0, 2.0, 2.0, 1.0, 0.0]
    """

    schedules: Sequence[Schedule]
    boundaries: Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedules", tuple(self.schedules))
        object.__setattr__(self, "boundaries", tuple(self.boundaries))
        for schedule in self.schedules:
            if not callable(schedule):
                raise TypeError(f"schedule={schedule!r}: must be a function from a step to the noise scale")
        for boundary in self.boundaries:
            _check_count("boundary", boundary)
        if not self.schedules:
            raise ValueError(f"schedules={self.schedules!r}: needs at least one")
        if len(self.schedules) != len(self.boundaries) + 1:
            raise ValueError(
                f"{len(self.schedules)} schedules need {len(self.schedules) - 1} boundaries, not {len(self.boundaries)}"
            )
        if any(a >= b for a, b in zip(self.boundaries, self.boundaries[1:], strict=False)):
            raise ValueError(f"boundaries={list(self.boundaries)!r}: must increase")

    def __call__(self, step: int) -> float:
        """Return the noise scale at a step."""
        _check_step(step)
        past = sum(step >= boundary for boundary in self.boundaries)
        return self.schedules[past](step - (self.boundaries[past - 1] if past else 0))


def piecewise(start: float, changes: dict[int, float]) -> join:
    """A piecewise constant schedule: start, then the value ``changes[step]`` from each of those steps on.

    >>> schedule = piecewise(3.0, {100: 1.0, 200: 0.5})
    >>> [schedule(step) for step in (0, 100, 250)]
    [3.0, 1.0, 0.5]
    """
    steps = sorted(changes)
    return join([constant(start), *(constant(changes[step]) for step in steps)], steps)


class NoiseScheduler:
    """Sets the noise scale of every noisy module of a model to ``schedule(step)``.

    The constructor sets the value of step 0. Call :meth:`step` after each optimiser step, as for a learning-rate
    scheduler. The only state is the step, and the value is always ``schedule(step)``, so resuming is exact.

    Args:
        model: a module that contains at least one noisy module.
        schedule: a function from the step to the scale, such as ``noisyact.anneal.inverse_sqrt()``.
        only: the name of the scales to set, such as "slope", in a model with several kinds; all if None.

    >>> from noisyact import NoisyHardTanh, anneal
    >>> model = nn.Sequential(NoisyHardTanh())
    >>> scheduler = NoiseScheduler(model, anneal.linear(1.0, 0.0, steps=4))
    >>> scheduler.step()
    >>> scheduler.value, model[0].scale.item()
    (0.75, 0.75)
    """

    def __init__(self, model: nn.Module, schedule: Schedule, only: str | None = None) -> None:
        check_model(model)
        if not any(isinstance(module, NoisyModule) for module in model.modules()):
            raise ValueError(f"{type(model).__name__} has no noisy part to anneal; see noisyact.noisify")
        if not callable(schedule):
            raise TypeError(f"schedule must be a function from a step to the noise scale, not {schedule!r}")
        self._model = model
        self.schedule, self.only = schedule, only
        self.last_step = 0
        self.set_step(0)

    @property
    def value(self) -> float:
        """The current noise scale."""
        return self.schedule(self.last_step)

    def step(self) -> None:
        """Advance by one step."""
        self.set_step(self.last_step + 1)

    def set_step(self, step: int) -> None:
        """Go to the given step, for trainers that count steps themselves."""
        value = self.schedule(step)
        set_noise_scale(self._model, value, self.only)
        self.last_step = step

    def state_dict(self) -> dict[str, Any]:
        """The state that resuming needs: the step."""
        return {"last_step": self.last_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the saved step and set its value."""
        if "last_step" not in state:
            raise KeyError(f"no 'last_step' in the state; it has {sorted(state)}")
        self.set_step(state["last_step"])
