"""Functions and modules: shapes, the meaning of their arguments, and wrong inputs named."""

import math

import pytest
import torch
from cases import SCHEMES, SHAPES, scheme_ids
from torch import nn

import noisyact as na
from noisyact import functional as F

X = torch.tensor([-5.0, -0.5, 0.0, 0.5, 5.0])


@pytest.mark.parametrize("scheme", SCHEMES, ids=scheme_ids)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("training", [True, False])
def test_shape_and_dtype_come_back(scheme, shape, training):
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        x = (torch.randn(shape) * 3).to(dtype)
        for function in (F.noisy_hard_tanh, F.noisy_hard_sigmoid, F.noisy_relu):
            y = function(x, scheme, training=training)
            assert (y.shape, y.dtype) == (x.shape, x.dtype)


def test_xi_given_nothing_is_drawn_and_the_value_follows():
    state = torch.get_rng_state()
    first, second = (F.noisy_hard_tanh(X, "nah", xi=xi) for xi in (torch.ones(5), -torch.ones(5)))
    assert torch.equal(first, second)  # half-normal: only |xi| counts
    assert not torch.equal(first, F.noisy_hard_tanh(X, "nah", xi=2 * torch.ones(5)))
    assert torch.equal(torch.get_rng_state(), state)


def test_seed_stands_for_its_xi():
    seed = torch.tensor(123)
    for noise in SCHEMES:
        by_seed = F.noisy_hard_tanh(X, noise, seed=seed)
        by_xi = F.noisy_hard_tanh(X, noise, xi=F.standard_normal(seed, X.shape))
        torch.testing.assert_close(by_seed, by_xi, rtol=1e-5, atol=1e-5)


def test_p_none_is_one():
    for noise in SCHEMES:
        torch.testing.assert_close(
            F.noisy_hard_tanh(X, noise, seed=torch.tensor(1)),
            F.noisy_hard_tanh(X, noise, torch.ones(1), seed=torch.tensor(1)),
        )


def test_noise_is_fresh_for_every_element_and_call():
    x = torch.full((50, 60), 4.0)
    y, z = (F.noisy_hard_tanh(x, "nan:alpha=1.0") for _ in range(2))
    assert len(y.unique()) > 2900
    assert (y != z).double().mean() > 0.99


@pytest.mark.parametrize("eval_noise", na.activations.EVAL_NOISE)
def test_evaluation_rules(eval_noise):
    layer = na.NoisyHardTanh("nah", eval_noise=eval_noise).eval()
    x = torch.full((1000,), 4.0)
    state = torch.get_rng_state()
    y = layer(x)
    if eval_noise == "sample":
        assert y.std() > 0
        assert not torch.equal(torch.get_rng_state(), state)
        return
    assert torch.equal(torch.get_rng_state(), state)
    plain = eval_noise in ("hard", "binary")  # x is saturated, so that both give the limit
    expected = F.hard_tanh(x) if plain else F.noisy_hard_tanh(x, "nah", layer.p, training=False)
    torch.testing.assert_close(y, expected)
    assert (y == 1).all() == plain


def test_scale_in_force_is_the_buffers():
    layer = na.NoisyHardTanh("nan:c=5,alpha=1.0")
    layer.set_scale(0.0)
    assert torch.equal(layer(X), F.hard_tanh(X))
    layer.reset_parameters()
    assert layer.scale == 5.0


def test_p_is_uniform_and_has_its_place():
    layer = na.NoisyHardSigmoid("nan", num_parameters=4000)
    assert layer.p.shape == (4000,)
    assert layer.p.min() >= -1
    assert layer.p.max() <= 1
    assert abs(layer.p.mean()) < 5 / math.sqrt(3 * 4000)
    assert na.NoisyHardTanh("nani").p is None
    assert list(na.noise_parameters(nn.Sequential(layer, na.NoisyHardTanh("nanis")))) == [layer.p]


class _Net(nn.Module):
    """Nothing noisy in it."""


