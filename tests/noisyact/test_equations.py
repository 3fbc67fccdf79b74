"""The paper's equations: points worked out by hand, laws, expectations."""

import math

import mpmath
import pytest
import torch
from cases import PAIRS, SCHEMES, scheme_ids
from hypothesis import given, settings
from hypothesis import strategies as st

import noisyact as na
from noisyact import equations
from noisyact import functional as F

finite = st.floats(-50, 50)


def at(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def sigma_by_hand(p: float, delta: float, c: float) -> float:
    """c (sigmoid(p Delta) - 1/2)^2 as the paper writes it."""
    return c * (1 / (1 + math.exp(-p * delta)) - 0.5) ** 2


# x, p, xi and what phi must be. s(...) is sigma written as in the paper.
s = sigma_by_hand
POINTS = [
    # inside the linear part nothing is added, whatever the noise
    ("nan", "tanh", 0.5, 1.3, 9.0, 0.5),
    ("nah", "tanh", -1.0, 1.3, 9.0, -1.0),
    ("nah", "sigmoid", 1.0, 1.0, 3.0, 0.75),
    ("nan", "sigmoid", 2.0, 1.0, 3.0, 1.0),
    # NAN, alpha = 1.15: the leak 1 - 0.15 (|x| - 1), noise outwards for a positive draw
    ("nan", "tanh", 2.5, 1.3, 0.7, 1 - 0.15 * 1.5 + s(1.3, 1.5, 0.5) * 0.7),
    ("nan", "tanh", -2.5, 1.3, 0.7, -1 + 0.15 * 1.5 - s(1.3, 1.5, 0.5) * 0.7),
    ("nan", "tanh", 2.5, 1.3, -0.7, 1 - 0.15 * 1.5 - s(1.3, 1.5, 0.5) * 0.7),
    ("nan:alpha=1.0", "tanh", 2.5, 1.3, 0.7, 1 - s(1.3, 1.5, 0.5) * 0.7),
    ("nan:c=2,alpha=0.9", "sigmoid", 6.0, -0.8, 1.1, 0.9 + 0.1 * 2.0 - s(0.8, 1.0, 2.0) * 1.1),
    # NAH takes |xi|: towards h, outwards for alpha > 1, inwards below and at 1
    ("nah", "tanh", 3.0, 0.5, -2.0, 1 - 0.15 * 2.0 + s(0.5, 2.0, 0.5) * 2.0),
    ("nah", "tanh", -3.0, 0.5, 2.0, -1 + 0.15 * 2.0 - s(0.5, 2.0, 0.5) * 2.0),
    ("nah:alpha=1.0", "tanh", 3.0, 0.5, 2.0, 1 - s(0.5, 2.0, 0.5) * 2.0),
    ("nah:alpha=1.0", "tanh", -3.0, 0.5, -2.0, -1 + s(0.5, 2.0, 0.5) * 2.0),
    ("nah:alpha=0.9,c=2", "sigmoid", -6.0, 1.0, 1.5, -0.1 + s(1.0, 1.0, 2.0) * 1.5),
    # clipping to the range of h
    ("nah:c=40,alpha=1.15,clip=True", "tanh", 3.0, 2.0, 2.0, 1.0),
    ("nan:alpha=0.5,clip=True", "sigmoid", 10.0, 1.0, 0.0, 1.0),
    # noise at the input
    ("nani:sigma=0.5", "tanh", 0.2, 1.0, 1.0, 0.7),
    ("nani:sigma=0.5", "tanh", 0.8, 1.0, 1.0, 1.0),
    ("nani:sigma=2", "sigmoid", 1.0, 1.0, -1.0, 0.25),
    ("nanil:c=16", "tanh", 1.5, 2.0, -1.0, 1.5 - s(2.0, 0.5, 16.0)),
    ("nanil:c=8", "tanh", 0.5, 2.0, -1.0, 0.5),
    ("nanis:sigma=1", "tanh", 1.2, 1.0, -1.0, 0.2),
    ("nanis:sigma=1", "tanh", 0.99, 1.0, -1.0, 0.99),
    ("nanis:sigma=1", "tanh", 1.0, 1.0, -1.0, 0.0),  # the threshold itself counts
    ("nanis:sigma=1", "sigmoid", -2.5, 1.0, 1.0, 0.125),
    ("nanis:sigma=1", "sigmoid", 1.5, 1.0, 1.0, 0.875),
    ("nah:alpha=1.0", "relu", -4.0, 1.0, 1.0, s(1.0, 4.0, 0.5)),
    ("nah:alpha=1.0", "relu", 4.0, 1.0, 1.0, 4.0),
]


@pytest.mark.parametrize(("noise", "pair", "x", "p", "xi", "expected"), POINTS)
def test_points_by_hand(noise, pair, x, p, xi, expected):
    y = F.noisy(at(x), PAIRS[pair], noise, at(p), at(xi))
    assert y.item() == pytest.approx(expected, abs=1e-12)


def test_value_of_the_authors_code():
    """The authors' normal noise has the opposite sign of the paper's d for alpha > 1: the same law, xi for -xi."""
    y = F.noisy_hard_tanh(at(2.5), "nan:c=0.5,alpha=1.15", at(1.3), at(-0.7))
    assert y.item() == pytest.approx(0.7256639367, abs=1e-10)


@pytest.mark.parametrize(
    ("noise", "x", "p", "expected"),
    [
        ("nan", 3.0, 0.5, 0.7),
        ("nah", 3.0, 0.5, 0.7 + s(0.5, 2.0, 0.5) * math.sqrt(2 / math.pi)),
        ("nah:alpha=1.0", -3.0, 0.5, -1 + s(0.5, 2.0, 0.5) * math.sqrt(2 / math.pi)),
        ("nani", 3.0, 0.5, 1.0),
        ("nanil", 0.3, 0.5, 0.3),
        ("nanis", -3.0, 0.5, -1.0),
    ],
)
def test_expectation_by_hand(noise, x, p, expected):
    y = F.noisy_hard_tanh(at(x), noise, at(p), training=False)
    assert y.item() == pytest.approx(expected, abs=1e-12)


def test_fixed_points_and_thresholds():
    assert F.hard_sigmoid(at(2 / 3)).item() == pytest.approx(2 / 3, abs=1e-15)
    x = torch.linspace(-1, 1, 1001, dtype=torch.float64)
    assert torch.equal(F.hard_tanh(x), x)
    assert (na.HARD_SIGMOID.x_low, na.HARD_SIGMOID.x_high) == (-2.0, 2.0)
    assert (na.HARD_TANH.x_low, na.HARD_TANH.x_high) == (-1.0, 1.0)
    assert F.hard_sigmoid(torch.tensor([-2.0, 2.0])).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("noise", ["nan:c=30", "nah:c=30", "nan:c=30,alpha=0.7", "nah:c=30,alpha=1.0"])
@pytest.mark.parametrize("pair", ["tanh", "sigmoid", "atan"])
def test_linear_part_is_untouched_to_the_bit(noise, pair):
    pair = PAIRS[pair]
    x = torch.empty(10_000).uniform_(pair.x_low, pair.x_high)
    p, xi = torch.empty(1).uniform_(-9, 9), torch.randn(10_000) * 10
    assert torch.equal(F.noisy(x, pair, noise, p, xi), pair.u(x))


@given(x=finite, p=finite, c=st.floats(0, 100))
@settings(max_examples=500, deadline=None)
def test_sigma_is_even_bounded_and_zero_without_saturation(x, p, c):
    h, u = F.hard_tanh(at(x)), at(x)
    delta = equations.delta(h, u)
    sigma = equations.sigma(delta, p, c)
    assert sigma == equations.sigma(delta, -p, c)
    assert 0 <= sigma <= c / 4
    assert abs(x) > 1 or sigma == 0
    assert sigma.item() == pytest.approx(
        sigma_by_hand(p, delta.item(), c) if abs(p * delta) < 700 else c / 4, abs=1e-12
    )


@given(p=st.floats(0.01, 5), near=st.floats(1, 50), further=st.floats(0, 50))
@settings(max_examples=200, deadline=None)
def test_sigma_grows_with_the_saturation(p, near, further):
    assert equations.sigma(at(near), p, 1.0) <= equations.sigma(at(near + further), p, 1.0)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-15), (torch.float32, 1e-6)])
