"""Measurement of a model's saturation, of its noise, and of the gradient along each of the paper's paths."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from noisyact.activations import NoisyActivation, check_model
from noisyact.conversion.inventory import unchanged
from noisyact.diagnostics.finite import FiniteWatch, NonFinite
from noisyact.diagnostics.trace import TracedCall, UnitGroup, input_of, trace, trace_recurrent
from noisyact.pairs import HardPair
from noisyact.recurrent.cells import NoisyCell
from noisyact.recurrent.layers import NoisyRecurrent
from noisyact.text_table import terminal_width, text_table

__all__ = ["Saturation", "SaturationMeter", "UnitGroup", "saturation"]


@dataclasses.dataclass(frozen=True)
class Saturation:
    """The result of :func:`saturation`. Prints as a table and iterates over its groups."""

    groups: tuple[UnitGroup, ...]
    nonfinite: tuple[NonFinite, ...] = ()
    """Modules whose activations or gradients were not finite, in the order of occurrence."""

    def __iter__(self) -> Iterator[UnitGroup]:
        return iter(self.groups)

    def __getitem__(self, name: str) -> UnitGroup:
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(f"no unit group {name!r}; there are {[group.name for group in self.groups]}")

    def __str__(self) -> str:
        numbers = ("saturated", "at_limits", "depth", "sigma", "linear", "nonlinear", "stochastic")
        rows = [
            (group.name or "(the model)", group.kind, *(_shown(getattr(group, number)) for number in numbers))
            for group in self.groups
        ]
        header = ("module", "type", "saturated", "at limits", "|Delta|", "sigma", "grad u", "grad h", "grad sigma")
        table = text_table(header, rows, terminal_width()) if rows else "no noisy or saturating module"
        return "\n".join([table, *map(str, self.nonfinite)])


def _shown(number: float) -> str:
    return "-" if math.isnan(number) else f"{number:.4g}"


def saturation(
    model: nn.Module, *inputs: Any, loss: Callable[[Any], Tensor] | None = None, **keywords: Any
) -> Saturation:
    """Run a model once and measure the saturation of each noisy or saturating nonlinearity.

    The model runs in its current mode; call ``model.train()`` first to measure with noise. The model, its buffers and
    gradients, and the random generators do not change. A soft tanh or sigmoid counts as saturated where its hard
    version is. Noisy recurrent layers and cells are run by the reference, and each of their nonlinearities is listed:
    `lstm.l0.f` is the forget gate of the first layer. "at limits" is the share of values that are exactly 0 or 1, or
    the limits of another range. torch's recurrent modules are not listed.

    Args:
        model: any module.
        inputs: the model's positional arguments.
        loss: a function from the model's output to a scalar. If given, the gradient along each of the paper's three
            paths is measured: linear (u), nonlinear (h) and stochastic (sigma).
        keywords: the model's keyword arguments.

    Returns: the measurements, and the modules with non-finite activations or gradients. Prints as a table.

    >>> report = saturation(nn.Sequential(nn.Tanh()), torch.tensor([[0.5, 2.0]]))
    >>> print(report)
    module  type  saturated  at limits  |Delta|  sigma  grad u  grad h  grad sigma
    0       Tanh  0.5        0          0.5      0      -       -       -
    """
    check_model(model)
    if not (loss is None or callable(loss)):
        raise TypeError(f"loss must be a function of the model's output, not {loss!r:.80}")
    with (
        unchanged(model),
        trace(model) as calls,
        FiniteWatch(model) as watch,
        torch.set_grad_enabled(loss is not None),
    ):
        output = model(*inputs, **keywords)
        gradients = _gradients(output, loss, calls)
    by_name: dict[str, list[tuple[TracedCall, Tensor | None]]] = {}
    for call, gradient in zip(calls, gradients, strict=True):
        by_name.setdefault(call.name, []).append((call, gradient))
    groups = (_mean([call.measure(gradient) for call, gradient in _merged(same)]) for same in by_name.values())
    return Saturation(tuple(groups), tuple(watch.findings()))


def _merged(calls: list[tuple[TracedCall, Tensor | None]]) -> list[tuple[TracedCall, Tensor | None]]:
    """The calls of one nonlinearity as one call, if their inputs have one shape and no gradient is measured.

    The steps of a recurrent layer are many small calls, and measuring each takes longer than running the model.
    """
    first = calls[0][0]
    if any(gradient is not None or call.x.shape != first.x.shape for call, gradient in calls):
        return calls
    together = {name: torch.stack([getattr(call, name) for call, _ in calls]) for name in ("x", "output")}
    return [(dataclasses.replace(first, **together), None)]


def _gradients(output: Any, loss: Callable[[Any], Tensor] | None, calls: list[TracedCall]) -> list[Tensor | None]:
    if loss is None:
        return [None] * len(calls)
    value = loss(output)
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError(f"loss must return one number as a tensor, not {value!r}")
    asked = [call.output for call in calls if call.output.requires_grad]
    if not asked:
        return [torch.zeros_like(call.output) for call in calls]
    if not value.requires_grad:
        raise ValueError(f"loss must be computed from the model's output in torch; {value!r} has no gradient")
    found = iter(torch.autograd.grad(value.reshape(()), asked, allow_unused=True, materialize_grads=True))
    return [next(found) if call.output.requires_grad else torch.zeros_like(call.output) for call in calls]


def _mean(groups: list[UnitGroup]) -> UnitGroup:
    first = groups[0]
    numbers = [field.name for field in dataclasses.fields(first) if field.name not in ("name", "kind")]
    means = {number: sum(getattr(group, number) for group in groups) / len(groups) for number in numbers}
    return UnitGroup(first.name, first.kind, **means)


class SaturationMeter:
    """Measures the share of saturated activations of each noisy module during training.

    It measures only while ``active`` is True. Modules in evaluation mode are skipped. The nonlinearities of recurrent
    layers and cells have the names that :func:`saturation` uses. They are measured by an additional call of the
    reference, which does not affect training. Recurrent layers and cells are skipped in a compiled model and while a
    CUDA graph is recorded.

    >>> from noisyact import NoisyHardTanh
    >>> model = nn.Sequential(NoisyHardTanh())
    >>> meter = SaturationMeter(model)
    >>> meter.active = True
    >>> _ = model(torch.tensor([0.0, 5.0]))
    >>> meter.read()
    {'0': 0.5}
    """

    def __init__(self, model: nn.Module) -> None:
        self.active = False
        self._shares: dict[str, list[Tensor]] = {}
        self._handles = [
            module.register_forward_hook(note(name), with_kwargs=True)
            for name, module in model.named_modules()
            if (note := self._note_of(module)) is not None
        ]

    def _note_of(self, module: nn.Module) -> Callable[[str], Any] | None:
        """The method that creates a module's hook; None for a module that cannot be measured."""
        if isinstance(module, NoisyActivation) and isinstance(module.pair, HardPair):
            return self._note
        return self._note_inside if isinstance(module, (NoisyRecurrent, NoisyCell)) else None

    def _note(self, name: str) -> Any:
        def hook(module: NoisyActivation, args: tuple, kwargs: dict, output: Tensor) -> None:
            if self.active and module.training:
                share = module.pair.saturated(input_of(args, kwargs).detach()).float().mean()
                self._shares.setdefault(name, []).append(share)

        return hook

    def _note_inside(self, name: str) -> Any:
        def hook(module: NoisyRecurrent | NoisyCell, args: tuple, kwargs: dict, output: Any) -> None:
            if self.active and module.training and not (torch.compiler.is_compiling() or _capturing()):
                for call in trace_recurrent(name, module, args, kwargs):
                    self._shares.setdefault(call.name, []).append(call.function.saturated(call.x).float().mean())

        return hook

    def read(self) -> dict[str, float]:
        """Return the mean share of each module since the last call, by module name."""
        shares = {name: torch.stack(found).mean().item() for name, found in self._shares.items()}
        self._shares.clear()
        return shares

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
