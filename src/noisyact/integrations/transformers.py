"""A callback for the Hugging Face Trainer that anneals the noise and logs it."""

from __future__ import annotations

from typing import Any

from noisyact.extras import how_to_install

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        f"noisyact.integrations.transformers needs transformers: {how_to_install('transformers')}"
    ) from error

from noisyact.anneal import Schedule
from noisyact.integrations.annealing import Annealing

__all__ = ["NoiseAnnealingCallback"]


class NoiseAnnealingCallback(TrainerCallback):
    """Sets the noise scale to ``schedule(state.global_step)`` before every optimiser step and logs it.

    Reporters such as TensorBoard run before the callbacks given to a Trainer and receive the logs first. To report the
    noise, insert this callback before them: ``trainer.callback_handler.callbacks.insert(0, callback)``.

    Args: those of :class:`noisyact.integrations.lightning.NoiseAnnealing`.

    Example: ``Trainer(..., callbacks=[NoiseAnnealingCallback(noisyact.anneal.inverse_sqrt())])``
    """

    def __init__(
        self, schedule: Schedule, *, log_every: int = 50, on_nonfinite: str = "warn", only: str | None = None
    ) -> None:
        self._annealing = Annealing(schedule, log_every, on_nonfinite, only)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start annealing and measuring the model."""
        self._annealing.start(kwargs["model"])

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the noise scale of this step."""
        self._annealing.before_step(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Check for non-finite values."""
        self._annealing.after_step(state.global_step - 1)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add the noise scale and the saturation to the Trainer's logs."""
        metrics = self._annealing.metrics()
        kwargs.get("logs", {}).update(metrics)
        if state.log_history:
            state.log_history[-1].update(metrics)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check for non-finite values a last time and remove the hooks."""
        self._annealing.end()
