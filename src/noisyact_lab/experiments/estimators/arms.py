"""The arms of an experiment about how to train hard gates: their settings, their comparisons and the rules for both.

`estimators-word`, `estimators-char` and `estimators-unique` ask the same question of three networks, so all they share
is here. The gates are the sigmoids of the recurrent layers. In every arm but the reference the tanhs are hard and have
no noise: the arms differ in what the gates compute while they are trained. The reference has soft gates and soft tanhs.

NAN has no arm for its mean. The noise is symmetric, and the gates are not clipped, so its mean is the leak.

Noise that is annealed starts at 60 times the scale of the arm with constant noise, which is the paper's 30 to 0.5. It
falls geometrically and arrives at that scale after half of the updates. The paper's own schedule would need 719,800
updates. The slope of slope annealing rises linearly from 1, that of the hard gates, to 5, over half of the updates too.
Chung, Ahn and Bengio (2016) have the same factor, and a hard sigmoid that is twice as steep. As they do, the arm rounds
its gates in training. `straight-through-binary` rounds in training too. The other arms have the settings of the papers
named in :mod:`noisyact.estimators`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from torch import nn

import noisyact as na
from noisyact_lab.engine.experiment import Arm, Choice, Comparison, compared_with

__all__ = ["GateSettings", "choice_by", "gate_agreement", "gate_arms", "gate_comparisons"]

_NOISY = ("nah", "nah-mean", "nah-annealed", "nan", "nan-annealed")
_ESTIMATORS = (
    "straight-through", "straight-through-binary", "gumbel", "hard-concrete", "saturating-sigmoid", "slope-annealed",
)  # fmt: skip
_ALPHA = 1.1
"""alpha of the gates in the authors' code."""
_FACTORS = (0.25, 0.5, 1.0, 2.0)


@dataclasses.dataclass(frozen=True)
class GateSettings:
    """The gates of a recurrent network, and how they are trained."""

    hard: bool = True
    """Gates and tanhs are hard; otherwise all of them are soft."""
    gates: str | None = None
    """How hard gates are trained: a noise scheme or an estimator as text, such as nah:c=0.15,alpha=1.1. The hard
    sigmoid with its own derivative if none."""
    scale_from: float | None = None
    """The scale of `gates` at the first update; constant if none. It arrives at the one in `gates`."""
    annealed_share: float = 0.5
    """The share of the updates after which it is there."""
    test: bool = True
    """The end of a run measures the model on test data. Runs that choose a learning rate do not."""

    def __post_init__(self) -> None:
        if self.gates is None:
            if self.scale_from is not None:
                raise ValueError(f"scale_from={self.scale_from}: gates=none has no scale to anneal")
        else:
            scheme = na.scheme(self.gates)
            if not self.hard:
                raise ValueError(f"gates={self.gates}: is for hard gates, but hard=False")
            if self.scale_from is not None:
                scheme.with_scale(self.scale_from)
                if not (self.scale_from > 0 and scheme.scale > 0 and math.isfinite(scheme.scale)):
                    raise ValueError(
                        f"scale_from={self.scale_from}, gates={self.gates}: annealing needs two finite scales above 0"
                    )
        if not 0 < self.annealed_share <= 1:
            raise ValueError(f"annealed_share={self.annealed_share}: must be above 0 and at most 1")

    def layer_arguments(self) -> dict[str, Any]:
        """The arguments of a noisy layer.

        >>> GateSettings(gates="nah:c=0.15,alpha=1.1").layer_arguments()
        {'noise': None, 'gate_noise': NAH(c=0.15, alpha=1.1, clip=False), 'hard': True}
        """
        return {"noise": None, "gate_noise": None if self.gates is None else na.scheme(self.gates), "hard": self.hard}

    def scheduler(self, model: nn.Module, updates: int) -> na.NoiseScheduler | None:
        """The scheduler of the gates' scale, by the update; None where it is constant.

        It writes into the scale's buffer, which a CUDA graph reads anew at every update.

        >>> gates = GateSettings(gates="slope:slope=5.0", scale_from=1.0)
        >>> schedule = gates.scheduler(na.NoisyHardSigmoid("slope"), updates=80).schedule
        >>> [schedule(update) for update in (0, 20, 40, 79)]
        [1.0, 3.0, 5.0, 5.0]
        """
        if self.gates is None or self.scale_from is None:
            return None
        start, end = self.scale_from, na.scheme(self.gates).scale
        steps = max(1, round(self.annealed_share * updates))
        if end < start:
            return na.NoiseScheduler(model, na.anneal.exponential(start, end / start, every=steps, end=end))
        return na.NoiseScheduler(model, na.anneal.linear(start, end, steps))


