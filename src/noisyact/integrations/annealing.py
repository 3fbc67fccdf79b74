"""What the trainers' callbacks share: run a schedule, measure saturation, name the cause of non-finite numbers."""

from __future__ import annotations

import warnings

from torch import nn

from noisyact.anneal import NoiseScheduler, Schedule
from noisyact.diagnostics.finite import FiniteWatch
from noisyact.diagnostics.saturation import SaturationMeter

__all__ = ["Annealing"]

ON_NONFINITE = ("warn", "raise", "ignore")


class Annealing:
    """One training run's annealing. Trainers count optimiser steps; the schedule is a function of that count.

    Args:
        schedule: step -> noise scale.
        log_every: how often, in optimiser steps, saturation is measured and finiteness is read.
        on_nonfinite: ``"warn"`` once, ``"raise"`` a FloatingPointError, or ``"ignore"``: do not watch. The message
            names the module and the step where activations or gradients first stopped being finite.
    """

    def __init__(self, schedule: Schedule, log_every: int, on_nonfinite: str) -> None:
        if not callable(schedule):
            raise TypeError(f"schedule must be a function from a step to the noise scale, not {schedule!r}")
        if isinstance(log_every, bool) or not isinstance(log_every, int) or log_every < 1:
            raise ValueError(f"log_every={log_every!r}: must be a whole number of at least 1")
        if on_nonfinite not in ON_NONFINITE:
            raise ValueError(f"on_nonfinite={on_nonfinite!r}: allowed are {', '.join(map(repr, ON_NONFINITE))}")
        self.schedule = schedule
        self.log_every = log_every
        self.on_nonfinite = on_nonfinite
        self._scheduler: NoiseScheduler | None = None
        self._meter: SaturationMeter | None = None
        self._watch: FiniteWatch | None = None
        self._reported = False

    def start(self, model: nn.Module) -> None:
        """Begin to follow a model."""
        self.finish()
        self._scheduler = NoiseScheduler(model, self.schedule)
        self._meter = SaturationMeter(model)
        self._watch = None if self.on_nonfinite == "ignore" else FiniteWatch(model)
        self._reported = False

    def before_step(self, step: int) -> None:
        """Set the noise of a step; measure during it if it is one to log."""
        assert self._scheduler is not None
        assert self._meter is not None
        self._scheduler.set_step(step)
        self._meter.active = step % self.log_every == 0
        if self._watch is not None:
            self._watch.step(step)

    def metrics(self) -> dict[str, float]:
        """The noise scale and the saturation measured since the last call, by the names to log them under.

        Nothing while no training runs.
        """
        if self._scheduler is None or self._meter is None:
            return {}
        shares = self._meter.read()
        return {"noise/scale": self._scheduler.value} | {f"saturation/{name}": share for name, share in shares.items()}

    def after_step(self, step: int) -> None:
        """Report, if this is a step to look, what stopped being finite."""
        if step % self.log_every == 0:
            self._report()

    def end(self) -> None:
        """The end of training: report what broke since the last look, and take the hooks off."""
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
            self.finish()  # not every trainer tells its callbacks of an exception
            raise FloatingPointError(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)

    def finish(self) -> None:
        """Take the hooks off the model."""
        if self._meter is not None:
            self._meter.close()
        if self._watch is not None:
            self._watch.close()
        self._scheduler = self._meter = self._watch = None