@pytest.mark.parametrize("product", [1e-8, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 5.0, 50.0])
def test_sigma_keeps_its_precision_near_zero(dtype, bound, product):
    """The paper's form cancels: at p Delta = 1e-4 it has lost three digits in float32."""
    mpmath.mp.dps = 50
    exact = (1 / (1 + mpmath.exp(-mpmath.mpf(float(torch.tensor(product, dtype=dtype))))) - mpmath.mpf(1) / 2) ** 2
    sigma = equations.sigma(torch.tensor(product, dtype=dtype), 1.0, 1.0).item()
    assert abs(sigma - exact) / exact < bound


@given(x=finite, p=finite, xi=finite, alpha=st.floats(0.5, 1.5), pair=st.sampled_from(["tanh", "sigmoid"]))
@settings(max_examples=500, deadline=None)
def test_both_forms_of_the_equation_agree(x, p, xi, alpha, pair):
    """u + alpha Delta + d sigma epsilon is alpha h + (1 - alpha) u + d sigma epsilon."""
    pair = PAIRS[pair]
    h, u = pair.h(at(x)), pair.u(at(x))
    theoretical = u + alpha * (h - u) + equations.direction(at(x), 1 - alpha) * equations.sigma(h - u, p, 0.5) * xi
    assert equations.phi(at(x), pair, na.NAN(alpha=alpha), 0.5, p, at(xi)).item() == pytest.approx(
        theoretical.item(), abs=1e-12
    )


