"""Looking inside: where a model saturates, how strong the noise is there, and by which path gradients return."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from noisyact import equations
from noisyact.activations import NoisyActivation, check_model
from noisyact.finite import FiniteWatch, NonFinite
from noisyact.inventory import unchanged
from noisyact.pairs import HardPair, Pair
from noisyact.saturating import pair_of
from noisyact.schemes import NAH
from noisyact.tables import text_table

__all__ = ["Saturation", "SaturationMeter", "UnitGroup", "saturation"]


@dataclasses.dataclass(frozen=True)
class UnitGroup:
    """One noisy or saturating module, averaged over its units, the batch and its calls."""

    name: str
    kind: str
    saturated: float
    """Share of activations on or beyond a threshold."""
    depth: float
    """Mean |Delta|, the magnitude of the saturation."""
    sigma: float
    """Mean standard deviation of the noise (before the half-normal's absolute value)."""
    linear: float = math.nan
    """Mean absolute gradient back through u; NaN without a loss."""
    nonlinear: float = math.nan
    """Mean absolute gradient back through h."""
    stochastic: float = math.nan
    """Mean absolute gradient back through sigma."""


@dataclasses.dataclass(frozen=True)
class Saturation:
    """What :func:`saturation` measured. Prints as a table; iterates over its groups."""

    groups: tuple[UnitGroup, ...]
    nonfinite: tuple[NonFinite, ...] = ()
    """Where activations or gradients were not finite, the cause first."""

    def __iter__(self) -> Iterator[UnitGroup]:
        return iter(self.groups)

    def __getitem__(self, name: str) -> UnitGroup:
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(f"no unit group {name!r}; there are {[group.name for group in self.groups]}")

    def __str__(self) -> str:
        numbers = ("saturated", "depth", "sigma", "linear", "nonlinear", "stochastic")
        rows = [
            (group.name or "(the model)", group.kind, *(_shown(getattr(group, number)) for number in numbers))
            for group in self.groups
        ]
        header = ("module", "type", "saturated", "|Delta|", "sigma", "grad u", "grad h", "grad sigma")
        table = text_table(header, rows) if rows else "no noisy and no saturating module"
        return "\n".join([table, *map(str, self.nonfinite)])


def _shown(number: float) -> str:
    return "-" if math.isnan(number) else f"{number:.4g}"


def saturation(
    model: nn.Module, *inputs: Any, loss: Callable[[Any], Tensor] | None = None, **keywords: Any
) -> Saturation:
    """Run a model once and report, for each noisy or saturating module, how it saturates.

    The model runs in the mode it is in: call ``model.train()`` first to see the noise. Nothing of it changes: random
    generators, buffers and ``.grad`` are left as they were. A soft tanh or sigmoid counts as saturated where its hard
    version is. Recurrent layers of torch's show nothing of their inside and are not listed.

    Args:
        model: any module.
        inputs: what the model is called with.
        loss: the model's output -> a scalar. With it the gradient through each of the three paths of the paper is
            measured: linear (u), nonlinear (h) and stochastic (sigma).
        keywords: keyword arguments of the model.

    Returns: the measurements, which print as a table; also the modules where anything was not finite, the cause first.

    >>> report = saturation(nn.Sequential(nn.Tanh()), torch.tensor([[0.5, 2.0]]))
    >>> print(report)
    module  type  saturated  |Delta|  sigma  grad u  grad h  grad sigma
    0       Tanh  0.5        0.5      0      -       -       -
    """
    check_model(model)
    if not (loss is None or callable(loss)):
        raise TypeError(f"loss must be a function of the model's output, not {loss!r:.80}")
    seen: list[_Call] = []
    with unchanged(model), _Hooks(model, seen), FiniteWatch(model) as watch, torch.set_grad_enabled(loss is not None):
        output = model(*inputs, **keywords)
        gradients = _gradients(output, loss, seen)
    groups: dict[str, list[UnitGroup]] = {}
    for call, gradient in zip(seen, gradients, strict=True):
        groups.setdefault(call.name, []).append(call.measure(gradient))
    return Saturation(tuple(_mean(calls) for calls in groups.values()), tuple(watch.findings()))


def _gradients(output: Any, loss: Callable[[Any], Tensor] | None, seen: list[_Call]) -> list[Tensor | None]:
    if loss is None:
        return [None] * len(seen)
    value = loss(output)
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError(f"loss must return one number as a tensor, not {value!r}")
    asked = [call.output for call in seen if call.output.requires_grad]
    if not asked:
        return [torch.zeros_like(call.output) for call in seen]
    if not value.requires_grad:
        raise ValueError(f"loss must depend on the model's output by way of torch; {value!r} has no gradient")
    found = iter(torch.autograd.grad(value.reshape(()), asked, allow_unused=True, materialize_grads=True))
    return [next(found) if call.output.requires_grad else torch.zeros_like(call.output) for call in seen]


class _Call:
    """One call of one module: what went in, what noise it had, what came out."""

    def __init__(self, name: str, module: nn.Module, x: Tensor, xi: Tensor | None, output: Tensor) -> None:
        self.name, self.module, self.x, self.xi, self.output = name, module, x, xi, output

    def measure(self, gradient: Tensor | None) -> UnitGroup:
        x = self.x.detach().double()
        if x.numel() == 0:
            return UnitGroup(self.name, type(self.module).__name__, 0.0, 0.0, 0.0)
        pair = self.module.pair if isinstance(self.module, NoisyActivation) else pair_of(self.module)
        assert pair is not None
        with torch.no_grad():
            saturated = _saturated(pair, x).double().mean().item()
            depth = equations.delta(pair.h(x), pair.u(x)).abs().mean().item()
            sigma = self._sigma(x, pair).mean().item()
        paths = self._paths(x, pair, gradient)
        return UnitGroup(self.name, type(self.module).__name__, saturated, depth, sigma, *paths)

    def _sigma(self, x: Tensor, pair: HardPair | Pair) -> Tensor:
        module = self.module
        if not isinstance(module, NoisyActivation):
            return torch.zeros_like(x)
        scale = module.scale.double()
        if module.noise.learns_p:
            assert module.p is not None
            return equations.sigma(equations.delta(pair.h(x), pair.u(x)), module.p.detach().double(), scale)
        return torch.where(_saturated(pair, x), scale, 0.0) if module.noise.name == "nanis" else scale.expand_as(x)

    def _paths(self, x: Tensor, pair: HardPair | Pair, gradient: Tensor | None) -> tuple[float, float, float]:
        if gradient is None:
            return math.nan, math.nan, math.nan
        with torch.enable_grad():
            copies = [x.clone().requires_grad_() for _ in range(3)]
            value = self._value(pair, *copies)
            found = torch.autograd.grad(value, copies, gradient.double(), allow_unused=True, materialize_grads=True)
        linear, nonlinear, stochastic = (path.abs().mean().item() for path in found)
        return linear, nonlinear, stochastic

    def _value(self, pair: HardPair | Pair, x_u: Tensor, x_h: Tensor, x_sigma: Tensor) -> Tensor:
        """What the module computed, with a copy of x for each path."""
        module = self.module
        if not isinstance(module, NoisyActivation):
            return {nn.Tanh: torch.tanh, nn.Sigmoid: torch.sigmoid}.get(type(module), pair.h)(x_h)
        if self.xi is None and module.eval_noise == "hard":
            return pair.h(x_h)
        noise, epsilon = module.noise, equations.expected_epsilon(module.noise)
        if self.xi is not None:
            epsilon = self.xi.double().abs() if isinstance(noise, NAH) else self.xi.double()
        sigma = self._sigma(x_sigma, pair)
        if noise.at_input:
            return pair.h(x_h + sigma * epsilon)
        value = (1 - noise.leak) * pair.h(x_h) + noise.leak * pair.u(x_u)
        value = value + equations.direction(x_h, noise.leak) * sigma * epsilon
        return pair.clip(value) if noise.clips else value


def _saturated(pair: HardPair | Pair, x: Tensor) -> Tensor:
    has_thresholds = isinstance(pair, HardPair) or pair.x_t is not None
    return pair.saturated(x) if has_thresholds else pair.h(x) != pair.u(x)


class _Hooks:
    """Feeds the noisy modules a known xi and notes every call."""

    def __init__(self, model: nn.Module, seen: list[_Call]) -> None:
        self._seen = seen
        self._entered: dict[nn.Module, tuple[Tensor, Tensor | None]] = {}
        self._handles = []
        for name, module in model.named_modules():
            if isinstance(module, NoisyActivation) or pair_of(module) is not None:
                self._handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
                self._handles.append(module.register_forward_hook(self._leave(name)))

    def _enter(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        x, xi = _input(args, kwargs), None
        if isinstance(module, NoisyActivation) and (module.training or module.eval_noise == "sample"):
            xi = args[1] if len(args) > 1 else kwargs.get("xi")
            if xi is None:
                wide = torch.float64 if x.dtype == torch.float64 else torch.float32
                xi = torch.randn(x.shape, device=x.device, dtype=wide)
                args, kwargs = args[:1], {**kwargs, "xi": xi}
        self._entered[module] = x.detach().clone(), xi  # now: the module may write its output over x
        return args, kwargs

    def _leave(self, name: str) -> Any:
        def hook(module: nn.Module, args: tuple, output: Tensor) -> Tensor:
            if torch.is_grad_enabled() and not output.requires_grad:
                output = output.detach().requires_grad_()  # of a frozen model too the gradient is wanted
            self._seen.append(_Call(name, module, *self._entered.pop(module), output))
            return output.clone()  # what is done to it in place must not reach the tensor that gradients are asked of

        return hook

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()


def _input(args: tuple, kwargs: dict) -> Tensor:
    """The x of a noisy module's call, the input of a plain one's."""
    return args[0] if args else kwargs["x"] if "x" in kwargs else kwargs["input"]


def _mean(calls: list[UnitGroup]) -> UnitGroup:
    first = calls[0]
    numbers = [field.name for field in dataclasses.fields(first) if field.name not in ("name", "kind")]
    means = {number: sum(getattr(call, number) for call in calls) / len(calls) for number in numbers}
    return UnitGroup(first.name, first.kind, **means)


class SaturationMeter:
    """Measures, during training, the share of saturated activations of each noisy module.

    It looks only when switched on, at the steps that are logged, and costs nothing in between. What is in evaluation
    mode is passed over.

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
            module.register_forward_hook(self._note(name), with_kwargs=True)
            for name, module in model.named_modules()
            if isinstance(module, NoisyActivation) and isinstance(module.pair, HardPair)
        ]

    def _note(self, name: str) -> Any:
        def hook(module: NoisyActivation, args: tuple, kwargs: dict, output: Tensor) -> None:
            if self.active and module.training:
                share = module.pair.saturated(_input(args, kwargs).detach()).float().mean()
                self._shares.setdefault(name, []).append(share)

        return hook

    def read(self) -> dict[str, float]:
        """The shares measured since the last reading, by module name."""
        shares = {name: torch.stack(found).mean().item() for name, found in self._shares.items()}
        self._shares.clear()
        return shares

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
