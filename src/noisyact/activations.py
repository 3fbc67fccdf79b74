"""Noisy activations as modules; like nn.PReLU, they hold a learned parameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from noisyact import equations, functional
from noisyact.compiling import as_leaf, symbolic
from noisyact.estimators import ROUNDED
from noisyact.ops.dispatch import exporting, exporting_to_onnx, traced
from noisyact.pairs import HARD_SIGMOID, HARD_TANH, RELU, HardPair, Pair
from noisyact.schemes import NAH, Scheme, scheme

__all__ = [
    "EVAL_NOISE", "NoisyActivation", "NoisyHardSigmoid", "NoisyHardTanh", "NoisyModule", "NoisyReLU",
    "noise_parameters", "set_noise_scale",
]  # fmt: skip

EVAL_NOISE = ("expectation", "hard", "sample", "binary")


class ActivationCall(Protocol):
    """A call of an activation, for type checkers: nn.Module declares that a call returns Any."""

    def __call__(self, x: Tensor, xi: Tensor | None = None) -> Tensor: ...


class NoisyModule(nn.Module):
    """Base class of all noisy modules: holds the noise scheme, the noise scale and the evaluation rule.

    The scale (c, or sigma for schemes with a fixed sigma) is a buffer. It moves with the module, is saved with it, and
    changing it does not trigger recompilation. Its dtype is float64 in a float64 module and float32 otherwise.
    """

    scale: Tensor

    def __init__(
        self,
        noise: Scheme | str,
        eval_noise: str,
        device: torch.device | str | None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.noise = scheme(noise)
        self.eval_noise = check_rule(eval_noise)
        self._set_to: dict[str, float] = {}
        self._register_scale("scale", self.noise.scale, device, dtype)

    def _register_scale(
        self, name: str, value: float, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> None:
        wide = (torch.get_default_dtype() if dtype is None else dtype) == torch.float64
        self.register_buffer(name, torch.empty((), dtype=torch.float64 if wide else torch.float32, device=device))
        self._write_scale(name, value)

    def _write_scale(self, name: str, value: float) -> None:
        """Write a scale in place, because captured graphs and DistributedDataParallel hold the tensor."""
        self.get_buffer(name).fill_(value)
        self._set_to[name] = value

    def _scheme_of(self, name: str) -> Scheme:
        """The scheme to which the buffer of a scale belongs."""
        return self.noise

    def scale_names(self) -> dict[str, str]:
        """What each buffer that holds a scale is of its scheme: c, sigma, or what an estimator anneals."""
        return {name: self._scheme_of(name).scale_name for name in self._set_to}

    def set_scale(self, value: float, only: str | None = None) -> None:
        """Set the noise scale, or with `only` the scales of this name. See :func:`set_noise_scale`."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"the noise scale must be a number, not {value!r}")
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"the noise scale must be finite and at least 0, not {value!r}")
        names = [name for name, scale in self.scale_names().items() if only in (None, scale)]
        for name in names:
            self._scheme_of(name).with_scale(value)  # raises an error for a value that the scheme does not allow
        for name in names:
            self._write_scale(name, value)

    def is_noisy(self, training: bool) -> bool:
        """Whether a call has noise. Raises an error if it has and an exported program cannot contain the draw."""
        if training or self.eval_noise == "sample":
            if traced():
                _check_export(training)
            return True
        return False

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_set_to" not in state:  # pickled by an earlier version
            self._set_to = {name: math.nan for name in ("scale", "gate_scale") if name in self._buffers}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = {name: self.get_buffer(name) for name in self._set_to}
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self.get_buffer(name)
            if new.itemsize < 4:  # half precision would round the values of a schedule
                self._buffers[name] = old.to(new.device, torch.float32)
            elif new.itemsize > old.itemsize and _rounds_to(self._set_to[name], old):
                self._buffers[name] = torch.full_like(new, self._set_to[name])
        return self


def check_rule(eval_noise: str) -> str:
    """Return an evaluation rule, or raise an error unless it is one."""
    if eval_noise not in EVAL_NOISE:
        raise ValueError(f"eval_noise={eval_noise!r}: allowed are {', '.join(map(repr, EVAL_NOISE))}")
    return eval_noise


def _check_export(training: bool) -> None:
    if exporting() and not training:
        raise RuntimeError(
            "eval_noise='sample' draws noise, and a program exported in evaluation mode draws none: set eval_noise to "
            "'expectation' or 'hard' (of a recurrent layer or cell: its noise.eval_noise), or export in training mode"
        )
    if exporting_to_onnx():
        raise RuntimeError(
            "the noise of a noisy module in training mode cannot be exported to ONNX: call model.eval() first"
            if training
            else "eval_noise='sample' cannot be exported to ONNX: set eval_noise to 'expectation' or 'hard'"
        )


