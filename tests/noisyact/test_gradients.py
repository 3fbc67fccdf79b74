"""Gradients: against finite differences and the paper's formula, and which arguments get one."""

import pytest
import torch
from cases import PAIRS, SCHEMES, away_from_kinks, scheme_ids
from torch.autograd import gradcheck, gradgradcheck

import noisyact as na
from noisyact import equations
from noisyact import functional as F
from noisyact.ops.activation import noisy_activation

GRADIENT_SHAPES = [(), (1,), (5,), (2, 3), (2, 1, 4)]


def inputs(shape, pair, scheme):
    """x away from every kink of phi, p per feature where x has features."""
    features = shape[-1] if shape else 1
    x = away_from_kinks(torch.randn(shape, dtype=torch.float64) * 3, pair, 0.02)
    p = torch.empty(features, dtype=torch.float64).uniform_(-2, 2)
    xi = torch.randn(shape, dtype=torch.float64)
    if scheme.at_input or scheme.clips:  # these have kinks where the noisy value meets a threshold: go round them
        for _ in range(50):
            if scheme.at_input:
                value = x + _input_noise(x, pair, scheme, p, xi)
                close = sum(((value - k).abs() < 0.02) for k in (pair.x_low, pair.x_high)) > 0
            else:
                value = F.noisy(x, pair, scheme.__class__(c=scheme.scale, alpha=scheme.alpha), p, xi)
                close = sum(((value - k).abs() < 0.02) for k in (pair.low, pair.high)) > 0
                close &= pair.saturated(x)
            if not close.any():
                break
            xi = torch.where(close, torch.randn_like(xi), xi)
    return x.requires_grad_(), p.requires_grad_(), xi


def _input_noise(x, pair, scheme, p, xi):
    if scheme.learns_p:
        return equations.sigma(equations.delta(pair.h(x), pair.u(x)), p if x.dim() else p[0], scheme.scale) * xi
    return scheme.scale * xi * (pair.saturated(x) if isinstance(scheme, na.NANIS) else 1)


@pytest.mark.parametrize("scheme", SCHEMES, ids=scheme_ids)
@pytest.mark.parametrize("pair", ["tanh", "sigmoid", "relu"])
def test_gradcheck_of_the_equations(scheme, pair):
    pair = PAIRS[pair]
    for shape in GRADIENT_SHAPES:
        x, p, xi = inputs(shape, pair, scheme)

        def function(x, p, xi=xi):
            return F.noisy(x, pair, scheme, p, xi)

        assert gradcheck(function, (x, p), check_forward_ad=True)
        assert gradgradcheck(function, (x, p), atol=1e-4)


@pytest.mark.parametrize("scheme", SCHEMES, ids=scheme_ids)
def test_gradcheck_of_the_operation(scheme):
    """The registered op, noise from a seed: first and second derivative."""
    pair = na.HARD_TANH
    # far from the thresholds, so that noise cannot carry an input-noise scheme across one
    x = torch.tensor([-9.0, -0.1, 0.05, 7.0, 0.2, -5.0], dtype=torch.float64)
    p = torch.tensor([0.3, -0.2, 0.9, 0.15, 1.0, -0.4], dtype=torch.float64)
    if scheme.clips:
        scheme = scheme.with_scale(0.05)
    if not scheme.at_input and scheme.clips:
        x = x.clamp(-3, 3)
    scale = torch.tensor(min(scheme.scale, 0.1), dtype=torch.float64)
    seed = torch.tensor(11)
    x.requires_grad_()
    if scheme.learns_p:
        p.requires_grad_()
        args = (x, p)
    else:
        args = (x,)

    def function(x, p=None):
        return noisy_activation(x, p, scale, seed, scheme, pair)

    assert gradcheck(function, args)
    assert gradgradcheck(function, args, atol=1e-4)