WRONG = [
    (lambda: F.hard_tanh([1.0]), TypeError, "list"),
    (lambda: F.hard_sigmoid(torch.ones(2, dtype=torch.int64)), TypeError, "int64"),
    (lambda: F.noisy_hard_tanh(torch.ones(2, dtype=torch.int32), "nah"), TypeError, "int32"),
    (lambda: F.noisy_hard_tanh(torch.ones(2, dtype=torch.bool), "nah"), TypeError, "bool"),
    (lambda: F.noisy_hard_tanh(torch.ones(2, dtype=torch.complex64), "nah"), TypeError, "complex64"),
    (lambda: F.noisy_hard_tanh(None, "nah"), TypeError, "NoneType"),
    (lambda: F.noisy_hard_tanh(X, "what"), ValueError, "'what'"),
    (lambda: F.noisy_hard_tanh(X, 0.5), TypeError, "0.5"),
    (lambda: F.noisy_hard_tanh(X, "nah", torch.ones(4)), ValueError, r"\(4,\).*\(5,\)"),
    (lambda: F.noisy_hard_tanh(X, "nah", torch.ones(5, 1)), ValueError, r"\(5, 1\)"),
    (lambda: F.noisy_hard_tanh(torch.tensor(1.0), "nah", torch.ones(3)), ValueError, r"\(3,\)"),
    (lambda: F.noisy_hard_tanh(X, "nah", 0.5), TypeError, "0.5"),
    (lambda: F.noisy_hard_tanh(X, "nah", torch.ones(1, dtype=torch.int64)), TypeError, "p must be"),
    (lambda: F.noisy_hard_tanh(X, "nah", torch.ones(1, device="meta")), ValueError, "meta"),
    (lambda: F.noisy_hard_tanh(X, "nah", xi=torch.ones(4)), ValueError, r"\(4,\)"),
    (lambda: F.noisy_hard_tanh(X, "nah", xi=1.0), TypeError, "xi"),
    (lambda: F.noisy_hard_tanh(X, "nah", xi=torch.ones(5), seed=torch.tensor(1)), ValueError, "not both"),
    (lambda: F.noisy_hard_tanh(X, "nah", seed=torch.tensor(1.0)), ValueError, "float32"),
    (lambda: F.noisy_hard_tanh(X, "nah", seed=torch.tensor([1, 2])), ValueError, r"\(2,\)"),
    (lambda: na.NoisyHardTanh("nah", num_parameters=0), ValueError, "num_parameters=0"),
    (lambda: na.NoisyHardTanh("nah", num_parameters=2.0), ValueError, "2.0"),
    (lambda: na.NoisyHardTanh("nah", num_parameters=True), ValueError, "True"),
    (lambda: na.NoisyHardTanh("nah", dtype=torch.int64), TypeError, "int64"),
    (lambda: na.NoisyHardTanh("nah", eval_noise="none"), ValueError, "'none'.*'expectation', 'hard', 'sample'"),
    (lambda: na.NoisyHardTanh(None), TypeError, "None"),
    (lambda: na.NoisyHardTanh("nah", min_val=0.5), ValueError, "low <= offset"),
    (lambda: na.NoisyHardSigmoid("nah", slope=0.0), ValueError, "slope=0.0"),
    (lambda: na.NoisyActivation(torch.tanh, "nah"), TypeError, "HardPair or a Pair"),
    (lambda: na.NoisyHardTanh("nah", num_parameters=3)(X), ValueError, r"\(3,\).*\(5,\)"),
    (lambda: na.NoisyHardTanh("nah")(torch.ones(2, dtype=torch.int64)), TypeError, "int64"),
    (lambda: na.NoisyHardTanh("nah").set_scale(-1.0), ValueError, "-1.0"),
    (lambda: na.NoisyHardTanh("nah").set_scale(math.nan), ValueError, "nan"),
    (lambda: na.NoisyHardTanh("nah").set_scale("0.5"), TypeError, "'0.5'"),
    (lambda: na.set_noise_scale(_Net(), 0.5), ValueError, "_Net"),
    (lambda: na.set_noise_scale(na.NoisyHardTanh(), math.inf), ValueError, "inf"),
]


@pytest.mark.parametrize(("call", "error", "said"), WRONG)
def test_wrong_input_is_named(call, error, said):
    with pytest.raises(error, match=said):
        call()


def test_wrong_values_at_hard_evaluation_are_named_too():
    with pytest.raises(TypeError, match="int64"):
        na.NoisyHardTanh("nah", eval_noise="hard").eval()(torch.ones(2, dtype=torch.int64))
