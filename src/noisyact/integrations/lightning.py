"""A Lightning callback that anneals the noise and logs it."""

from __future__ import annotations

from typing import Any

from noisyact.extras import how_to_install

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError(f"noisyact.integrations.lightning needs Lightning: {how_to_install('lightning')}") from error

from noisyact.anneal import Schedule
from noisyact.integrations.annealing import Annealing

__all__ = ["NoiseAnnealing"]


class NoiseAnnealing(Callback):
    """Sets the noise scale to ``schedule(trainer.global_step)`` before every batch and logs it.

    ``global_step`` counts optimiser steps, so gradient accumulation and resuming do not change the schedule. The
    callback logs ``noise/scale`` and ``saturation/<module>``.

    Args:
        schedule: a function from the step to the noise scale, such as ``noisyact.anneal.inverse_sqrt()``.
        log_every: the number of optimiser steps between measurements of saturation and checks for non-finite values.
        on_nonfinite: ``"warn"``, ``"raise"`` or ``"ignore"`` if activations or gradients stop being finite. The message
            names the module and the step.
        only: the name of the scales to set, such as "slope", in a model with several kinds; all if None.

    Example: ``Trainer(callbacks=[NoiseAnnealing(noisyact.anneal.inverse_sqrt())])``
    """

    def __init__(
        self, schedule: Schedule, *, log_every: int = 50, on_nonfinite: str = "warn", only: str | None = None
    ) -> None:
        self._annealing = Annealing(schedule, log_every, on_nonfinite, only)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start annealing and measuring the module."""
        self._annealing.start(pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Set the noise scale of this step."""
        self._annealing.before_step(trainer.global_step)
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the metrics and check for non-finite values."""
        for name, value in self._annealing.metrics().items():
            pl_module.log(name, value)
        self._annealing.after_step(self._step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check for non-finite values a last time and remove the hooks."""
        self._annealing.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove the hooks."""
        self._annealing.finish()
