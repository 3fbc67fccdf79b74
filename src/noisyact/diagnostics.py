"""Looking inside: where a model saturates, how strong the noise is there, and by which path gradients return."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from noisyact import equations
from noisyact.activations import NoisyActivation
from noisyact.finite import FiniteWatch, NonFinite
from noisyact.pairs import HardPair, Pair
from noisyact.saturating import pair_of
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
    seen: list[_Call] = []
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {t.device for t in (*model.parameters(), *model.buffers()) if t.device.type == "cuda"}
    with _Hooks(model, seen), FiniteWatch(model) as watch, torch.random.fork_rng(devices=sorted(devices, key=str)):
        try:
            with torch.set_grad_enabled(loss is not None):
                output = model(*inputs, **keywords)
                gradients = _gradients(output, loss, seen)
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
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
    reached = [call for call in seen if call.output.requires_grad]
    if not reached or not value.requires_grad:
        return [None] * len(seen)
    found = torch.autograd.grad(value.reshape(()), [call.output for call in reached], allow_unused=True)
    by_call = dict(zip(map(id, reached), found, strict=True))
    return [by_call.get(id(call)) for call in seen]


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
            Delta = equations.delta(pair.h(x), pair.u(x))
            has_thresholds = isinstance(pair, HardPair) or pair.x_t is not None
            saturated = pair.saturated(x) if has_thresholds else Delta != 0
            noise = self._sigma(x, Delta, saturated)
        paths = self._paths(x, pair, gradient)
        return UnitGroup(
            self.name, type(self.module).__name__, saturated.double().mean().item(), Delta.abs().mean().item(),
            noise.mean().item(), *paths,
        )  # fmt: skip

    def _sigma(self, x: Tensor, Delta: Tensor, saturated: Tensor) -> Tensor:
        module = self.module
        if not isinstance(module, NoisyActivation):
            return torch.zeros_like(x)
        scale = module.scale.double()
        if module.noise.learns_p:
            assert module.p is not None
            return equations.sigma(Delta, module.p.detach().double(), scale)
        return torch.where(saturated, scale, 0.0) if module.noise.name == "nanis" else scale.expand_as(x)

    def _paths(self, x: Tensor, pair: HardPair | Pair, gradient: Tensor | None) -> tuple[float, float, float]:
        if gradient is None:
            return math.nan, math.nan, math.nan
        g, module = gradient.double(), self.module
        if isinstance(module, NoisyActivation) and isinstance(pair, HardPair):
            p = 1.0 if module.p is None else module.p.detach().double()
            xi = None if self.xi is None else self.xi.double()
            with torch.no_grad():
                d = equations.path_derivatives(x, pair, module.noise, module.scale.double(), p, xi)
            linear, nonlinear, stochastic = (float((g * path).abs().mean()) for path in d[:3])
            return linear, nonlinear, stochastic
        # A plain activation has the nonlinear path alone; so has, as far as can be told apart, a pair of functions.
        with torch.enable_grad():
            x = x.requires_grad_()
            (through_h,) = torch.autograd.grad(_plain(module, pair)(x), x, g)
        return 0.0, through_h.abs().mean().item(), 0.0


def _plain(module: nn.Module, pair: HardPair | Pair) -> Callable[[Tensor], Tensor]:
    """The function that a module without noise computes."""
    return {nn.Tanh: torch.tanh, nn.Sigmoid: torch.sigmoid}.get(type(module), pair.h)


class _Hooks:
    """Feeds the noisy modules a known xi and notes every call."""

    def __init__(self, model: nn.Module, seen: list[_Call]) -> None:
        self._handles = []
        for name, module in model.named_modules():
            if isinstance(module, NoisyActivation):
                self._handles.append(module.register_forward_pre_hook(_give_xi, with_kwargs=True))
            elif pair_of(module) is None:
                continue
            self._handles.append(module.register_forward_hook(self._note(name, seen), with_kwargs=True))

    @staticmethod
    def _note(name: str, seen: list[_Call]) -> Any:
        def hook(module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> Tensor:
            # An alias of the output: an in-place change further on would lose the tensor that gradients are asked of.
            output = output.view_as(output)
            xi = args[1] if len(args) > 1 else kwargs.get("xi")
            x = args[0] if args else kwargs["x"]
            seen.append(_Call(name, module, x.detach().clone(), xi, output))
            return output

        return hook

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()


def _give_xi(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
    noisy = module.training or getattr(module, "eval_noise", "") == "sample"
    if not noisy or len(args) > 1 or kwargs.get("xi") is not None:
        return None
    x = args[0] if args else kwargs["x"]
    xi = torch.randn(x.shape, device=x.device, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)
    return args, {**kwargs, "xi": xi}


def _mean(calls: list[UnitGroup]) -> UnitGroup:
    first = calls[0]
    numbers = [field.name for field in dataclasses.fields(first) if field.name not in ("name", "kind")]
    means = {number: sum(getattr(call, number) for call in calls) / len(calls) for number in numbers}
    return UnitGroup(first.name, first.kind, **means)


class SaturationMeter:
    """Measures, during training, the share of saturated activations of each noisy module.

    It looks only when switched on, at the steps that are logged, and costs nothing in between.

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
            module.register_forward_hook(self._note(name))
            for name, module in model.named_modules()
            if isinstance(module, NoisyActivation) and isinstance(module.pair, HardPair)
        ]

    def _note(self, name: str) -> Any:
        def hook(module: NoisyActivation, args: tuple, output: Tensor) -> None:
            if self.active and args:
                with torch.no_grad():
                    self._shares.setdefault(name, []).append(module.pair.saturated(args[0].detach()).float().mean())

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
