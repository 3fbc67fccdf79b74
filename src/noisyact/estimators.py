"""Other ways to train functions with hard limits than the paper's noise: estimators, in the place of a noise scheme.

Straight-through and slope annealing draw no noise. The other three add noise at the input of a sigmoid, which some
stretch beyond its limits and clip, and their test-time function is the same without noise.

With the pair's limits low and high, ``middle = (low + high) / 2`` and the sigmoid s, the logit of an input is
``z(x) = 4 (u(x) - middle) / (high - low)``: x itself for the sigmoid, 2 x for the tanh. The soft function of the pair,
the sigmoid or the tanh, is ``low + (high - low) s(z(x))``. The three take z in place of the papers' x, so that they
have the range of any pair with two limits. A pair without, such as ReLU, is refused. They replace h, so a soft and a
hard function of the same limits and slope become the same.

Each estimator has ``binary``: True rounds the value to low or high, whichever is nearer (the middle becomes high), and
leaves the derivatives as they are without rounding. The kernels take all estimators, as they take the noise schemes.
"""

from __future__ import annotations

import dataclasses
import math

from noisyact.schemes import _KINDS, Scheme

__all__ = [
    "ROUNDED", "Estimator", "Gate", "GumbelGate", "HardConcrete", "SaturatingSigmoid", "SlopeAnnealing",
    "StraightThrough",
]  # fmt: skip


@dataclasses.dataclass(frozen=True, repr=False)
class Estimator(Scheme):
    """Base class of the estimators. None of them learns p."""

    learns_p = False
    at_input = False

    @property
    def draws(self) -> bool:
        """Whether training draws random numbers."""
        return self.at_input

    @property
    def rounds(self) -> bool:
        """Whether the values are rounded to the limits."""
        return getattr(self, "binary", False)

    @property
    def needs_limits(self) -> bool:
        """Whether the estimator needs a function with two finite limits."""
        return self.rounds


@dataclasses.dataclass(frozen=True, repr=False)
class StraightThrough(Estimator):
    """The value h(x) with the derivative of u: the gradient passes a saturated unit as if it were linear.

    ``phi(x) = h(x)`` and ``dphi/dx = u'(x)`` where ``|Delta| <= width``, else 0; ``Delta = h(x) - u(x)``.

    After Bengio, Leonard and Courville, "Estimating or Propagating Gradients Through Stochastic Neurons for Conditional
    Computation" (2013, arXiv:1308.3432). Hubara, Courbariaux, Soudry, El-Yaniv and Bengio, "Binarized Neural Networks"
    (2016, arXiv:1602.02830), stop the gradient of the sign function beyond |x| = 1: this is the hard tanh with
    ``width=0`` and ``binary=True``.

    Args:
        width: how far u may lie beyond a limit, as |Delta|, for the gradient to pass; infinite by default. It is what
            annealing changes. No gradient passes where u is infinite.
        binary: round the value: the step function with the derivative of u.

    >>> StraightThrough(width=1.0)
    StraightThrough(width=1.0)
    >>> str(StraightThrough(binary=True))
    'straight-through:binary=True'
    """

    width: float = math.inf
    binary: bool = False

    name = "straight-through"
    code = 11
    scale_name = "width"


@dataclasses.dataclass(frozen=True, repr=False)
class SlopeAnnealing(Estimator):
    """h with a steeper slope: ``phi(x) = h(slope x)``. A schedule raises the slope, and h approaches the step function.

    After Chung, Ahn and Bengio, "Hierarchical Multiscale Recurrent Neural Networks" (2016, arXiv:1609.01704). They
    round in training (``binary=True``), with the derivative of ``max(0, min(1, (a x + 1) / 2))`` and a from 1 to 5.
    With our hard sigmoid, of slope 1/4, their a is ``slope / 2``.

    Args:
        slope: the factor of x, which annealing changes.
        binary: round the value; the derivative stays ``slope h'(slope x)``.

    >>> from noisyact import NoisyHardSigmoid, set_noise_scale
    >>> import torch
    >>> gate = NoisyHardSigmoid("slope")
    >>> _ = set_noise_scale(gate, 2.0)
    >>> gate(torch.tensor([0.0, 0.5, 1.0]))
    tensor([0.5000, 0.7500, 1.0000])
    """

    slope: float = 1.0
    binary: bool = False

    name = "slope"
    code = 12
    scale_name = "slope"