def _rounds_to(value: float, scale: Tensor) -> bool:
    """Whether a scale equals the value that was set, up to rounding; a scale loaded from a checkpoint may not."""
    return type(scale) is Tensor and not scale.is_meta and scale.item() == scale.new_full((), value).item()


class NoisyActivation(NoisyModule):
    """The noisy version of any saturating function.

    Training mode computes ``phi(x, xi)`` with fresh noise for every element; ``eval_noise`` sets the evaluation mode.

    Args:
        pair: h and its linearisation u, such as ``harden(torch.atan)``.
        noise: a scheme or its text, such as ``"nah:c=0.3"``.
        num_parameters: 1, or the size of dimension ``dim`` for one p per unit, as in the authors' code.
        device: the device of p and the scale.
        dtype: the dtype of p. The scale is float64 if this is float64, else float32.
        dim: the dimension of the input that p belongs to: -1, the last one, or 1 for the channels of [N, C, H, W], as
            in nn.PReLU.
        eval_noise: ``"expectation"`` keeps the leak and replaces the noise by its mean, as in the paper; ``"hard"``
            gives h(x); ``"sample"`` draws noise as in training; ``"binary"`` rounds: it gives low or high, whichever is
            nearer to h(x), and high in the middle. It needs two finite limits.

    Attributes:
        p: the learned parameter, shape (num_parameters,), initialised from U(-1, 1). None for schemes without one.
        scale: a buffer that holds the current c or sigma.

    Shape: any floating-point tensor; the output has the same shape and dtype.

    >>> from noisyact.pairs import harden
    >>> layer = NoisyActivation(harden(torch.erf), noise="nah:alpha=1.0").eval()
    >>> layer(torch.tensor([0.1, 5.0])).shape
    torch.Size([2])
    """

    __call__: ActivationCall  # pyright: ignore[reportIncompatibleMethodOverride]
    p: nn.Parameter | None
    dim: int = -1  # of modules pickled before the argument existed

    def __init__(
        self,
        pair: HardPair | Pair,
        noise: Scheme | str = NAH(),  # noqa: B008  (schemes are immutable)
        num_parameters: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        dim: int = -1,
        eval_noise: str = "expectation",
    ) -> None:
        super().__init__(noise, eval_noise, device, dtype)
        if not isinstance(pair, (HardPair, Pair)):
            raise TypeError(f"pair must be a HardPair or a Pair, not {pair!r}")
        for own in (self.noise, ROUNDED if eval_noise == "binary" else self.noise):
            if own.needs_limits:
                equations.limits_of(pair, own)
        if isinstance(num_parameters, bool) or not isinstance(num_parameters, int) or num_parameters < 1:
            raise ValueError(f"num_parameters={num_parameters!r}: must be a whole number of at least 1")
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"dtype={dtype}: must be floating point")
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise TypeError(f"dim must be a whole number, not {dim!r}")
        self.pair = pair
        self.num_parameters = num_parameters
        self.dim = dim
        p = torch.empty(num_parameters, device=device, dtype=dtype) if self.noise.learns_p else None
        self.register_parameter("p", None if p is None else nn.Parameter(p))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw p from U(-1, 1), as in the paper, and reset the scale to the scheme's."""
        if self.p is not None:
            nn.init.uniform_(self.p, -1.0, 1.0)
        self._write_scale("scale", self.noise.scale)

    def forward(self, x: Tensor, xi: Tensor | None = None) -> Tensor:
        """Compute phi(x, xi). If xi (same shape as x) is given, it is used instead of drawn noise."""
        if symbolic(x):
            return as_leaf(self, x, xi)
        noisy = self.is_noisy(self.training)
        if not noisy and self.eval_noise == "hard":
            return functional.hard(x, self.pair)
        if not noisy and self.eval_noise == "binary":
            return functional.noisy(x, self.pair, ROUNDED, training=False)
        return functional.noisy(
            x, self.pair, self.noise, self.p, xi if noisy else None, training=noisy, scale=self.scale, dim=self.dim
        )

    def extra_repr(self) -> str:
        """The scheme with its current scale, the number of parameters and settings that differ from their defaults."""
        parts = [repr(in_force(self.noise, self.scale)), f"num_parameters={self.num_parameters}"]
        if self.dim != -1:
            parts.append(f"dim={self.dim}")
        if self.eval_noise != "expectation":
            parts.append(f"eval_noise={self.eval_noise!r}")
        return ", ".join(parts)


