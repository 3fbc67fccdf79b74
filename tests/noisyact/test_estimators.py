"""The estimators: values and derivatives by hand, the laws of their noise, rounding, and their life as schemes."""

import copy
import math
import pickle

import mpmath
import pytest
import torch
from cases import ESTIMATORS, allowed

import noisyact as na
from noisyact import equations
from noisyact import functional as F

SIGMOID, TANH = na.HARD_SIGMOID, na.HARD_TANH
SOFT = na.Pair(h=torch.sigmoid, u=SIGMOID.u, x_t=(-2.0, 2.0), limits=(0.0, 1.0))


def s(v):
    """The sigmoid."""
    return 1 / (1 + math.exp(-v))


def quantile(xi):
    """logit(Phi(xi)) by mpmath."""
    below, above = mpmath.ncdf(xi), mpmath.ncdf(-xi)
    return float(mpmath.log(below) - mpmath.log(above))


# scheme, pair, x, xi (None for the expectation), phi and dphi/dx.
POINTS = [
    ("straight-through", SIGMOID, 1.0, 0.3, 0.75, 0.25),
    ("straight-through", SIGMOID, 900.0, None, 1.0, 0.25),
    ("straight-through", TANH, -7.0, None, -1.0, 1.0),
    ("straight-through:width=2", TANH, 2.9, None, 1.0, 1.0),
    ("straight-through:width=2", TANH, -3.1, None, -1.0, 0.0),
    ("straight-through:width=0", TANH, 1.0, None, 1.0, 1.0),
    ("straight-through:width=0,binary=true", TANH, 0.2, None, 1.0, 1.0),
    ("straight-through:width=0,binary=true", TANH, -1.2, None, -1.0, 0.0),
    ("straight-through:binary=true", SIGMOID, 0.0, None, 1.0, 0.25),
    ("straight-through:binary=true", SIGMOID, -1e-3, None, 0.0, 0.25),
    ("straight-through", SOFT, 3.0, None, s(3.0), 0.25),
    ("straight-through:width=0.3", SOFT, 3.0, None, s(3.0), 0.25),
    ("straight-through:width=0.3", SOFT, 4.0, None, s(4.0), 0.0),
    ("slope:slope=3", TANH, 0.25, None, 0.75, 3.0),
    ("slope:slope=3", TANH, 0.5, None, 1.0, 0.0),
    ("slope:slope=2", SIGMOID, -0.5, 0.7, 0.25, 0.5),
    ("slope:slope=2,binary=true", SIGMOID, -0.5, None, 0.0, 0.5),
    ("slope:slope=2", SOFT, 0.5, None, s(1.0), 2 * s(1.0) * s(-1.0)),
    ("slope:slope=2,binary=true", SOFT, 0.5, None, 1.0, 2 * s(1.0) * s(-1.0)),
    ("gumbel", SIGMOID, 0.4, None, s(0.4), s(0.4) * s(-0.4)),
    ("gumbel:tau=0.5", SIGMOID, 0.4, 0.0, s(0.8), 2 * s(0.8) * s(-0.8)),
    ("gumbel:tau=0.5", SOFT, 0.4, 0.0, s(0.8), 2 * s(0.8) * s(-0.8)),
    ("gumbel", TANH, 0.3, None, math.tanh(0.3), 1 - math.tanh(0.3) ** 2),
    ("gumbel:binary=true", TANH, -0.3, None, -1.0, 1 - math.tanh(0.3) ** 2),
    ("hard-concrete", SIGMOID, 1.0, None, 1.2 * s(1.0) - 0.1, 1.2 * s(1.0) * s(-1.0)),
    ("hard-concrete", SIGMOID, 3.0, None, 1.0, 0.0),
    ("hard-concrete:beta=0.5", SIGMOID, -0.5, 0.0, 1.2 * s(-1.0) - 0.1, 2.4 * s(1.0) * s(-1.0)),
    ("hard-concrete:beta=0.5", SIGMOID, -1.5, 0.0, 0.0, 0.0),
    ("hard-concrete:binary=true", SIGMOID, 1.0, None, 1.0, 1.2 * s(1.0) * s(-1.0)),
    ("saturating-sigmoid", SIGMOID, 1.0, 0.5, 1.2 * s(1.5) - 0.1, 1.2 * s(1.5) * s(-1.5)),
    ("saturating-sigmoid", SIGMOID, 1.0, None, 1.2 * s(1.0) - 0.1, 1.2 * s(1.0) * s(-1.0)),
    ("saturating-sigmoid:sigma=2", TANH, 0.5, -1.0, 1.2 * (2 * s(-1.0) - 1), 4.8 * s(1.0) * s(-1.0)),
    ("saturating-sigmoid:sigma=2,binary=true", TANH, 0.5, -1.0, -1.0, 4.8 * s(1.0) * s(-1.0)),
    ("saturating-sigmoid:sigma=0,stretch=0", TANH, 0.5, 9.0, math.tanh(0.5), 1 - math.tanh(0.5) ** 2),
    # A range of [-1/2, 2] around 3/4, and a slope of 1/2: z = 0.8 x - 0.8.
    ("gumbel", na.HardPair(0.5, 0.25, -0.5, 2.0), 2.0, None, 2.5 * s(0.8) - 0.5, 2 * s(0.8) * s(-0.8)),
    ("gumbel:binary=true", na.HardPair(0.5, 0.25, -0.5, 2.0), 0.9, None, -0.5, 2 * s(0.08) * s(-0.08)),
]


