"""Settings of an experiment that say which nonlinearities a network has, and the noise schemes they stand for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from torch import nn

import noisyact as na
from noisyact_lab.engine.experiment import UnknownName

__all__ = ["AnnealedNoise", "NoiseSettings", "activation_named"]

_SCHEMES: dict[str, type[na.Scheme]] = {kind.name: kind for kind in (na.NAN, na.NAH, na.NANI, na.NANIL, na.NANIS)}
_WITHOUT_NOISE = {"tanh": nn.Tanh, "hard": nn.Hardtanh}


def _scheme(name: str, **settings: float | str) -> na.Scheme:
    """The scheme of that name, with those of the settings that it has.

    >>> _scheme("nanil", c=0.5, alpha=1.1, clip=True)
    NANIL(c=0.5)
    """
    kind = _SCHEMES[name]
    return kind(**{field.name: settings[field.name] for field in dataclasses.fields(kind) if field.name in settings})


def activation_named(name: str, units: int, schemes: Iterable[str] = _SCHEMES, **numbers: float) -> nn.Module:
    """tanh, hard, or one of the schemes: the hard tanh with its noise and a p for each unit.

    >>> activation_named("hard", 8)
    Hardtanh(min_val=-1.0, max_val=1.0)
    """
    if name in _WITHOUT_NOISE:
        return _WITHOUT_NOISE[name]()
    if name not in schemes:
        raise UnknownName("activation", name, [*_WITHOUT_NOISE, *schemes])
    return na.NoisyHardTanh(_scheme(name, **numbers), num_parameters=units)


def _layer_arguments(settings: Any, schemes: Iterable[str], *numbers: dict[str, float]) -> dict[str, Any]:
    """The arguments of a noisy layer, from the numbers of its tanhs and of its sigmoids, and what both draw."""
    if settings.scheme is None:
        return {"noise": None, "gate_noise": None, "hard": settings.hard}
    if settings.scheme not in schemes:
        raise UnknownName("scheme", settings.scheme, ["none", *schemes])
    noise, gate_noise = (_scheme(settings.scheme, **some, draw=settings.draw) for some in numbers)
    return {"noise": noise, "gate_noise": gate_noise, "hard": settings.hard}


@dataclasses.dataclass(frozen=True)
class NoiseSettings:
    """The nonlinearities of a recurrent network; the numbers are those of the authors' code at the paper's time."""

    hard: bool = True
    scheme: str | None = None
    """nan, nah, nani, nanil or nanis."""
    c: float = 0.5
    """Scale of the tanhs' noise."""
    gate_c: float = 0.15
    """Scale of the sigmoids' noise."""
    alpha: float = 1.15
    """alpha of the tanhs."""
    gate_alpha: float = 1.1
    """alpha of the sigmoids."""
    clip: bool = True
    """Outputs of the tanhs are clipped to [-1, 1]."""
    gate_clip: bool = False
    """Outputs of the sigmoids are clipped to [0, 1]."""
    sigma: float = 0.05
    """Scale of the noise of NANI and NANIS."""
    draw: str = "sample"
    """What training uses of the noise: a fresh sample, its mean alone, or the sample without its mean (centred)."""

    def layer_arguments(self) -> dict[str, Any]:
        """The arguments of a noisy layer.

        >>> NoiseSettings(scheme="nani").layer_arguments()
        {'noise': NANI(sigma=0.05), 'gate_noise': NANI(sigma=0.05), 'hard': True}
        """
        return _layer_arguments(
            self, _SCHEMES, {"c": self.c, "alpha": self.alpha, "clip": self.clip, "sigma": self.sigma},
            {"c": self.gate_c, "alpha": self.gate_alpha, "clip": self.gate_clip, "sigma": self.sigma},
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class AnnealedNoise:
    """The nonlinearities of a network whose noise may be annealed; the numbers are those of the authors' code.

    Annealed noise is large at first, which smooths the objective, and then falls. The paper anneals it in two
    experiments, unique count and associative recall, with one schedule.
    """

    hard: bool = True
    scheme: str | None = None
    """nan, nah or nanil."""
    c: float = 0.5
    """Scale of the noise."""
    annealed: bool = False
    """c falls as 30 / sqrt(t + 1), t counting every 200 updates, and not below 0.5."""
    alpha: float = 1.15
    """alpha of the tanhs."""
    gate_alpha: float = 1.1
    """alpha of the sigmoids."""
    clip: bool = True
    """Outputs of the tanhs are clipped to [-1, 1], as in the authors' code of the paper's time. Without it half-normal
    noise, which points outwards for alpha > 1, makes an LSTM's c overflow at c = 30."""
    gate_clip: bool = False
    """Outputs of the sigmoids are clipped to [0, 1]; not so in the authors' code."""
    draw: str = "sample"
    """What training uses of the noise: a fresh sample, its mean alone, or the sample without its mean (centred)."""

    def layer_arguments(self) -> dict[str, Any]:
        """The arguments of a noisy layer.

        >>> AnnealedNoise(scheme="nan").layer_arguments()["gate_noise"]
        NAN(c=0.5, alpha=1.1, clip=False)
        """
        return _layer_arguments(
            self, ("nan", "nah", "nanil"), {"c": self.c, "alpha": self.alpha, "clip": self.clip},
            {"c": self.c, "alpha": self.gate_alpha, "clip": self.gate_clip},
        )  # fmt: skip

    def scheduler(self, model: nn.Module) -> na.NoiseScheduler | None:
        """The scheduler of a model's c, by the update; None for a model without noise.

        >>> schedule = AnnealedNoise(scheme="nan", annealed=True).scheduler(na.NoisyHardTanh("nan")).schedule
        >>> [schedule(update) for update in (0, 199, 600, 10**6)]
        [30.0, 30.0, 15.0, 0.5]
        """
        schedule = na.anneal.inverse_sqrt(30.0, 0.5, every=200) if self.annealed else na.anneal.constant(self.c)
        return None if self.scheme is None else na.NoiseScheduler(model, schedule)
