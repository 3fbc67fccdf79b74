"""What nonlinearities do while a model runs: what went in, what noise they had, what came out.

Modules are seen by hooks. The nonlinearities of our recurrent layers and cells are inside kernels; for the time of a
watch these are computed by the reference, with the same noise, which shows them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from noisyact import equations
from noisyact.activations import NoisyActivation
from noisyact.conversion.inventory import unchanged
from noisyact.conversion.saturating import pair_of
from noisyact.ops.recurrent.observer import observed
from noisyact.pairs import HARD_SIGMOID, HARD_TANH, HardPair, Pair
from noisyact.recurrent.cells import NoisyCell
from noisyact.recurrent.layers import NoisyRecurrent
from noisyact.schemes import NAH, Scheme

__all__ = ["Function", "Sighting", "UnitGroup", "input_of", "sightings", "sightings_inside"]

_NAMES = {"lstm": ("i", "f", "g", "o", "c"), "gru": ("r", "z", "n"), "rnn_tanh": ("h",), "rnn_relu": ("h",)}
"""Of a cell's nonlinearities, in their order; c is the tanh of the LSTM's c."""
_HARD = {(0.0, 1.0): HARD_SIGMOID, (-1.0, 1.0): HARD_TANH}
"""The hard version of a soft function, by its limits."""


@dataclasses.dataclass(frozen=True)
class UnitGroup:
    """One noisy or saturating nonlinearity, averaged over its units, the batch and its calls."""

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


class Function(NamedTuple):
    """A nonlinearity with its noise."""

    pair: HardPair | Pair
    noise: Scheme | None = None
    scale: Tensor | None = None
    p: Tensor | None = None
    without: Callable[[Tensor], Tensor] | None = None
    """What it computes instead of phi: a function without noise."""

    def sigma(self, x: Tensor) -> Tensor:
        """The standard deviation of the noise."""
        if self.noise is None:
            return torch.zeros_like(x)
        assert self.scale is not None
        scale = self.scale.double()
        if self.noise.learns_p:
            Delta = equations.delta(self.pair.h(x), self.pair.u(x))
            return equations.sigma(Delta, 1.0 if self.p is None else self.p.detach().double(), scale)
        return torch.where(self.saturated(x), scale, 0.0) if self.noise.name == "nanis" else scale.expand_as(x)

    def saturated(self, x: Tensor) -> Tensor:
        """Where x is on or beyond a threshold."""
        pair = self.pair
        has_thresholds = isinstance(pair, HardPair) or pair.x_t is not None
        return pair.saturated(x) if has_thresholds else pair.h(x) != pair.u(x)

    def value(self, x_u: Tensor, x_h: Tensor, x_sigma: Tensor, xi: Tensor | None) -> Tensor:
        """What it computes, with a copy of x for each path of the gradient."""
        if self.noise is None or self.without is not None:
            return (self.without or self.pair.h)(x_h)
        epsilon = equations.expected_epsilon(self.noise)
        if xi is not None:
            epsilon = xi.double().abs() if isinstance(self.noise, NAH) else xi.double()
        sigma = self.sigma(x_sigma)
        if self.noise.at_input:
            return self.pair.h(x_h + sigma * epsilon)
        value = (1 - self.noise.leak) * self.pair.h(x_h) + self.noise.leak * self.pair.u(x_u)
        value = value + equations.direction(x_h, self.noise.leak) * sigma * epsilon
        return self.pair.clip(value) if self.noise.clips else value


def _function_of(module: nn.Module, xi: Tensor | None) -> Function:
    if isinstance(module, NoisyActivation):
        hard = xi is None and module.eval_noise == "hard"
        return Function(module.pair, module.noise, module.scale, module.p, module.pair.h if hard else None)
    pair = pair_of(module)
    assert pair is not None
    return Function(pair, without={nn.Tanh: torch.tanh, nn.Sigmoid: torch.sigmoid}.get(type(module), pair.h))


@dataclasses.dataclass(frozen=True)
class Sighting:
    """One call of one nonlinearity."""

    name: str
    kind: str
    function: Function
    x: Tensor
    xi: Tensor | None
    output: Tensor

    def measure(self, gradient: Tensor | None) -> UnitGroup:
        """In numbers; with the gradient of the output, also by which path it returns."""
        x = self.x.detach().double()
        if x.numel() == 0:
            return UnitGroup(self.name, self.kind, 0.0, 0.0, 0.0)
        function = self.function
        with torch.no_grad():
            saturated = function.saturated(x).double().mean().item()
            depth = equations.delta(function.pair.h(x), function.pair.u(x)).abs().mean().item()
            sigma = function.sigma(x).mean().item()
        return UnitGroup(self.name, self.kind, saturated, depth, sigma, *self._paths(x, gradient))

    def _paths(self, x: Tensor, gradient: Tensor | None) -> tuple[float, float, float]:
        if gradient is None:
            return math.nan, math.nan, math.nan
        with torch.enable_grad():
            copies = x_u, x_h, x_sigma = [x.clone().requires_grad_() for _ in range(3)]
            value = self.function.value(x_u, x_h, x_sigma, self.xi)
            found = torch.autograd.grad(value, copies, gradient.double(), allow_unused=True, materialize_grads=True)
        linear, nonlinear, stochastic = (path.abs().mean().item() for path in found)
        return linear, nonlinear, stochastic


@contextlib.contextmanager
def sightings(model: nn.Module) -> Iterator[list[Sighting]]:
    """A list that fills while the model runs, in the order of the calls."""
    seen: list[Sighting] = []
    handles = []
    inside = _Inside(seen)
    for name, module in model.named_modules():
        if isinstance(module, (NoisyRecurrent, NoisyCell)):
            handles.append(module.register_forward_pre_hook(inside.enter(name)))
            handles.append(module.register_forward_hook(inside.leave, always_call=True))
        elif isinstance(module, NoisyActivation) or pair_of(module) is not None:
            call = _Call(name, seen)
            handles.append(module.register_forward_pre_hook(call.enter, with_kwargs=True))
            handles.append(module.register_forward_hook(call.leave))
    try:
        with observed(inside):
            yield seen
    finally:
        for handle in handles:
            handle.remove()


def sightings_inside(name: str, module: NoisyRecurrent | NoisyCell, args: tuple, kwargs: dict) -> list[Sighting]:
    """What the nonlinearities of a recurrent layer or cell do in a call, by no hook and for no gradient.

    It is a call of its own, with noise of its own, and leaves the module and the generators as they were.
    """
    seen: list[Sighting] = []
    inside = _Inside(seen)
    with unchanged(module), torch.no_grad(), observed(inside, alone=True):
        inside.enter(name)(module, args)
        try:
            module.forward(*args, **kwargs)
        finally:
            inside.leave(module, args, None)
    return seen


class _Call:
    """Hooks of a module: feed it a known xi, and note every call."""

    def __init__(self, name: str, seen: list[Sighting]) -> None:
        self._name, self._seen = name, seen
        self._entered: list[tuple[Tensor, Tensor | None]] = []

    def enter(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        x, xi = input_of(args, kwargs), None
        if isinstance(module, NoisyActivation) and (module.training or module.eval_noise == "sample"):
            xi = args[1] if len(args) > 1 else kwargs.get("xi")
            if xi is None:
                wide = torch.float64 if x.dtype == torch.float64 else torch.float32
                xi = torch.randn(x.shape, device=x.device, dtype=wide)
                args, kwargs = args[:1], {**kwargs, "xi": xi}
        self._entered.append((x.detach().clone(), xi))  # now: the module may write its output over x
        return args, kwargs

    def leave(self, module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        x, xi = self._entered.pop()
        output = _asked(output)
        self._seen.append(Sighting(self._name, type(module).__name__, _function_of(module, xi), x, xi, output))
        return output.clone()  # what is done to it in place must not reach the tensor that gradients are asked of


class _Inside:
    """Hooks of recurrent layers and cells, and the reference's observer, which sees what they do in between."""

    def __init__(self, seen: list[Sighting]) -> None:
        self._seen = seen
        self._running: list[tuple[str, Any, str]] = []
        self._layers: list[str] = []

    def enter(self, name: str) -> Any:
        def hook(module: Any, args: tuple) -> None:
            self._running.append((name, module, module.backend))
            layers = module._suffixes() if isinstance(module, NoisyRecurrent) else []
            self._layers = [f"{layer}." for layer in reversed(layers)]
            self._layer, module.backend = "", "reference"

        return hook

    def leave(self, module: Any, args: tuple, output: Any) -> None:
        _, module, module.backend = self._running.pop()

    def begins(self) -> None:
        """As reference.Observer; the layers come in the order of their names."""
        if self._running:
            self._layer = self._layers.pop()

    def sees(
        self, n: int, x: Tensor, y: Tensor, pair: HardPair | Pair, scheme: Scheme | None, scale: Tensor,
        p: Tensor | None, xi: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """As reference.Observer."""
        if not self._running:  # a function of the user's, by no module
            return y
        name, module, _ = self._running[-1]
        full = f"{name}.{self._layer}{_NAMES[module.kind][n]}".lstrip(".")
        function = Function(pair, scheme, scale, p)
        if scheme is None and isinstance(pair, Pair):  # soft: saturated where its hard version is, as of modules
            function = Function(_HARD[pair.limits], without=pair.h)  # pyright: ignore[reportArgumentType]
        y = _asked(y)
        self._seen.append(Sighting(full, type(module).__name__, function, x.detach().clone(), xi, y))
        return y.clone()


def _asked(output: Tensor) -> Tensor:
    """A tensor whose gradient can be asked for: of a frozen model too it is wanted."""
    return output.detach().requires_grad_() if torch.is_grad_enabled() and not output.requires_grad else output


def input_of(args: tuple, kwargs: dict) -> Tensor:
    """The x of a noisy module's call, the input of a plain one's."""
    return args[0] if args else kwargs["x"] if "x" in kwargs else kwargs["input"]
