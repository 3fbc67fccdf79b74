"""Backward of recurrent layers and cells uses the values of the forward pass, and no memory that was freed."""

import gc

import pytest
import torch

import noisyact as na
from noisyact.recurrent import functional

LAYERS = {
    "lstm": lambda **s: na.NoisyLSTM(4, 5, num_layers=2, **s),
    "gru": lambda **s: na.NoisyGRU(4, 5, num_layers=2, **s),
    "rnn": lambda **s: na.NoisyRNN(4, 5, num_layers=2, **s),
    "lstm cell": lambda **s: na.NoisyLSTMCell(4, 5, **s),
    "gru cell": lambda **s: na.NoisyGRUCell(4, 5, **s),
    "rnn cell": lambda **s: na.NoisyRNNCell(4, 5, **s),
}
X = 5 * torch.randn(7, 3, 4, generator=torch.Generator().manual_seed(3))


def gradients(layer, between=lambda: None):
    """The gradients of all parameters, with an action between forward and backward."""
    layer.zero_grad()
    torch.manual_seed(1)
    x = X.clone() if isinstance(layer, torch.nn.RNNBase) else X[0].clone()
    found = layer(x)
    loss = (found[0] if isinstance(found, tuple) else found).square().sum()
    del found, x
    between()
    gc.collect(1)  # what is new: all of torch takes a third of a second
    junk = [torch.full((n,), float("nan")) for n in range(1, 300)]  # takes the place of memory that was freed
    loss.backward()
    del junk
    return [p.grad.clone() for p in layer.parameters() if p.grad is not None]


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("kind", LAYERS)
def test_storage_may_be_replaced_between_forward_and_backward(kind, backend):
    layer = LAYERS[kind](noise="nah:c=9", backend=backend)

    def replace():
        for parameter in layer.parameters():
            parameter.data = parameter.data.clone()

    expected = gradients(layer)
    assert all(g.isfinite().all() for g in expected)
    assert all(torch.equal(*pair) for pair in zip(gradients(layer, replace), expected, strict=True))


@pytest.mark.parametrize("gate_noise", [None, "nan:c=4"])
@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_scale_set_between_forward_and_backward_changes_no_gradient(kind, backend, gate_noise):
    settings = {} if "rnn" in kind else {"gate_noise": gate_noise}
    layer = LAYERS[kind](noise="nah:c=9", backend=backend, **settings)
    expected = gradients(layer)
    found = gradients(layer, lambda: na.set_noise_scale(layer, 0.01))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    weak = gradients(layer)
    assert not all(torch.equal(*pair) for pair in zip(weak, expected, strict=True))  # it is in force from then on


def test_one_bias_without_the_other_has_a_gradient():
    for function, gates in ((functional.noisy_lstm, 4), (functional.noisy_gru, 3), (functional.noisy_rnn, 1)):
        w_ih, w_hh = torch.randn(gates * 5, 4), torch.randn(gates * 5, 5)
        for place in (0, 1):
            found = []
            for backend in ("auto", "reference"):
                bias = torch.ones(gates * 5, requires_grad=True)
                biases = (bias, None) if place == 0 else (None, bias)
                y = function(X, None, w_ih, w_hh, *biases, seed=torch.tensor(3), backend=backend)[0]
                found.append((y.detach(), *torch.autograd.grad(y.square().sum(), bias)))
            assert found[0][1].any()
            torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