@pytest.mark.parametrize("alpha", [0.9, 1.0, 1.15])
@pytest.mark.parametrize("noise", ["nan", "nah"])
@pytest.mark.parametrize("pair", ["tanh", "sigmoid"])
def test_saturated_gradient_is_the_papers(alpha, noise, pair):
    """phi' = (1 - alpha) u' + d epsilon sigma', sigma' = -2 c (g - 1/2) g (1 - g) p u', g = sigmoid(p Delta)."""
    pair, scheme = PAIRS[pair], na.scheme(f"{noise}:alpha={alpha},c=2.0")
    x = torch.cat([torch.linspace(2.1, 9, 50), -torch.linspace(2.1, 9, 50)]).double().requires_grad_()
    xi, p, c = torch.randn(100, dtype=torch.float64), 0.8, 2.0
    F.noisy(x, pair, scheme, torch.tensor([p], dtype=torch.float64), xi).sum().backward()
    delta = (pair.h(x) - pair.u(x)).detach()
    g = torch.sigmoid(p * delta)
    sigma_prime = -2 * c * (g - 0.5) * g * (1 - g) * p * pair.slope
    epsilon = xi.abs() if noise == "nah" else xi
    d = -x.detach().sign() * (-1 if alpha > 1 else 1)
    torch.testing.assert_close(x.grad, (1 - alpha) * pair.slope + d * epsilon * sigma_prime, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("noise", ["nan", "nah", "nan:alpha=0.9", "nah:alpha=1.0,c=30"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_at_the_kink_is_the_slope(noise, dtype):
    for pair, kinks in ((na.HARD_TANH, [-1.0, 1.0]), (na.HARD_SIGMOID, [-2.0, 2.0])):
        x = torch.tensor(kinks, dtype=dtype, requires_grad=True)
        F.noisy(x, pair, noise, torch.ones(1)).sum().backward()
        assert x.grad.tolist() == [pair.slope, pair.slope]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p_shape", [(1,), (6,), (1, 6), ()])
def test_gradient_of_p_is_summed_over_what_shares_it(p_shape, dtype):
    x, xi = torch.randn(4, 5, 6, dtype=dtype) * 3, torch.randn(4, 5, 6, dtype=dtype)
    p = torch.rand(p_shape, dtype=dtype).requires_grad_()
    F.noisy_hard_tanh(x, "nan:c=2", p, xi).sum().backward()
    each = p.detach().expand(4, 5, 6).clone().double().requires_grad_()
    equations.phi(x.double(), na.HARD_TANH, na.NAN(c=2), 2.0, each, xi.double()).sum().backward()
    summed = each.grad.sum() if p.numel() == 1 else each.grad.sum((0, 1))
    assert p.grad.shape == p.shape
    torch.testing.assert_close(p.grad.double().flatten(), summed.flatten(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wants_x", [False, True])
@pytest.mark.parametrize("wants_p", [False, True])
@pytest.mark.parametrize("seeded", [False, True])
def test_who_gets_gradients(wants_x, wants_p, seeded):
    """x and p get gradients if they require them; xi, c and the seed never do."""
    x = (torch.randn(8) * 3).requires_grad_(wants_x)
    p = torch.ones(1).requires_grad_(wants_p)
    xi = torch.randn(8)
    noise = {"seed": torch.tensor(1)} if seeded else {"xi": xi}
    y = F.noisy_hard_tanh(x, "nah", p, **noise)
    assert y.requires_grad == (wants_x or wants_p)
    if y.requires_grad:
        y.sum().backward()
    assert (x.grad is not None) == wants_x
    assert (p.grad is not None) == wants_p
    assert xi.grad is None


def test_the_learned_strength_learns():
    """Descending on the noise of the output drives |p|, and with it sigma, down."""
    layer = na.NoisyHardTanh("nan:alpha=1.0,c=2.0")
    with torch.no_grad():
        layer.p.fill_(0.9)
    x = torch.full((4096,), 3.0)
    optimiser = torch.optim.SGD(layer.parameters(), lr=2.0)
    for _ in range(50):
        optimiser.zero_grad()
        (layer(x) - 1).square().mean().backward()
        optimiser.step()
    assert layer.p.abs() < 0.5