@pytest.mark.parametrize(("noise", "pair", "x", "xi", "value", "slope"), POINTS)
def test_points_by_hand(noise, pair, x, xi, value, slope):
    """float64 by the equations, float32 by the kernel where there is no xi."""
    leaf = torch.tensor([x], dtype=torch.float64, requires_grad=True)
    given = None if xi is None else torch.tensor([xi], dtype=torch.float64)
    y = F.noisy(leaf, pair, noise, xi=given, training=xi is not None)
    (gradient,) = torch.autograd.grad(y, leaf)
    assert y.item() == pytest.approx(value, abs=1e-12)
    assert gradient.item() == pytest.approx(slope, abs=1e-12)
    if xi is None:
        leaf = leaf.detach().float().requires_grad_()
        y = F.noisy(leaf, pair, noise, training=False)
        assert y.item() == pytest.approx(value, abs=1e-6)
        assert torch.autograd.grad(y, leaf)[0].item() == pytest.approx(slope, abs=1e-6)


def test_logistic_noise_is_the_quantile_transform():
    points = [-9.0, -6.6, -3.0, -0.5, 0.0, 1e-3, 0.5, 3.0, 6.6, 9.0]
    exact = [quantile(xi) for xi in points]
    assert equations.logistic(torch.tensor(points, dtype=torch.float64)).tolist() == pytest.approx(
        exact, rel=1e-13, abs=1e-15
    )
    assert equations.logistic(torch.tensor(points)).tolist() == pytest.approx(exact, rel=1e-5, abs=1e-6)
    drawn = equations.logistic(F.standard_normal(torch.tensor(7), (400_000,)).double()).sigmoid()
    levels = torch.tensor([0.1, 0.25, 0.5, 0.9]).double()  # the sigmoid of logistic noise is uniform
    torch.testing.assert_close(torch.quantile(drawn, levels), levels, atol=3e-3, rtol=0)


def test_a_cold_gumbel_gate_is_a_draw_whose_mean_is_the_soft_function():
    x = torch.tensor([-1.0, 0.2, 0.7]).double()
    xi = F.standard_normal(torch.tensor(5), (300_000, 3)).double()
    for pair, soft in ((SIGMOID, torch.sigmoid), (TANH, torch.tanh)):
        drawn = F.noisy(x.expand_as(xi), pair, "gumbel:tau=0.001", xi=xi)
        assert (drawn.sub(pair.low).abs().minimum(drawn.sub(pair.high).abs()) < 1e-2).double().mean() > 0.99
        torch.testing.assert_close(drawn.mean(0), soft(x), atol=6e-3, rtol=0)


