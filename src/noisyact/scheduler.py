"""Runs a noise schedule over a model."""

from __future__ import annotations

from typing import Any

from torch import nn

from noisyact.activations import NoisyModule, check_model, set_noise_scale
from noisyact.anneal import Schedule

__all__ = ["NoiseScheduler"]


class NoiseScheduler:
    """Sets the noise scale of every noisy part of a model to ``schedule(step)``.

    Made, it sets the value of step 0; each :meth:`step` goes on by one, as a learning-rate scheduler does, after the
    optimiser's step. The state is the step alone: the value is always ``schedule(step)``, so resuming is exact.

    Args:
        model: holds at least one noisy part.
        schedule: a function from the step to the scale, such as ``noisyact.anneal.inverse_sqrt()``.

    >>> from noisyact import NoisyHardTanh, anneal
    >>> model = nn.Sequential(NoisyHardTanh())
    >>> scheduler = NoiseScheduler(model, anneal.linear(1.0, 0.0, steps=4))
    >>> scheduler.step()
    >>> scheduler.value, model[0].scale.item()
    (0.75, 0.75)
    """

    def __init__(self, model: nn.Module, schedule: Schedule) -> None:
        check_model(model)
        if not any(isinstance(module, NoisyModule) for module in model.modules()):
            raise ValueError(f"{type(model).__name__} has no noisy part to anneal; see noisyact.noisify")
        if not callable(schedule):
            raise TypeError(f"schedule must be a function from a step to the noise scale, not {schedule!r}")
        self._model = model
        self.schedule = schedule
        self.last_step = 0
        self.set_step(0)

    @property
    def value(self) -> float:
        """The noise scale in force."""
        return self.schedule(self.last_step)

    def step(self) -> None:
        """Go on by one step."""
        self.set_step(self.last_step + 1)

    def set_step(self, step: int) -> None:
        """Go to a step, for trainers that count by themselves."""
        value = self.schedule(step)
        set_noise_scale(self._model, value)
        self.last_step = step

    def state_dict(self) -> dict[str, Any]:
        """What resuming needs: the step."""
        return {"last_step": self.last_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the saved step and set its value."""
        if "last_step" not in state:
            raise KeyError(f"no 'last_step' in the state; it has {sorted(state)}")
        self.set_step(state["last_step"])