class NoisyHardTanh(NoisyActivation):
    """The noisy hard tanh: ``h(x) = max(min(x, 1), -1)``, ``u(x) = x``.

    Args: those of :class:`NoisyActivation` without ``pair``, plus ``min_val`` and ``max_val`` of nn.Hardtanh.

    >>> layer = NoisyHardTanh("nah", num_parameters=256)
    >>> layer(torch.randn(32, 256)).shape
    torch.Size([32, 256])
    >>> layer
    NoisyHardTanh(NAH(c=0.5, alpha=1.15, clip=False), num_parameters=256)
    >>> NoisyHardTanh("nah", num_parameters=8, dim=1)(torch.randn(2, 8, 32, 32)).shape
    torch.Size([2, 8, 32, 32])
    """

    def __init__(
        self,
        noise: Scheme | str = NAH(),  # noqa: B008
        num_parameters: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        dim: int = -1,
        eval_noise: str = "expectation",
        min_val: float = -1.0,
        max_val: float = 1.0,
    ) -> None:
        pair = HARD_TANH if (min_val, max_val) == (-1.0, 1.0) else HardPair(1.0, 0.0, min_val, max_val)
        super().__init__(pair, noise, num_parameters, device, dtype, dim=dim, eval_noise=eval_noise)

    def extra_repr(self) -> str:
        """That of :class:`NoisyActivation`, and the range if it is not that of tanh."""
        limits = f", min_val={self.pair.low:g}, max_val={self.pair.high:g}" if isinstance(self.pair, HardPair) else ""
        return super().extra_repr() + ("" if self.pair == HARD_TANH else limits)


class NoisyHardSigmoid(NoisyActivation):
    """The noisy hard sigmoid: ``h(x) = max(min(u(x), 1), 0)``, ``u(x) = 0.25 x + 0.5``.

    Args: those of :class:`NoisyActivation` without ``pair``, plus ``slope``: 0.25 in the paper, 1/6 in nn.Hardsigmoid.

    >>> NoisyHardSigmoid("nan").eval()(torch.tensor([0.0, 1.0]))
    tensor([0.5000, 0.7500])
    """

    def __init__(
        self,
        noise: Scheme | str = NAH(),  # noqa: B008
        num_parameters: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        dim: int = -1,
        eval_noise: str = "expectation",
        slope: float = 0.25,
    ) -> None:
        pair = HARD_SIGMOID if slope == 0.25 else HardPair(slope, 0.5, 0.0, 1.0)
        super().__init__(pair, noise, num_parameters, device, dtype, dim=dim, eval_noise=eval_noise)


class NoisyReLU(NoisyActivation):
    """The noisy ReLU: it saturates, and is noisy, below zero. Args: those of :class:`NoisyActivation` but ``pair``.

    >>> NoisyReLU("nah").train()(torch.tensor([2.0])).item()
    2.0
    """

    def __init__(
        self,
        noise: Scheme | str = NAH(),  # noqa: B008
        num_parameters: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        dim: int = -1,
        eval_noise: str = "expectation",
    ) -> None:
        super().__init__(RELU, noise, num_parameters, device, dtype, dim=dim, eval_noise=eval_noise)


def in_force(noise: Scheme, scale: Tensor) -> Scheme:
    """The scheme with its current scale. If the scale cannot be read, the scheme is returned unchanged.

    >>> in_force(NAH(c=0.5), torch.tensor(0.3))
    NAH(c=0.3, alpha=1.15, clip=False)
    """
    try:
        return noise.with_scale(float(f"{scale.item():.7g}"))  # float32 has seven significant digits
    except (RuntimeError, ValueError):  # on the meta device, under a trace, or not finite
        return noise


def check_model(model: nn.Module) -> None:
    """Raise a TypeError unless the argument is an nn.Module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, not {model!r:.80}")


def set_noise_scale(model: nn.Module, value: float, only: str | None = None) -> int:
    """Set the scale of every noisy module in a model. Returns the number of noisy modules whose scale was set.

    The scale is c, sigma for schemes with a fixed sigma, or what an estimator anneals, such as tau. A model may have
    several kinds, for example c of the tanh and the slope of the gates: `only` is the name of the one to set.

    >>> model = nn.Sequential(nn.Linear(4, 4), NoisyHardTanh())
    >>> set_noise_scale(model, 0.1)
    1
    >>> model[1].scale
    tensor(0.1000)
    """
    check_model(model)
    parts = [module for module in model.modules() if isinstance(module, NoisyModule)]
    if not parts:
        raise ValueError(f"{type(model).__name__} has no noisy part whose scale could be set; see noisyact.noisify")
    chosen = [part for part in parts if only is None or only in part.scale_names().values()]
    if not chosen:
        present = sorted({name for part in parts for name in part.scale_names().values()})
        raise ValueError(f"only={only!r}: the scales of {type(model).__name__} are {', '.join(present)}")
    for part in chosen:
        part.set_scale(value, only)
    return len(chosen)


def noise_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Iterate over the learned p of every noisy module, for example to put them in a separate optimiser group.

    >>> [tuple(p.shape) for p in noise_parameters(nn.Sequential(NoisyHardTanh(num_parameters=3)))]
    [(3,)]
    """
    for module in model.modules():
        if isinstance(module, NoisyModule):
            yield from module.parameters(recurse=False)