def test_hard_concrete_has_the_published_probability_of_zero():
    """P(0) = sigmoid(beta ln(-gamma / zeta) - ln alpha), from the stretched distribution's function at 0."""
    x, beta = torch.linspace(-2, 2, 5).double(), 2 / 3
    xi = F.standard_normal(torch.tensor(3), (200_000, 5)).double()
    zero = (F.noisy(x.expand_as(xi), SIGMOID, "hard-concrete", xi=xi) == 0).double().mean(0)
    torch.testing.assert_close(zero, torch.sigmoid(beta * math.log(0.1 / 1.1) - x), atol=4e-3, rtol=0)


@pytest.mark.parametrize("scheme", ESTIMATORS, ids=str)
def test_closed_form_and_autograd(scheme):
    """The closed form of dphi/dx equals autograd in every way that torch has; smooth values pass gradcheck."""
    xi = torch.randn(33, dtype=torch.float64)
    for pair in [*allowed(scheme).values(), SOFT]:
        x = torch.linspace(-4.1, 5.3, 33, dtype=torch.float64, requires_grad=True)
        for own_xi in (xi, None):

            def function(x, pair=pair, xi=own_xi):
                return equations.phi(x, pair, scheme, scheme.scale, 1.0, xi)

            paths = equations.path_derivatives(x.detach(), pair, scheme, scheme.scale, 1.0, own_xi)
            expected = paths.linear + paths.nonlinear
            assert not paths.stochastic.any()
            assert not paths.dp.any()
            ways = {
                "backward": torch.autograd.grad(function(x).sum(), x)[0],
                "grad": torch.func.grad(lambda x: function(x).sum())(x.detach()),
                "forward": torch.func.jvp(function, (x.detach(),), (torch.ones_like(x),))[1],
            }
            for way, slope in ways.items():
                torch.testing.assert_close(slope, expected, rtol=1e-12, atol=1e-12, msg=way)
            if isinstance(scheme, na.GumbelGate | na.SaturatingSigmoid) and not scheme.rounds:
                away = torch.tensor([-0.7, 0.4, 1.1], dtype=torch.float64, requires_grad=True)
                given = None if own_xi is None else own_xi[:3].clamp(-1, 1)
                assert torch.autograd.gradcheck(lambda x, g=given: function(x, xi=g), (away,))


@pytest.mark.parametrize("scheme", ESTIMATORS, ids=str)
def test_a_value_of_its_own(scheme):
    """Text, pickle, repr, and annealing of the scale that the estimator names."""
    for again in (na.scheme(str(scheme)), pickle.loads(pickle.dumps(scheme)), copy.deepcopy(scheme)):
        assert (again, hash(again), str(again)) == (scheme, hash(scheme), str(scheme))
    assert eval(repr(scheme), vars(na)) == scheme
    module = na.NoisyHardSigmoid(scheme)
    assert (module.p, module.scale.item()) == (None, pytest.approx(scheme.scale))
    scheduler = na.NoiseScheduler(module, na.anneal.linear(1.0, 3.0, steps=2))
    scheduler.step()
    assert module.scale.item() == 2.0
    x = torch.linspace(-3, 3, 9)
    y = module(x, xi=torch.ones(9))
    torch.testing.assert_close(y, F.noisy(x, SIGMOID, scheme.with_scale(2.0), xi=torch.ones(9)))
    assert f"{scheme.scale_name}=2.0" in repr(module)
    state = torch.random.get_rng_state()
    module(x)
    assert torch.equal(torch.random.get_rng_state(), state) != scheme.draws