@dataclasses.dataclass(frozen=True, repr=False)
class Gate(Estimator):
    """Base class of the estimators with noise at the input of a sigmoid.

    ``phi(x, xi) = low + (high - low) clip((1 + 2 stretch) s - stretch, 0, 1)``. In training ``s`` is the sigmoid of the
    noisy logit, which the subclasses define; the expectation has the sigmoid of z(x). Logistic noise is
    ``lambda(xi) = logit(Phi(xi))``, a function of the standard normal xi by the normal distribution Phi.
    """

    at_input = True

    @property
    def stretched(self) -> float:
        """How far the sigmoid is stretched beyond each of its limits."""
        return getattr(self, "stretch", 0.0)

    @property
    def needs_limits(self) -> bool:
        """True: the range of the sigmoid is that of the function."""
        return True


@dataclasses.dataclass(frozen=True, repr=False)
class GumbelGate(Gate):
    """A relaxed Bernoulli draw: ``s = sigmoid((z + lambda(xi)) / tau)`` in training, ``sigmoid(z)`` in evaluation.

    The difference of two Gumbel variables is logistic. As tau falls to 0, phi becomes a draw of low or high whose mean
    is the soft function of the pair.

    After Li, He, Tian, Chen, Qin, Wang and Liu, "Towards Binary-Valued Gates for Robust LSTM Training" (G2-LSTM, 2018,
    arXiv:1806.02988). They use it for the input and the forget gate, with tau = 0.9, and their published code evaluates
    without noise and tau. A layer with this ``gate_noise`` has it in all gates.

    Args:
        tau: the temperature, which annealing changes.
        binary: round the value; the derivative stays that of the relaxed draw.

    >>> GumbelGate()
    GumbelGate(tau=0.9)
    """

    tau: float = 0.9
    binary: bool = False

    name = "gumbel"
    code = 13
    scale_name = "tau"


@dataclasses.dataclass(frozen=True, repr=False)
class HardConcrete(Gate):
    """A relaxed Bernoulli draw, stretched and clipped, so that values are exactly low or high with some probability.

    ``s = sigmoid((z + lambda(xi)) / beta)`` in training, ``sigmoid(z)`` in evaluation.

    After Louizos, Welling and Kingma, "Learning Sparse Neural Networks through L0 Regularization" (2017,
    arXiv:1712.01312). Their gamma and zeta are ``-stretch`` and ``1 + stretch``.

    Args:
        beta: the temperature, which annealing changes.
        stretch: how far the sigmoid is stretched beyond each of its limits, in units of the range.
        binary: round the value; the derivative stays that of the clipped draw.

    >>> HardConcrete(beta=0.5)
    HardConcrete(beta=0.5, stretch=0.1)
    """

    beta: float = 2 / 3
    stretch: float = 0.1
    binary: bool = False

    name = "hard-concrete"
    code = 13
    scale_name = "beta"


@dataclasses.dataclass(frozen=True, repr=False)
class SaturatingSigmoid(Gate):
    """A sigmoid that is stretched and clipped, with normal noise at its input: ``s = sigmoid(z + sigma xi)``.

    In evaluation ``s = sigmoid(z)``. With the default stretch the value is ``max(0, min(1, 1.2 s - 0.1))``.

    After Kaiser and Bengio, "Discrete Autoencoders for Sequence Models" (2018, arXiv:1801.09797). They round half of
    the time in training (``binary=True``) and always in evaluation.

    Args:
        sigma: the standard deviation of the noise at the logit, which annealing changes.
        stretch: how far the sigmoid is stretched beyond each of its limits, in units of the range. With ``sigma=0`` and
            ``stretch=0`` it is the soft function of the pair: the sigmoid, or the tanh.
        binary: round the value; the derivative stays that of the clipped sigmoid.

    >>> from noisyact import NoisyHardSigmoid
    >>> import torch
    >>> NoisyHardSigmoid("saturating-sigmoid").eval()(torch.tensor([-3.0, 0.0, 1.0]))
    tensor([0.0000, 0.5000, 0.7773])
    """

    sigma: float = 1.0
    stretch: float = 0.1
    binary: bool = False

    name = "saturating-sigmoid"
    code = 14
    scale_name = "sigma"


ROUNDED = StraightThrough(binary=True)
"""What computes a function whose evaluation rule is "binary": the step function, with the derivative of u."""

for _kind in (StraightThrough, SlopeAnnealing, GumbelGate, HardConcrete, SaturatingSigmoid):
    _KINDS.setdefault(_kind.name, _kind)
