"""Noisy activations as modules, in the manner of nn.PReLU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn

from noisyact import functional
from noisyact.pairs import HARD_SIGMOID, HARD_TANH, RELU, HardPair, Pair
from noisyact.schemes import NAH, Scheme, scheme

__all__ = [
    "EVAL_NOISE", "NoisyActivation", "NoisyHardSigmoid", "NoisyHardTanh", "NoisyModule", "NoisyReLU",
    "noise_parameters", "set_noise_scale",
]  # fmt: skip

EVAL_NOISE = ("expectation", "hard", "sample")


class NoisyModule(nn.Module):
    """What every noisy part of a model has: a scheme, a scale that annealing sets, and a rule for evaluation.

    The scale (c, or sigma where sigma is fixed) is a buffer: it moves with the module, is saved with it, and changes
    without recompiling anything. It is a float64 in a module of float64, else a float32.
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
        if eval_noise not in EVAL_NOISE:
            raise ValueError(f"eval_noise={eval_noise!r}: allowed are {', '.join(map(repr, EVAL_NOISE))}")
        self.noise = scheme(noise)
        self.eval_noise = eval_noise
        self._set_to: dict[str, float] = {}
        self._register_scale("scale", self.noise.scale, device, dtype)

    def _register_scale(
        self, name: str, value: float, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> None:
        wide = (torch.get_default_dtype() if dtype is None else dtype) == torch.float64
        self.register_buffer(name, torch.empty((), dtype=torch.float64 if wide else torch.float32, device=device))
        self._write_scale(name, value)

    def _write_scale(self, name: str, value: float) -> None:
        """In place: captured graphs and DistributedDataParallel hold the tensor."""
        self.get_buffer(name).fill_(value)
        self._set_to[name] = value

    def set_scale(self, value: float) -> None:
        """Set the strength of all the noise from now on: c, or sigma where sigma is fixed."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"the noise scale must be a number, not {value!r}")
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"the noise scale must be finite and at least 0, not {value!r}")
        for name in self._set_to:
            self._write_scale(name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_set_to" not in state:  # pickled by an earlier version
            self._set_to = {name: math.nan for name in ("scale", "gate_scale") if name in self._buffers}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = {name: self.get_buffer(name) for name in self._set_to}
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self.get_buffer(name)
            if new.itemsize < 4:  # in half precision the values of a schedule would be rounded
                self._buffers[name] = old.to(new.device, torch.float32)
            elif new.itemsize > old.itemsize and _rounds_to(self._set_to[name], old):
                self._buffers[name] = torch.full_like(new, self._set_to[name])
        return self


def _rounds_to(value: float, scale: Tensor) -> bool:
    """Whether a scale is a number, rounded; it is another one if it was loaded."""
    return type(scale) is Tensor and not scale.is_meta and scale.item() == scale.new_full((), value).item()


class NoisyActivation(NoisyModule):
    """The noisy version of any saturating function.

    In training mode ``phi(x, xi)`` with fresh noise for every element; in evaluation mode what ``eval_noise`` says.

    Args:
        pair: h and its linearisation u, such as ``harden(torch.atan)``.
        noise: a scheme or its text.
        num_parameters: 1, or the size of the last dimension for a p of its own for each unit, as the authors had.
        device: of p and the scale.
        dtype: of p, and of the scale where it is float64.
        eval_noise: ``"expectation"`` as in the paper: the leak stays and xi becomes its mean; ``"hard"``: h(x) alone;
            ``"sample"``: noise as in training.

    Attributes:
        p: learned, shape (num_parameters,), from U(-1, 1); None for NANI and NANIS, which have none.
        scale: buffer, the c or sigma in force.

    Shape: any, floating; the output is the same.

    >>> from noisyact.pairs import harden
    >>> layer = NoisyActivation(harden(torch.erf), noise="nah:alpha=1.0").eval()
    >>> layer(torch.tensor([0.1, 5.0])).shape
    torch.Size([2])
    """

    p: nn.Parameter | None

    def __init__(
        self,
        pair: HardPair | Pair,
        noise: Scheme | str = NAH(),  # noqa: B008  (schemes are immutable)
        num_parameters: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        eval_noise: str = "expectation",
    ) -> None:
        super().__init__(noise, eval_noise, device, dtype)
        if not isinstance(pair, (HardPair, Pair)):
            raise TypeError(f"pair must be a HardPair or a Pair, not {pair!r}")
        if isinstance(num_parameters, bool) or not isinstance(num_parameters, int) or num_parameters < 1:
            raise ValueError(f"num_parameters={num_parameters!r}: must be a whole number of at least 1")
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"dtype={dtype}: must be floating point")
        self.pair = pair
        self.num_parameters = num_parameters
        p = torch.empty(num_parameters, device=device, dtype=dtype) if self.noise.learns_p else None
        self.register_parameter("p", None if p is None else nn.Parameter(p))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """p uniform in [-1, 1] as in the paper, and the scale of the scheme."""
        if self.p is not None:
            nn.init.uniform_(self.p, -1.0, 1.0)
        self._write_scale("scale", self.noise.scale)

    def forward(self, x: Tensor, xi: Tensor | None = None) -> Tensor:
        """phi(x, xi); xi, of x's shape, replaces the draw in training."""
        noisy = self.training or self.eval_noise == "sample"
        if not noisy and self.eval_noise == "hard":
            return functional.hard(x, self.pair)
        return functional.noisy(
            x, self.pair, self.noise, self.p, xi if noisy else None, training=noisy, scale=self.scale
        )

    def extra_repr(self) -> str:
        """The scheme in force, the number of parameters and, where it is not the default, the rule for evaluation."""
        parts = [repr(in_force(self.noise, self.scale)), f"num_parameters={self.num_parameters}"]
        if self.eval_noise != "expectation":
            parts.append(f"eval_noise={self.eval_noise!r}")
        return ", ".join(parts)


class NoisyHardTanh(NoisyActivation):
    """The noisy hard tanh: ``h(x) = max(min(x, 1), -1)``, ``u(x) = x``.

    Args: as :class:`NoisyActivation`, and ``min_val`` and ``max_val`` as in nn.Hardtanh.

    >>> layer = NoisyHardTanh("nah", num_parameters=256)
    >>> layer(torch.randn(32, 256)).shape
    torch.Size([32, 256])
    >>> layer
    NoisyHardTanh(NAH(c=0.5, alpha=1.15, clip=False), num_parameters=256)
    """

    def __init__(
        self,
        noise: Scheme | str = NAH(),  # noqa: B008
        num_parameters: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        eval_noise: str = "expectation",
        min_val: float = -1.0,
        max_val: float = 1.0,
    ) -> None:
        pair = HARD_TANH if (min_val, max_val) == (-1.0, 1.0) else HardPair(1.0, 0.0, min_val, max_val)
        super().__init__(pair, noise, num_parameters, device, dtype, eval_noise=eval_noise)


class NoisyHardSigmoid(NoisyActivation):
    """The noisy hard sigmoid: ``h(x) = max(min(u(x), 1), 0)``, ``u(x) = 0.25 x + 0.5``.

    Args: as :class:`NoisyActivation`, and ``slope``, 0.25 in the paper (nn.Hardsigmoid's is 1/6).

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
        eval_noise: str = "expectation",
        slope: float = 0.25,
    ) -> None:
        pair = HARD_SIGMOID if slope == 0.25 else HardPair(slope, 0.5, 0.0, 1.0)
        super().__init__(pair, noise, num_parameters, device, dtype, eval_noise=eval_noise)


class NoisyReLU(NoisyActivation):
    """The noisy rectifier: it saturates, and is noisy, below zero. Args: as :class:`NoisyActivation`.

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
        eval_noise: str = "expectation",
    ) -> None:
        super().__init__(RELU, noise, num_parameters, device, dtype, eval_noise=eval_noise)


