"""Pairs of h and u: built from smooth functions, by hand, and refused where they make no sense."""

import math

import pytest
import torch

import noisyact as na
from noisyact import functional as F


def softsign_steep(x):
    return 3 * x / (1 + 3 * x.abs())


@pytest.mark.parametrize(
    ("function", "slope", "offset", "low", "high"),
    [
        (torch.tanh, 1.0, 0.0, -1.0, 1.0),
        (torch.sigmoid, 0.25, 0.5, 0.0, 1.0),
        (torch.atan, 1.0, 0.0, -math.pi / 2, math.pi / 2),
        (torch.erf, 2 / math.sqrt(math.pi), 0.0, -1.0, 1.0),
        (torch.nn.functional.softsign, 1.0, 0.0, -1.0, 1.0),
        (softsign_steep, 3.0, 0.0, -1.0, 1.0),
        (torch.nn.functional.softplus, 0.5, math.log(2), 0.0, math.inf),
        (lambda x: -torch.nn.functional.softplus(-x), 0.5, -math.log(2), -math.inf, 0.0),
    ],
)
def test_harden_expands_and_clips(function, slope, offset, low, high):
    pair = na.harden(function)
    assert (pair.slope, pair.offset, pair.low, pair.high) == pytest.approx((slope, offset, low, high), abs=1e-12)
    x = torch.linspace(-20, 20, 401, dtype=torch.float64)
    torch.testing.assert_close(pair.h(x), (slope * x + offset).clamp(low, high))


def test_harden_gives_the_papers_functions():
    x = torch.linspace(-4, 4, 81)
    assert torch.equal(na.harden(torch.tanh).h(x), F.hard_tanh(x))
    assert torch.equal(na.harden(torch.sigmoid).h(x), F.hard_sigmoid(x))


def test_gradient_at_the_kinks_is_the_slope():
    for pair, kinks in ((na.HARD_TANH, [-1.0, 1.0]), (na.HARD_SIGMOID, [-2.0, 2.0]), (na.RELU, [0.0])):
        x = torch.tensor(kinks, requires_grad=True)
        pair.h(x).sum().backward()
        assert x.grad.tolist() == [pair.slope] * len(kinks)


@pytest.mark.parametrize("noise", ["nan", "nah", "nani", "nanil", "nanis", "nah:clip=True"])
def test_a_pair_of_functions_equals_the_four_numbers(noise):
    """The same h and u, once as functions and once as numbers, give the same noisy function and gradient."""
    by_hand = na.Pair(h=lambda x: x.clamp(-1, 1), u=lambda x: x, x_t=(-1.0, 1.0), limits=(-1.0, 1.0))
    x, p, seed = torch.randn(300) * 3, torch.tensor([0.7]), torch.tensor(5)
    results = []
    for pair in (by_hand, na.HARD_TANH):
        leaf = x.clone().requires_grad_()
        y = F.noisy(leaf, pair, noise, p, seed=seed)
        results.append((y.detach(), *torch.autograd.grad(y.sum(), leaf)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_a_smooth_pair_is_noisy_where_it_leaves_its_linearisation():
    pair = na.Pair(h=torch.tanh, u=lambda x: x)
    x = torch.tensor([0.0, 3.0])
    y = F.noisy(x, pair, "nan:alpha=1.0,c=2", torch.tensor([1.0]), torch.tensor([1.0, 1.0]))
    assert y[0] == 0
    assert abs(y[1] - torch.tanh(x[1])) > 0.1


def test_module_of_a_pair():
    layer = na.NoisyActivation(na.harden(torch.erf), "nah", num_parameters=6)
    assert layer(torch.randn(3, 6) * 4).shape == (3, 6)
    assert na.NoisyActivation(na.Pair(torch.tanh, lambda x: x), "nan")(torch.randn(3)).shape == (3,)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: na.HardPair(0.0, 0.0, -1.0, 1.0), ValueError, "slope=0.0"),
        (lambda: na.HardPair(-1.0, 0.0, -1.0, 1.0), ValueError, "slope=-1.0"),
        (lambda: na.HardPair(math.inf, 0.0, -1.0, 1.0), ValueError, "inf"),
        (lambda: na.HardPair(1.0, 2.0, -1.0, 1.0), ValueError, "offset=2.0"),
        (lambda: na.HardPair(1.0, 0.0, 1.0, -1.0), ValueError, "low <= offset <= high"),
        (lambda: na.HardPair(1.0, 0.0, -math.inf, math.inf), ValueError, "neither side"),
        (lambda: na.HardPair("1", 0.0, -1.0, 1.0), ValueError, "slope='1'"),
        (lambda: na.HardPair(1.0, math.nan, -1.0, 1.0), ValueError, "nan"),
        (lambda: na.harden(torch.sin), ValueError, "sin"),
        (lambda: na.harden(lambda x: -torch.tanh(x)), ValueError, "slope"),
        (lambda: na.harden(torch.sinh), ValueError, "no hard version"),
        (lambda: na.Pair(h=3, u=torch.tanh), TypeError, "h=3"),
        (lambda: na.Pair(h=torch.tanh, u=torch.tanh, x_t=(1.0, -1.0)), ValueError, "x_t"),
        (lambda: F.noisy(torch.ones(2), na.Pair(torch.tanh, torch.tanh), "nanis"), ValueError, "x_t"),
        (lambda: F.noisy(torch.ones(2), na.Pair(torch.tanh, torch.tanh), "nah:clip=True"), ValueError, "limits"),
    ],
)
def test_nonsense_is_refused(make, error, said):
    with pytest.raises(error, match=said):
        make()
