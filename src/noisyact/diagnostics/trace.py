"""A record of every call of a nonlinearity while a model runs: its input, its noise and its output.

Hooks record the calls of modules. Noisy recurrent layers and cells compute their nonlinearities inside kernels; during
a trace the reference computes them instead and reports each of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisyact import equations
from noisyact.activations import NoisyActivation
from noisyact.conversion.inventory import unchanged
from noisyact.conversion.saturating import pair_of
from noisyact.estimators import ROUNDED, Estimator
from noisyact.functional import facing
from noisyact.ops.recurrent.observer import observed
from noisyact.pairs import HARD_SIGMOID, HARD_TANH, HardPair, Pair
from noisyact.recurrent.cells import NoisyCell
from noisyact.recurrent.layers import NoisyRecurrent
from noisyact.schemes import Scheme

__all__ = ["Function", "TracedCall", "UnitGroup", "input_of", "trace", "trace_recurrent"]

_NAMES = {"lstm": ("i", "f", "g", "o", "c"), "gru": ("r", "z", "n"), "rnn_tanh": ("h",), "rnn_relu": ("h",)}
"""The names of each cell's nonlinearities in order; c denotes the tanh of an LSTM's c."""
_HARD = {(0.0, 1.0): HARD_SIGMOID, (-1.0, 1.0): HARD_TANH}
"""The hard version of each soft function, by the limits of the function."""
_SOFT: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.Tanh: torch.tanh, nn.Sigmoid: torch.sigmoid, nn.Softsign: F.softsign,
}  # fmt: skip
"""The function of each torch module that differs from its hard version."""


@dataclasses.dataclass(frozen=True)
class UnitGroup:
    """One noisy or saturating nonlinearity, averaged over its units, the batch and its calls."""

    name: str
    kind: str
    saturated: float
    """The share of activations on or beyond a threshold."""
    depth: float
    """The mean |Delta|, the magnitude of the saturation."""
    sigma: float
    """The mean standard deviation of the noise (for NAH, before the absolute value is taken)."""
    linear: float = math.nan
    """The mean absolute gradient through u; NaN without a loss."""
    nonlinear: float = math.nan
    """The mean absolute gradient through h; NaN without a loss."""
    stochastic: float = math.nan
    """The mean absolute gradient through sigma; NaN without a loss."""
    drawn: float = math.nan
    """The share of activations whose noise has a standard deviation above 0; NaN without noise or with a scale of 0."""
    p: float = math.nan
    """The mean absolute p; NaN if the noise has none."""
    at_limits: float = math.nan
    """The share of values that are exactly a limit of the function, such as 0 or 1; NaN if it has no known limits."""


class Function(NamedTuple):
    """A nonlinearity with its noise."""

    pair: HardPair | Pair
    noise: Scheme | None = None
    scale: Tensor | None = None
    p: Tensor | None = None
    without: Callable[[Tensor], Tensor] | None = None
    """The noiseless function that the module computes instead of phi; None if it computes phi."""

    def sigma(self, x: Tensor) -> Tensor:
        """The standard deviation of the noise."""
        return torch.zeros_like(x) if self.noise is None else equations.noise_sigma(x, self.pair, *self._noise())

    @property
    def is_noisy(self) -> bool:
        """Whether there is noise, and its scale is not 0."""
        if isinstance(self.noise, Estimator) and not self.noise.draws:
            return False
        return self.noise is not None and self.scale is not None and bool(self.scale.any())

    def at_limits(self, y: Tensor) -> float:
        """The share of values that are exactly a limit of the function."""
        pair = self.pair
        limits = (pair.low, pair.high) if isinstance(pair, HardPair) else pair.limits
        return math.nan if limits is None else ((y == limits[0]) | (y == limits[1])).double().mean().item()

    def saturated(self, x: Tensor) -> Tensor:
        """Whether each element of x lies on or beyond a threshold."""
        pair = self.pair
        has_thresholds = isinstance(pair, HardPair) or pair.x_t is not None
        return pair.saturated(x) if has_thresholds else pair.h(x) != pair.u(x)

    def paths(self, x: Tensor, xi: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The derivatives with respect to x through u, through h and through sigma."""
        if self.noise is None or self.without is not None:
            zero = torch.zeros_like(x)
            return zero, equations.derivative(self.without or self.pair.h, x), zero
        return equations.path_derivatives(x, self.pair, *self._noise(), None if xi is None else xi.double())[:3]

    def _noise(self) -> tuple[Scheme, Tensor, Tensor | float]:
        """The scheme, and its scale and p in float64."""
        assert self.noise is not None
        assert self.scale is not None
        return self.noise, self.scale.double(), 1.0 if self.p is None else self.p.detach().double()


def _function_of(module: nn.Module, x: Tensor, xi: Tensor | None) -> Function:
    if isinstance(module, NoisyActivation):
        if xi is None and module.eval_noise == "binary":
            return Function(module.pair, ROUNDED, torch.tensor(ROUNDED.scale))
        hard = xi is None and module.eval_noise == "hard"
        p = None if module.p is None else facing(module.p, x, module.dim)
        return Function(module.pair, module.noise, module.scale, p, module.pair.h if hard else None)
    pair = pair_of(module)
    assert pair is not None
    return Function(pair, without=_SOFT.get(type(module), pair.h))