def test_the_papers_schemes_come_first():
    names = "nan, nah, nani, nanil, nanis, straight-through, slope, gumbel, hard-concrete, saturating-sigmoid"
    with pytest.raises(ValueError, match=f"known are {names}"):
        na.scheme("ste")
    assert na.scheme("Gumbel : tau = 2") == na.GumbelGate(tau=2)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: na.StraightThrough(width=-1), ValueError, "width=-1.*at least 0"),
        (lambda: na.StraightThrough(width=math.nan), ValueError, "width=nan.*finite"),
        (lambda: na.SlopeAnnealing(slope=0), ValueError, "slope=0.*above 0"),
        (lambda: na.SlopeAnnealing(slope=math.inf), ValueError, "slope=inf.*finite"),
        (lambda: na.GumbelGate(tau=0.0), ValueError, "tau=0.0.*above 0"),
        (lambda: na.GumbelGate(binary=1), TypeError, "binary=1.*True or False"),
        (lambda: na.HardConcrete(beta=-1.0), ValueError, "beta=-1.0"),
        (lambda: na.HardConcrete(stretch=-0.1), ValueError, "stretch=-0.1"),
        (lambda: na.scheme("gumbel:binary=yes"), ValueError, "binary='yes'"),
        (lambda: na.scheme("gumbel:stretch=1"), ValueError, "allowed: binary, tau"),
        (lambda: na.NoisyReLU("gumbel"), ValueError, "GumbelGate.*finite limit on both sides.*HardPair"),
        (lambda: na.NoisyReLU("slope:binary=true"), ValueError, "finite limit"),
        (lambda: na.NoisyReLU(eval_noise="binary"), ValueError, "finite limit"),
        (lambda: F.noisy_relu(torch.zeros(2), "hard-concrete"), ValueError, "finite limit"),
        (lambda: na.NoisyRNN(2, 3, nonlinearity="relu", noise="gumbel"), ValueError, "finite limit"),
        (lambda: na.NoisyRNN(2, 3, eval_noise="binary"), ValueError, "an RNN has none"),
        (lambda: na.NoisyLSTM(2, 3, eval_noise="round"), ValueError, "'round'.*'binary'"),
        (lambda: na.NoisyHardSigmoid("gumbel").set_scale(0.0), ValueError, "tau=0.0.*above 0"),
        (lambda: F.noisy(torch.zeros(2), na.Pair(torch.tanh, lambda x: x), "gumbel"), ValueError, "both sides"),
    ],
)
def test_wrong_values_are_named(make, error, said):
    with pytest.raises(error, match=said):
        make()


def test_a_refused_scale_changes_nothing():
    lstm = na.NoisyLSTM(2, 3, noise="nah", gate_noise="gumbel")
    with pytest.raises(ValueError, match="tau=0"):
        na.set_noise_scale(lstm, 0)
    assert (lstm.noise.scale.item(), lstm.noise.gate_scale.item()) == (0.5, pytest.approx(0.9))


def test_one_kind_of_scale_is_annealed():
    model = torch.nn.Sequential(na.NoisyLSTM(2, 3, noise="nah", gate_noise="slope"), na.NoisyHardSigmoid("slope"))
    scheduler = na.NoiseScheduler(model, na.anneal.linear(1.0, 5.0, steps=4), only="slope")
    scheduler.step()
    assert [model[0].noise.scale, model[0].noise.gate_scale, model[1].scale] == [0.5, 2.0, 2.0]
    assert na.set_noise_scale(model, 0.25, only="c") == 1
    assert [model[0].noise.scale, model[0].noise.gate_scale, model[1].scale] == [0.25, 2.0, 2.0]
    with pytest.raises(ValueError, match="only='tau': the scales of Sequential are c, slope"):
        na.set_noise_scale(model, 1.0, only="tau")


def test_relu_takes_the_estimators_that_need_no_upper_limit():
    x = torch.tensor([-3.0, 2.0], requires_grad=True)
    y = na.NoisyReLU("straight-through")(x)
    assert (y.tolist(), torch.autograd.grad(y.sum(), x)[0].tolist()) == ([0.0, 2.0], [1.0, 1.0])
    assert na.NoisyReLU("slope:slope=2")(x).tolist() == [0.0, 4.0]


def test_it_learns_through_saturation():
    """A gate that starts shut: h gives no gradient, the estimators do, and the gate opens."""
    for noise in ("straight-through", "gumbel", "saturating-sigmoid:sigma=0,stretch=0"):
        gate, bias = na.NoisyHardSigmoid(noise), torch.full((64,), -4.0, requires_grad=True)
        optimiser = torch.optim.SGD([bias], lr=2.0)
        for _ in range(150):
            optimiser.zero_grad()
            (1 - gate(bias)).square().sum().backward()
            optimiser.step()
        assert gate.eval()(bias).mean() > 0.9, noise
