"""`dim`: p belongs to any dimension of the input. Values and gradients are those of equations.py with p broadcast."""

import copy
import math
import pickle

import pytest
import torch
from cases import PAIRS, SCHEMES, away_from_kinks
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import noisyact as na
from noisyact import equations
from noisyact.functional import noisy, standard_normal

SOFT = na.Pair(torch.tanh, lambda x: x, x_t=(-1.0, 1.0), limits=(-1.0, 1.0))


def by_equations(x, pair, scheme, p, xi, dim):
    """phi in float64 with p broadcast along the dimension."""
    wide_p = p.double().reshape([-1 if d == dim % x.dim() else 1 for d in range(x.dim())])
    wide_xi = None if xi is None else xi.double()
    return equations.phi(x.double(), pair, scheme, scheme.scale, wide_p if scheme.learns_p else 1.0, wide_xi)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_values_and_gradients_are_those_of_the_equations(data):
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    scheme, pair = data.draw(st.sampled_from(SCHEMES)), data.draw(st.sampled_from([*PAIRS.values(), SOFT]))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    training, given_xi = data.draw(st.booleans()), data.draw(st.booleans())
    torch.manual_seed(data.draw(st.integers(0, 99)))
    x = 3 * torch.randn(shape, dtype=dtype)
    x = (away_from_kinks(x, pair) if isinstance(pair, na.HardPair) else x).requires_grad_()
    if data.draw(st.booleans()) and len(shape) > 1:
        x = x.detach().mT.contiguous().mT.requires_grad_()  # another order in memory
    p, seed = torch.randn(shape[dim], dtype=dtype, requires_grad=True), torch.tensor(2**40 + 7)
    xi = standard_normal(seed, x.shape)
    noise = {"xi": xi.to(dtype)} if given_xi else {"seed": seed}
    found = noisy(x, pair, scheme, p, training=training, dim=dim, **noise)
    right = by_equations(x, pair, scheme, p, xi if training else None, dim)
    assert found.shape == x.shape
    assert found.dtype is dtype
    close = {"rtol": 2e-4, "atol": 2e-5} if dtype is torch.float32 else {"rtol": 1e-6, "atol": 1e-7}
    torch.testing.assert_close(found.double(), right, **close)
    weights = torch.randn_like(x)
    mine, theirs = (
        torch.autograd.grad((y * weights).sum(), [x, p], allow_unused=True, materialize_grads=True)
        for y in (found, right)
    )
    torch.testing.assert_close(mine, theirs, **close)


@pytest.mark.parametrize("make", [na.NoisyHardTanh, na.NoisyHardSigmoid, na.NoisyReLU])
def test_the_channels_of_an_image_as_in_prelu(make):
    """Each channel equals a module with that channel's single p, for the same noise."""
    x, xi = 3 * torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    layer = make("nah:c=5", num_parameters=3, dim=1)
    assert layer.p.shape == nn.PReLU(3).weight.shape
    assert "num_parameters=3, dim=1" in repr(layer)
    for mode in (True, False):
        y = layer.train(mode)(x, xi)
        for channel in range(3):
            single = make("nah:c=5").train(mode)
            single.p = nn.Parameter(layer.p[channel : channel + 1])
            torch.testing.assert_close(y[:, channel], single(x[:, channel], xi[:, channel]))
    last = make("nah:c=5", num_parameters=5)
    assert last.dim == -1
    assert torch.equal(last(x, xi), noisy(x, last.pair, last.noise, last.p, xi, scale=last.scale, dim=3))