@given(x=finite, alpha=st.floats(0.5, 1.5))
@settings(max_examples=300, deadline=None)
def test_half_normal_noise_points_towards_h(x, alpha):
    noise = na.NAH(alpha=alpha, c=1.0)
    without, with_noise = (equations.phi(at(x), na.HARD_TANH, noise, c, 0.9, at(1.0)) for c in (0.0, 1.0))
    pushed = (with_noise - without).item()
    outward = 1 if x >= 0 else -1
    if abs(x) <= 1:
        assert pushed == 0
    elif alpha > 1:
        assert pushed * outward >= 0
    else:
        assert pushed * outward <= 0


@settings(max_examples=200)
@given(x=st.floats(-100, 100), p=st.floats(-1, 1), xi=st.floats(-20, 20))
@pytest.mark.parametrize("pair", [na.HARD_TANH, na.HARD_SIGMOID], ids=["tanh", "sigmoid"])
def test_nanil_is_the_hard_function_unless_c_or_p_is_large(x, p, xi, pair):
    """Its noise would have to be 27 standard deviations to take a unit out of saturation; so p has no gradient."""
    leaf, own_p = (torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in (x, p))
    y = F.noisy(leaf, pair, "nanil:c=0.5", own_p, torch.tensor([xi], dtype=torch.float64))
    assert y.item() == pair.h(leaf).item()
    assert [g.item() for g in torch.autograd.grad(y, [leaf, own_p])] == [
        torch.autograd.grad(pair.h(leaf), leaf)[0].item(), 0.0,
    ]  # fmt: skip


def test_nanil_leaves_saturation_where_c_is_large():
    x, p, xi = torch.tensor([3.0]), torch.tensor([1.0], requires_grad=True), torch.tensor([-1.0])
    y = F.noisy(x, na.HARD_TANH, "nanil:c=30.0", p, xi)  # 3 - 7.5 tanh(1)^2 = -1.35
    assert y.item() == -1.0
    y = F.noisy(x, na.HARD_TANH, "nanil:c=15.0", p, xi)  # 3 - 3.75 tanh(1)^2 = 0.825
    assert y.item() == pytest.approx(3 - 3.75 * math.tanh(1) ** 2)
    assert torch.autograd.grad(y, p)[0].item() != 0


def test_sign_of_zero_is_plus():
    assert equations.direction(torch.tensor([0.0, -0.0]), leak=0.0).tolist() == [-1.0, -1.0]
    assert equations.direction(torch.tensor([0.0, -0.0]), leak=-0.15).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("noise", ["nan", "nah"])
@pytest.mark.parametrize("alpha", [0.9, 1.0, 1.15])
@pytest.mark.parametrize("pair", ["tanh", "sigmoid"])
def test_expectation_by_a_million_draws(noise, alpha, pair):
    pair, noise = PAIRS[pair], na.scheme(f"{noise}:alpha={alpha},c=2.0")
    x = torch.linspace(-8, 8, 11, dtype=torch.float64)
    p = at(0.7)
    total, squares, count = torch.zeros(11, dtype=torch.float64), torch.zeros(11, dtype=torch.float64), 0
    for _ in range(10):
        y = F.noisy(x.expand(100_000, 11), pair, noise, p)
        total, squares, count = total + y.sum(0), squares + (y * y).sum(0), count + len(y)
    mean = total / count
    error = ((squares / count - mean * mean).clamp(min=0) / count).sqrt()
    expected = F.noisy(x, pair, noise, p, training=False)
    assert ((mean - expected).abs() <= 5 * error + 1e-9).all()


@pytest.mark.parametrize("scheme", SCHEMES, ids=scheme_ids)
@pytest.mark.parametrize("pair", [*PAIRS, "functions"])
def test_path_derivatives_sum_to_autograd(scheme, pair):
    functions = na.Pair(torch.tanh, lambda x: x, x_t=(-1.0, 1.0), limits=(-1.0, 1.0))
    pair = functions if pair == "functions" else PAIRS[pair]
    x = (torch.randn(500, dtype=torch.float64) * 4).requires_grad_()
    p = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    for xi in (torch.randn(500, dtype=torch.float64), None):
        y = equations.phi(x, pair, scheme, scheme.scale, p, xi)
        gx, gp = torch.autograd.grad(y.sum(), (x, p), allow_unused=True, materialize_grads=True)
        paths = equations.path_derivatives(x.detach(), pair, scheme, scheme.scale, p.detach(), xi)
        torch.testing.assert_close(paths.linear + paths.nonlinear + paths.stochastic, gx, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(paths.dp.sum(), gp, rtol=1e-10, atol=1e-10)
