"""The common part of the trainer callbacks: run a schedule, measure saturation, report non-finite values."""

from __future__ import annotations

import warnings

from torch import nn

from noisyact.anneal import NoiseScheduler, Schedule
from noisyact.diagnostics.finite import FiniteWatch
from noisyact.diagnostics.saturation import SaturationMeter

__all__ = ["Annealing"]

ON_NONFINITE = ("warn", "raise", "ignore")


class Annealing:
    """Anneals the noise of one training run by the trainer's count of optimiser steps.

    Args:
        schedule: a function from the step to the noise scale.
        log_every: the number of optimiser steps between measurements of saturation and checks for non-finite values.
        on_nonfinite: ``"warn"`` once, ``"raise"`` a FloatingPointError, or ``"ignore"`` to skip the checks. The message
            names the module and the step where activations or gradients first stopped being finite.
        only: the name of the scales to set in a model with several kinds, as in :class:`noisyact.NoiseScheduler`.
    """

    def __init__(self, schedule: Schedule, log_every: int, on_nonfinite: str, only: str | None) -> None:
        if not callable(schedule):
            raise TypeError(f"schedule must be a function from a step to the noise scale, not {schedule!r}")
        if isinstance(log_every, bool) or not isinstance(log_every, int) or log_every < 1:
            raise ValueError(f"log_every={log_every!r}: must be a whole number of at least 1")
        if on_nonfinite not in ON_NONFINITE:
            raise ValueError(f"on_nonfinite={on_nonfinite!r}: allowed are {', '.join(map(repr, ON_NONFINITE))}")
        self.schedule, self.only = schedule, only
        self.log_every = log_every
        self.on_nonfinite = on_nonfinite
        self._scheduler: NoiseScheduler | None = None
        self._meter: SaturationMeter | None = None
        self._watch: FiniteWatch | None = None
        self._reported = False

    def start(self, model: nn.Module) -> None:
        """Start annealing and measuring a model."""
        self.finish()
        self._scheduler = NoiseScheduler(model, self.schedule, self.only)
        self._meter = SaturationMeter(model)
        self._watch = None if self.on_nonfinite == "ignore" else FiniteWatch(model)
        self._reported = False

    def before_step(self, step: int) -> None:
        """Set the noise scale of a step. Saturation is measured during every ``log_every``-th step."""
        assert self._scheduler is not None
        assert self._meter is not None
        self._scheduler.set_step(step)
        self._meter.active = step % self.log_every == 0
        if self._watch is not None:
            self._watch.step(step)

    def metrics(self) -> dict[str, float]:
        """The noise scale and the saturation since the last call, by metric name; empty outside of training."""
        if self._scheduler is None or self._meter is None:
            return {}
        shares = self._meter.read()
        return {"noise/scale": self._scheduler.value} | {f"saturation/{name}": share for name, share in shares.items()}

    def after_step(self, step: int) -> None:
        """Report non-finite values at every ``log_every``-th step."""
        if step % self.log_every == 0:
            self._report()

    def end(self) -> None:
        """Report non-finite values since the last check and remove the hooks, at the end of training."""
        try:
            self._report()
        finally:
            self.finish()

    def _report(self) -> None:
        if self._watch is None or self._reported:
            return
        first = self._watch.first()
        if first is None:
            return
        self._reported = True
        message = f"{first} (noise scale {self.schedule(first.step):g})"
        if self.on_nonfinite == "raise":
            self.finish()  # not every trainer notifies its callbacks of an exception
            raise FloatingPointError(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)

    def finish(self) -> None:
        """Remove the hooks from the model."""
        if self._meter is not None:
            self._meter.close()
        if self._watch is not None:
            self._watch.close()
        self._scheduler = self._meter = self._watch = None