def test_one_p_belongs_to_every_dimension():
    x = 3 * torch.randn(4, 3)
    layer = na.NoisyHardTanh("nah", dim=7).eval()  # no dimension is looked at
    assert torch.equal(layer(x), noisy(x, layer.pair, layer.noise, layer.p, training=False))
    assert na.NoisyHardTanh("nani", num_parameters=9, dim=1)(x).shape == x.shape  # NANI has no p


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0), (2, 3, 0, 5), (1, 3, 1)])
def test_empty_and_thin_inputs(shape):
    layer = na.NoisyHardTanh("nan", num_parameters=3, dim=1)
    x = torch.randn(shape, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.shape == shape
    assert layer.p.grad.shape == (3,)
    assert x.numel() or not layer.p.grad.any()


def test_torch_features():
    layer = na.NoisyHardTanh("nah:c=2", num_parameters=3, dim=1)
    x = (3 * torch.randn(2, 3, 4, 4)).requires_grad_()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for run in (compiled, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.manual_seed(3)
        expected = layer(x)
        torch.manual_seed(3)
        torch.testing.assert_close(run(x), expected)
    xi = torch.randn(2, 3, 4, 4)
    images = torch.func.vmap(lambda x, xi: noisy(x, layer.pair, layer.noise, layer.p, xi, dim=0))(x, xi)
    torch.testing.assert_close(images, noisy(x, layer.pair, layer.noise, layer.p, xi, dim=1))
    with na.deferred_gradients():
        torch.manual_seed(3)
        loss = sum(layer(x).square().sum() for _ in range(3))
    (deferred,) = torch.autograd.grad(loss, layer.p)
    torch.manual_seed(3)
    (plain,) = torch.autograd.grad(sum(layer(x).square().sum() for _ in range(3)), layer.p)
    torch.testing.assert_close(deferred, plain)
    (g,) = torch.autograd.grad(noisy(x, na.HARD_TANH, "nan", layer.p, xi, dim=1).sum(), x, create_graph=True)
    assert torch.autograd.grad(g.square().sum(), layer.p)[0].abs().sum() > 0
    old = na.NoisyHardTanh("nah", num_parameters=4)
    del old.__dict__["dim"]  # as pickled before the argument existed
    assert old(x).shape == x.shape


def test_saturation_uses_the_channels_p():
    layer = na.NoisyHardTanh("nan:c=4,alpha=1.0", num_parameters=2, dim=1)
    layer.p.data = torch.tensor([0.0, 50.0])
    x = torch.full((3, 2, 4), 5.0)
    (row,) = na.saturation(nn.Sequential(layer), x)
    assert math.isclose(row.sigma, 0.5, rel_tol=1e-6)  # 0 in one channel and c / 4 = 1 in the other


X = torch.randn(2, 3, 4)


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: na.NoisyHardTanh(num_parameters=3, dim=1.0), TypeError, "dim .*1.0"),
        (lambda: na.NoisyReLU(num_parameters=3, dim=True), TypeError, "dim .*True"),
        (lambda: na.NoisyHardTanh(num_parameters=3, dim=3)(X), ValueError, r"dim=3: x of shape \(2, 3, 4\)"),
        (lambda: na.NoisyHardTanh(num_parameters=3, dim=-4)(X), ValueError, "dim=-4"),
        (lambda: na.NoisyHardTanh(num_parameters=3, dim=1)(X[0, 0]), ValueError, r"dim=1: x of shape \(4,\)"),
        (lambda: na.NoisyHardTanh(num_parameters=3, dim=0)(X), ValueError, r"\(3,\) .*\(2, 3, 4\).*dimension 0"),
        (lambda: na.NoisyHardTanh(num_parameters=3, dim=1)(X, X[0]), ValueError, r"xi of shape \(3, 4\)"),
        (lambda: noisy(X, na.RELU, "nah", torch.ones(3, 1), dim=1), ValueError, r"\(3, 1\)"),
        (lambda: noisy(X, na.RELU, "nah", torch.ones(3), dim="1"), TypeError, "dim .*'1'"),
        (lambda: noisy(X.long(), na.RELU, "nah", torch.ones(3), dim=1), TypeError, "int64"),
        (lambda: noisy(X, na.RELU, "nah", torch.ones(3, dtype=torch.int64), dim=1), TypeError, "floating-point"),
    ],
)
def test_what_is_wrong_is_named(call, error, named):
    with pytest.raises(error, match=named):
        call()
