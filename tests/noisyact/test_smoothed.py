"""draw="mean" of noise at the input: h smoothed by a Gaussian, in every path, without a random number."""

import math
import pickle

import mpmath
import pytest
import torch
from cases import MEANS, PAIRS

import noisyact as na
from noisyact import equations
from noisyact import functional as F

HARD = {name: pair for name, pair in PAIRS.items() if isinstance(pair, na.HardPair)}
CEILING = na.HardPair(slope=0.5, offset=0.1, low=-math.inf, high=1.0)
POINTS = (-40.0, -2.5, -1.0, -0.2, 0.0, 0.9, 1.0, 1.1, 2.0, 7.0)


def by_quadrature(x: float, pair: na.HardPair, sigma: float) -> float:
    """E[h(x + sigma xi)] by integration, piece by piece between the kinks."""
    kinks = [(k - x) / sigma for k in (pair.x_low, pair.x_high) if math.isfinite(k)]
    edges = [-12, *sorted(k for k in kinks if abs(k) < 12), 12]

    def weighted(xi):
        u = pair.slope * (x + sigma * xi) + pair.offset
        return mpmath.npdf(xi) * max(pair.low, min(pair.high, u))

    return float(mpmath.quad(weighted, edges))


@pytest.mark.parametrize("pair", [*HARD.values(), CEILING], ids=[*HARD, "ceiling"])
def test_it_is_the_integral(pair):
    for sigma in (0.05, 0.7):
        x = torch.tensor(POINTS, dtype=torch.float64)
        found = equations.smoothed(x, pair, torch.full_like(x, sigma))
        assert found.tolist() == pytest.approx([by_quadrature(v, pair, sigma) for v in POINTS], abs=1e-12)
        assert torch.equal(equations.smoothed(x, pair, torch.zeros_like(x)), pair.h(x))
    ends = torch.tensor([1e300, -1e300, math.inf, -math.inf], dtype=torch.float64)
    torch.testing.assert_close(equations.smoothed(ends, pair, torch.ones_like(ends)), pair.h(ends), rtol=1e-14, atol=0)
    assert equations.smoothed(torch.tensor(math.nan), pair, torch.tensor(0.5)).isnan()


def test_it_is_the_mean_of_many_draws():
    x, xi = torch.tensor([-1.5, 0.9, 1.2]).double(), F.standard_normal(torch.tensor(5), (400_000, 1)).double()
    for scheme in MEANS:
        drawn = type(scheme)(scheme.scale)
        many = equations.phi(x.expand(len(xi), 3), na.HARD_TANH, drawn, drawn.scale, 1.5, xi.expand(-1, 3)).mean(0)
        mean = equations.phi(x, na.HARD_TANH, scheme, scheme.scale, 1.5, None)
        assert torch.allclose(many, mean, atol=3e-3)
        # The paper replaces xi by its mean at test time, which is another function where h is not linear.
        assert torch.equal(equations.phi(x, na.HARD_TANH, drawn, drawn.scale, 1.5, None), na.HARD_TANH.h(x))
        assert (mean - na.HARD_TANH.h(x)).abs().max() > 1e-3