def gate_arms(c: float) -> tuple[Arm, ...]:
    """The arms.

    Args:
        c: the scale of the noise of NAN and NAH where it is constant.

    >>> [arm.settings["gates"] for arm in gate_arms(0.5) if arm.name == "nah-mean"]
    ['nah:c=0.5,alpha=1.1,draw=mean']
    """
    noise, annealed = f"c={c:g},alpha={_ALPHA:g}", {"scale_from": 60 * c}
    functions = {
        "leak": ("hard gates with a leak, no noise (c = 0)", {"gates": f"nan:c=0,alpha={_ALPHA:g}"}),
        "nah": ("NAH", {"gates": f"nah:{noise}"}),
        "nah-mean": ("NAH's mean, no randomness", {"gates": f"nah:{noise},draw=mean"}),
        "nah-annealed": ("NAH, annealed", {"gates": f"nah:{noise}", **annealed}),
        "nan": ("NAN", {"gates": f"nan:{noise}"}),
        "nan-annealed": ("NAN, annealed", {"gates": f"nan:{noise}", **annealed}),
        "straight-through": ("straight-through", {"gates": "straight-through"}),
        "straight-through-binary": (
            "straight-through, rounded in training", {"gates": "straight-through:binary=True"}
        ),
        "gumbel": ("Gumbel gates", {"gates": "gumbel"}),
        "hard-concrete": ("hard concrete", {"gates": "hard-concrete"}),
        "saturating-sigmoid": ("saturating sigmoid with noise", {"gates": "saturating-sigmoid"}),
        "slope-annealed": (
            "slope annealing, rounded in training", {"gates": "slope:slope=5,binary=True", "scale_from": 1.0}
        ),
    }  # fmt: skip
    return (
        Arm("reference", "soft gates and tanhs", {"hard": False}),
        Arm("hard", "hard gates, no noise", {}),
        *(Arm(name, title, settings) for name, (title, settings) in functions.items()),
    )


def gate_comparisons(rounded: str, margin: float, times: str = "") -> tuple[Comparison, ...]:
    """The comparisons, stated before any run.

    Every way to train is compared with the hard gates and with the leak. After rounding, the reference and the
    estimators are compared with the hard gates. Where "no difference" is the claim, that noise adds nothing to the
    leak, equivalence is tested.

    Args:
        rounded: the name of the score after rounding.
        margin: of the equivalence, in units of the headline.
        times: the updates to a threshold, by which the first comparisons are made; by the headline if empty.

    >>> len(gate_comparisons("rounded_test_perplexity", 2.0))
    34
    """

    def against(name: str, *arms: str) -> tuple[Comparison, ...]:
        if times:
            return tuple(Comparison(arm, name, times, times=True) for arm in arms)
        return compared_with(name, *arms)

    return (
        *against("reference", "hard"),
        *against("hard", "leak", *_NOISY, *_ESTIMATORS),
        *against("leak", *_NOISY, *_ESTIMATORS),
        *(Comparison(arm, "hard", rounded) for arm in ("reference", *_ESTIMATORS)),
        *(Comparison(arm, "leak", margin=margin) for arm in ("nah", "nah-mean", "nan")),
    )


def gate_agreement(score: str, margin: str) -> str:
    """What counts as a difference and as none, stated before any run.

    Args:
        score: what is compared.
        margin: within which two arms count as equal, with its unit.
    """
    return (
        "The paper has no such table, so there is nothing to agree with. A way to train hard gates is better than "
        f"another if its {score} is, with p below 0.05 after Holm's correction over all comparisons of the table. Two "
        f"are equal if the test of equivalence within {margin} has a corrected p below 0.05. Everything else is not "
        "told apart. What the leak has as well is the leak's. The learning rate of each arm is the best of four on "
        "validation data, by one run each with a seed that no other run has."
    )


def choice_by(metric: str) -> Choice:
    """The choice of an arm's learning rate, by a number of validation.

    >>> choice_by("valid_perplexity").factors
    (0.25, 0.5, 1.0, 2.0)
    """
    return Choice("learning_rate", _FACTORS, metric, {"test": False})
