"""The C kernels' tanh and sigmoid: a few roundings from the true value, and the limits of torch's functions."""

import math

import pytest
import torch
from torch import nn

import noisyact as na
from noisyact.ops.recurrent.cell import cell
from noisyact.ops.recurrent.types import CellNoise

PLAIN = CellNoise(None, None, torch.zeros(()), torch.zeros(()), hard=False)


def tanh(x):
    """An RNN's step computes just that."""
    return cell("rnn_tanh", x[None], None, x[None], None, None, None, PLAIN)[0][0]


def sigmoid(x):
    """A GRU's step from h = 1 with a candidate of 0 computes h' = z."""
    a = torch.cat([torch.zeros_like(x), x, torch.zeros_like(x)])[None]
    return cell("gru", a, torch.zeros_like(a), torch.ones_like(x)[None], None, None, None, PLAIN)[0][0]


FUNCTIONS = {"tanh": (tanh, torch.tanh), "sigmoid": (sigmoid, torch.sigmoid)}


@pytest.mark.parametrize(("ours", "theirs"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_few_roundings_from_the_true_value(ours, theirs):
    size = torch.exp(torch.linspace(-60, math.log(87), 40_001))
    x = torch.cat([torch.linspace(-87, 87, 100_003), size, -size])
    true = theirs(x.double())
    step = torch.nextafter(true.float().abs(), torch.tensor(torch.inf)).double() - true.float().abs()
    assert ((ours(x) - true).abs() / step).max() < 4


@pytest.mark.parametrize(("ours", "theirs"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_far_out_and_not_a_number(ours, theirs):
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, 200.0, -200.0, 3e38, -3e38, 1e-40])
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-6, atol=1e-38, equal_nan=True)
    assert ours(x[:2]).tolist() == theirs(x[:2]).tolist()
    beyond = torch.linspace(-200, -87, 1001)  # where a result of the sigmoid is no normal number
    torch.testing.assert_close(ours(beyond), theirs(beyond), rtol=1e-6, atol=2e-38)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_noise_of_nanis_begins_at_the_threshold(backend):
    """sigma is fixed where |x| >= 1 for the tanh and 0 elsewhere; the neighbours of 1 decide."""
    one = torch.tensor(1.0)
    inside = torch.nextafter(one, torch.tensor(0.0))
    rnn = na.NoisyRNN(1, 1, bias=False, noise="nanis:sigma=3", hard=False, backend=backend)
    nn.init.ones_(rnn.weight_ih_l0)
    for x, noisy in ((one, True), (-one, True), (inside, False), (-inside, False)):
        y = rnn(x.expand(1, 9, 1))[0]
        assert (y - torch.tanh(x)).abs().gt(1e-3).any() == noisy


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [(na.NoisyLSTM, nn.LSTM), (na.NoisyGRU, nn.GRU), (na.NoisyRNN, nn.RNN)],
    ids=lambda m: m.__name__,
)
def test_without_noise_the_layers_are_torchs(mine, theirs):
    ours = mine(5, 19, 2, bidirectional=True, noise=None, hard=False, backend="cpu")
    torchs = theirs(5, 19, 2, bidirectional=True)
    torchs.load_state_dict(ours.state_dict())
    x = 3 * torch.randn(7, 4, 5)
    results = []
    for module in (ours, torchs):
        y = module(x)[0]
        results.append([y, *torch.autograd.grad(y.square().sum(), list(module.parameters()))])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * b.abs().max().item())


@pytest.mark.parametrize("noise", ["nah", None])
def test_compiled_and_exported(noise):
    """torch.compile and torch.export call the operator, which is told that the functions are soft."""
    gru = na.NoisyGRU(3, 5, noise=noise, hard=False, backend="cpu").eval()
    x = 3 * torch.randn(4, 2, 3)
    expected = gru(x)[0]
    hard = na.NoisyGRU(3, 5, noise=noise, backend="cpu").eval()
    hard.load_state_dict(gru.state_dict())
    assert not torch.allclose(hard(x)[0], expected, atol=1e-3)
    torch.testing.assert_close(torch.compile(gru, backend="aot_eager")(x)[0], expected)
    torch.testing.assert_close(torch.export.export(gru, (x,)).module()(x)[0], expected)