@pytest.mark.parametrize("scheme", MEANS, ids=str)
def test_derivatives(scheme):
    for pair in (*HARD.values(), CEILING):
        x = torch.linspace(-5, 5, 41, dtype=torch.float64, requires_grad=True)
        p = torch.linspace(-2, 2, 41, dtype=torch.float64, requires_grad=True)
        y = equations.phi(x, pair, scheme, scheme.scale, p, None)
        gx, gp = torch.autograd.grad(y.sum(), (x, p), allow_unused=True)
        paths = equations.path_derivatives(x.detach(), pair, scheme, scheme.scale, p.detach(), None)
        torch.testing.assert_close(paths.linear + paths.nonlinear + paths.stochastic, gx, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(paths.dp, torch.zeros_like(p) if gp is None else gp, rtol=1e-9, atol=1e-9)
        away = torch.tensor([-3.3, -0.7, 0.4, 1.9], dtype=torch.float64, requires_grad=True)
        q = torch.tensor([1.3], dtype=torch.float64, requires_grad=True)
        call = lambda x, q, pair=pair: equations.phi(x, pair, scheme, scheme.scale, q, None)  # noqa: E731
        assert torch.autograd.gradcheck(call, (away, q))


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("scheme", MEANS, ids=str)
def test_the_kernel_equals_the_equations(scheme):
    for pair in (*HARD.values(), CEILING):
        kinks = [x for x in (pair.x_low, pair.x_high) if float(torch.tensor(x)) == x and math.isfinite(x)]
        x = torch.cat([torch.linspace(-6, 6, 300), torch.tensor([*kinks, 1e30, -1e30])])
        p = torch.linspace(-2, 2, len(x))
        results = []
        for dtype in (torch.float32, torch.float64):  # the kernel, and torch operations
            leaf, own_p = x.to(dtype).requires_grad_(), p.to(dtype).requires_grad_()
            y = F.noisy(leaf, pair, scheme, own_p)
            gradients = torch.autograd.grad(y, (leaf, own_p), torch.ones_like(y), allow_unused=True)
            results.append([y, *(g for g in gradients if g is not None)])
        for mine, right in zip(*results, strict=True):
            torch.testing.assert_close(mine.double(), right, rtol=2e-6, atol=2e-6)


def results(module, x):
    """The output, and the gradients of the input and of all parameters."""
    leaf = x.clone().requires_grad_()
    y = module(leaf)[0]
    (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    return [y, leaf.grad, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("kind", [na.NoisyLSTM, na.NoisyGRU, na.NoisyRNN])
def test_recurrent_layers(kind):
    gates = {} if kind is na.NoisyRNN else {"gate_noise": "nani:sigma=0.6,draw=mean"}
    torch.manual_seed(0)
    kernel = kind(5, 17, noise="nanil:c=9,draw=mean", backend="cpu", **gates)
    reference = kind(5, 17, noise="nanil:c=9,draw=mean", backend="reference", **gates)
    reference.load_state_dict(kernel.state_dict())
    x = 3 * torch.randn(6, 3, 5)
    state = torch.random.get_rng_state()
    found, expected = (results(module, x) for module in (kernel, reference))
    assert torch.equal(torch.random.get_rng_state(), state)  # nothing is drawn
    for mine, right in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)
    assert any("noise" in name and p.grad.abs().max() > 0 for name, p in kernel.named_parameters())
    assert torch.equal(kernel.eval()(x)[0], kernel.train()(x)[0])  # training and testing have the same function


def test_a_module_draws_nothing_and_learns_p():
    module = na.NoisyHardTanh("nanil:c=9,draw=mean", num_parameters=4)
    state = torch.random.get_rng_state()
    x = torch.tensor([[-3.0, -1.4, 1.3, 4.0]])
    y = module(x)
    assert torch.equal(torch.random.get_rng_state(), state)
    y.sum().backward()
    assert module.p.grad.abs().max() > 0
    assert torch.equal(module.eval()(x), y)
    assert pickle.loads(pickle.dumps(module.noise)) == na.NANIL(c=9.0, draw="mean") == na.scheme(str(module.noise))


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"NANI\(draw='centred'\): draw must be one of 'sample', 'mean'"):
        na.NANI(draw="centred")
    with pytest.raises(ValueError, match="draw must be one of 'sample', 'mean'"):
        na.scheme("nanis:draw=centred")
    with pytest.raises(ValueError, match=r"needs hard functions, but hard=False"):
        na.NoisyLSTM(2, 3, noise="nani:draw=mean", hard=False)(torch.zeros(1, 1, 2))
    soft = na.Pair(h=torch.tanh, u=lambda x: x)
    with pytest.raises(ValueError, match="for piecewise linear functions"):
        F.noisy(torch.zeros(3), soft, "nani:draw=mean")