@dataclasses.dataclass(frozen=True)
class TracedCall:
    """One call of one nonlinearity."""

    name: str
    kind: str
    function: Function
    x: Tensor
    xi: Tensor | None
    output: Tensor

    @torch.no_grad()
    def measure(self, gradient: Tensor | None) -> UnitGroup:
        """Measure the call. If the gradient of its output is given, the gradient along each path is included."""
        x = self.x.detach().double()
        if x.numel() == 0:
            return UnitGroup(self.name, self.kind, 0.0, 0.0, 0.0)
        function = self.function
        saturated = function.saturated(x).double().mean().item()
        depth = equations.delta(function.pair.h(x), function.pair.u(x)).abs().mean().item()
        sigma = function.sigma(x)
        numbers = self.name, self.kind, saturated, depth, sigma.mean().item()
        noise = {
            "drawn": (sigma > 0).double().mean().item() if function.is_noisy else math.nan,
            "at_limits": function.at_limits(self.output),
            "p": math.nan if function.p is None else function.p.abs().mean().item(),
        }
        if gradient is None:
            return UnitGroup(*numbers, **noise)
        linear, nonlinear, stochastic = (
            (gradient.double() * path).abs().mean().item() for path in function.paths(x, self.xi)
        )
        return UnitGroup(*numbers, linear, nonlinear, stochastic, **noise)


@contextlib.contextmanager
def trace(model: nn.Module) -> Iterator[list[TracedCall]]:
    """Yield a list to which each call is appended while the model runs."""
    calls: list[TracedCall] = []
    handles = []
    recurrent = _RecurrentHooks(calls)
    for name, module in model.named_modules():
        if isinstance(module, (NoisyRecurrent, NoisyCell)):
            handles.append(module.register_forward_pre_hook(recurrent.enter(name)))
            handles.append(module.register_forward_hook(recurrent.leave, always_call=True))
        elif isinstance(module, NoisyActivation) or pair_of(module) is not None:
            hooks = _ModuleHooks(name, calls)
            handles.append(module.register_forward_pre_hook(hooks.enter, with_kwargs=True))
            handles.append(module.register_forward_hook(hooks.leave))
    try:
        with observed(recurrent):
            yield calls
    finally:
        for handle in handles:
            handle.remove()


def trace_recurrent(name: str, module: NoisyRecurrent | NoisyCell, args: tuple, kwargs: dict) -> list[TracedCall]:
    """Repeat a call of a recurrent layer or cell without gradients, and return the calls of its nonlinearities.

    The repetition draws new noise. The module and the random generators do not change, and no hook of the module runs.
    """
    calls: list[TracedCall] = []
    hooks = _RecurrentHooks(calls)
    with unchanged(module), torch.no_grad(), observed(hooks, alone=True):
        hooks.enter(name)(module, args)
        try:
            module.forward(*args, **kwargs)
        finally:
            hooks.leave(module, args, None)
    return calls


class _ModuleHooks:
    """Hooks that pass a known xi to a module and record every call."""

    def __init__(self, name: str, calls: list[TracedCall]) -> None:
        self._name, self._calls = name, calls
        self._entered: list[tuple[Tensor, Tensor | None]] = []

    def enter(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        x, xi = input_of(args, kwargs), None
        if isinstance(module, NoisyActivation) and (module.training or module.eval_noise == "sample"):
            xi = args[1] if len(args) > 1 else kwargs.get("xi")
            if xi is None:
                wide = torch.float64 if x.dtype == torch.float64 else torch.float32
                xi = torch.randn(x.shape, device=x.device, dtype=wide)
                args, kwargs = args[:1], {**kwargs, "xi": xi}
        self._entered.append((x.detach().clone(), xi))  # a copy, because the module may overwrite x with its output
        return args, kwargs

    def leave(self, module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        x, xi = self._entered.pop()
        output = _asked(output)
        self._calls.append(TracedCall(self._name, type(module).__name__, _function_of(module, x, xi), x, xi, output))
        return output.clone()  # an in-place operation must not change the tensor whose gradient is needed


class _RecurrentHooks:
    """Hooks of recurrent layers and cells that also serve as the reference's observer."""

    def __init__(self, calls: list[TracedCall]) -> None:
        self._calls = calls
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
        """See observer.Observer. The layers run in the order of their names."""
        if self._running:
            self._layer = self._layers.pop()

    def sees(
        self, n: int, x: Tensor, y: Tensor, pair: HardPair | Pair, scheme: Scheme | None, scale: Tensor,
        p: Tensor | None, xi: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """See observer.Observer."""
        if not self._running:  # a functional call outside of all modules
            return y
        name, module, _ = self._running[-1]
        full = f"{name}.{self._layer}{_NAMES[module.kind][n]}".lstrip(".")
        function = Function(pair, scheme, scale, p)
        if scheme is None and isinstance(pair, Pair):  # a soft function is saturated where its hard version is
            function = Function(_HARD[pair.limits], without=pair.h)  # pyright: ignore[reportArgumentType]
        y = _asked(y)
        self._calls.append(TracedCall(full, type(module).__name__, function, x.detach().clone(), xi, y))
        return y.clone()


def _asked(output: Tensor) -> Tensor:
    """Return a tensor that requires a gradient if gradients are enabled, even in a frozen model."""
    return output.detach().requires_grad_() if torch.is_grad_enabled() and not output.requires_grad else output


def input_of(args: tuple, kwargs: dict) -> Tensor:
    """The input tensor of a call of a noisy or torch activation."""
    return args[0] if args else kwargs["x"] if "x" in kwargs else kwargs["input"]
