"""The table that the tests share: schemes, pairs, shapes."""

import math

import torch

import noisyact as na

SCHEMES = [
    na.NAN(),
    na.NAN(c=2.0, alpha=1.0),
    na.NAN(c=0.3, alpha=0.9, clip=True),
    na.NAH(),
    na.NAH(c=2.0, alpha=1.0),
    na.NAH(c=0.3, alpha=0.9),
    na.NAH(c=3.0, alpha=1.15, clip=True),
    na.NAH(c=2.0, alpha=1.0, draw="centred"),
    na.NAH(c=3.0, draw="mean"),
    na.NANI(sigma=0.3),
    na.NANIL(c=2.0),
    na.NANIS(sigma=0.5),
]
MEANS = [na.NANI(sigma=0.3, draw="mean"), na.NANIL(c=9.0, draw="mean"), na.NANIS(sigma=0.5, draw="mean")]
"""The means of noise at the input: for hard functions alone."""
ESTIMATORS = [
    na.StraightThrough(),
    na.StraightThrough(width=0.6),
    na.StraightThrough(width=0.6, binary=True),
    na.SlopeAnnealing(slope=2.5),
    na.SlopeAnnealing(slope=0.7, binary=True),
    na.GumbelGate(),
    na.GumbelGate(tau=0.4, binary=True),
    na.HardConcrete(),
    na.HardConcrete(beta=1.5, stretch=0.4, binary=True),
    na.SaturatingSigmoid(),
    na.SaturatingSigmoid(sigma=0.0, stretch=0.0),
    na.SaturatingSigmoid(sigma=2.0, stretch=0.3, binary=True),
]
"""Those that round and those with noise need a function with two finite limits."""
PAIRS = {
    "tanh": na.HARD_TANH,
    "sigmoid": na.HARD_SIGMOID,
    "relu": na.RELU,
    "atan": na.harden(torch.atan),
    "lopsided": na.HardPair(slope=0.5, offset=0.25, low=-0.5, high=2.0),
}
SHAPES = [(), (1,), (7,), (64,), (129,), (3, 5), (2, 3, 65), (0, 4), (4, 0), (17, 200)]

TWO_SIDED = {name: pair for name, pair in PAIRS.items() if math.isfinite(pair.low) and math.isfinite(pair.high)}

scheme_ids = [str(scheme) for scheme in SCHEMES]
ALL = [*SCHEMES, *ESTIMATORS]
all_ids = [str(scheme) for scheme in ALL]


def allowed(scheme: na.Scheme) -> dict[str, na.HardPair]:
    """The pairs of the table that a scheme is for."""
    return TWO_SIDED if scheme.needs_limits else PAIRS


def kinks(pair: na.HardPair) -> list[float]:
    """The finite thresholds of a pair."""
    return [x for x in (pair.x_low, pair.x_high) if math.isfinite(x)]


def away_from_kinks(x: torch.Tensor, pair: na.HardPair, distance: float = 1e-3) -> torch.Tensor:
    """x, moved off every kink, where no derivative exists."""
    for kink in kinks(pair):
        x = torch.where((x - kink).abs() < distance, x + 4 * distance, x)
    return x
