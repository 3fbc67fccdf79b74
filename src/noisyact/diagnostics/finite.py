"""Detection of the module and the step where activations or gradients stop being finite."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn

from noisyact.activations import NoisyModule, check_model
from noisyact.recurrent.cells import NoisyCell
from noisyact.recurrent.layers import NoisyRecurrent

__all__ = ["FiniteWatch", "NonFinite"]

_PER_STEP = 1 << 24


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """A module and a step where an activation or a gradient stopped being finite."""

    module: str
    what: str
    """``"activation"`` for the module's output, ``"gradient"`` for the gradient of its output."""
    step: int

    def __str__(self) -> str:
        return f"the {self.what} of {self.module or '(the model)'} stopped being finite at step {self.step}"


class FiniteWatch:
    """Checks the outputs, and their gradients, of every noisy module and every module without children.

    Training does not wait for the device: the results stay on it until :meth:`findings` reads them. The usual cause of
    non-finite values is noise too large for the learning rate. The first finding names the module where they began.

    Args:
        model: the model to watch until :meth:`close` is called or the ``with`` block ends.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    >>> with FiniteWatch(model) as watch:
    ...     _ = model(torch.tensor([[float("inf"), 0.0]]))
    >>> print(watch.first())
    the activation of 0 stopped being finite at step 0
    """

    def __init__(self, model: nn.Module) -> None:
        check_model(model)
        self.step_number = 0
        self._sequence = 0
        self._first: dict[tuple[str, str], Tensor] = {}
        self._handles = [
            module.register_forward_hook(self._watch_output(name))
            for name, module in model.named_modules()
            if isinstance(module, (NoisyModule, NoisyRecurrent, NoisyCell)) or next(module.children(), None) is None
        ]

    def step(self, number: int | None = None) -> None:
        """Advance by one training step, or go to the given step."""
        number = self.step_number + 1 if number is None else number
        if number != self.step_number:  # with accumulated gradients several batches belong to one step
            self.step_number, self._sequence = number, 0

    def findings(self) -> list[NonFinite]:
        """The modules that stopped being finite, in the order of occurrence. Waits for the device."""
        seen = sorted((int(code), key) for key, code in self._first.items())
        return [NonFinite(name, what, code // _PER_STEP) for code, (name, what) in seen if code >= 0]

    def first(self) -> NonFinite | None:
        """The first finding; None if everything was finite."""
        return next(iter(self.findings()), None)

    def close(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _watch_output(self, name: str) -> Any:
        def hook(module: nn.Module, args: tuple, output: Any) -> None:
            for tensor in _floating(output):
                self._look(name, "activation", tensor)
                if tensor.grad_fn is not None:  # a hook on a parameter that the module returns would never be removed
                    tensor.register_hook(lambda gradient: self._look(name, "gradient", gradient))

        return hook

    def _look(self, name: str, what: str, tensor: Tensor) -> None:
        with torch.no_grad():
            bad = ~torch.isfinite(tensor.detach()).all()
            now = self.step_number * _PER_STEP + self._sequence
            self._sequence += 1
            before = self._first.get((name, what))
            if before is None:
                before = torch.full((), -1, dtype=torch.int64, device=tensor.device)
            self._first[name, what] = torch.where(bad & (before < 0), now, before)


def _floating(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, (tuple, list)):
        for part in output:
            yield from _floating(part)
    elif isinstance(output, dict):
        for part in output.values():
            yield from _floating(part)