def in_force(noise: Scheme, scale: Tensor) -> Scheme:
    """The scheme with the scale that annealing or a checkpoint has set; as it was given where the scale has no value.

    >>> in_force(NAH(c=0.5), torch.tensor(0.3))
    NAH(c=0.3, alpha=1.15, clip=False)
    """
    try:
        return noise.with_scale(float(f"{scale.item():.7g}"))  # as many digits as float32 has
    except (RuntimeError, ValueError):  # on the meta device, under a trace, or not finite
        return noise


def check_model(model: nn.Module) -> None:
    """Raise a TypeError for anything but a module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, not {model!r:.80}")


def set_noise_scale(model: nn.Module, value: float) -> int:
    """Set the scale (c or sigma) of every noisy part of a model; returns how many there are.

    >>> model = nn.Sequential(nn.Linear(4, 4), NoisyHardTanh())
    >>> set_noise_scale(model, 0.1)
    1
    >>> model[1].scale
    tensor(0.1000)
    """
    check_model(model)
    parts = [module for module in model.modules() if isinstance(module, NoisyModule)]
    if not parts:
        raise ValueError(f"{type(model).__name__} has no noisy part to set the scale of; see noisyact.noisify")
    for part in parts:
        part.set_scale(value)
    return len(parts)


def noise_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """The learned p of every noisy part, for an optimiser group of their own.

    >>> [tuple(p.shape) for p in noise_parameters(nn.Sequential(NoisyHardTanh(num_parameters=3)))]
    [(3,)]
    """
    for module in model.modules():
        if isinstance(module, NoisyModule):
            yield from module.parameters(recurse=False)
