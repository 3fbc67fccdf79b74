"""saturation() inside recurrent layers and cells: the same numbers as for modules, and an unchanged layer."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import noisyact as na
from noisyact.diagnostics.saturation import SaturationMeter

NUMBERS = ("saturated", "depth", "sigma", "linear", "nonlinear", "stochastic")


def sigma_by_hand(delta: float, p: float, c: float) -> float:
    return c * (1 / (1 + math.exp(-p * delta)) - 0.5) ** 2


def test_numbers_by_hand():
    """One unit, one step, weights of zero: the biases are what the nonlinearities see."""
    layer = na.NoisyLSTM(1, 1, noise="nan:c=2,alpha=1").eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.bias_ih_l0.copy_(torch.tensor([3.0, 0.0, 2.0, -4.0]))  # i, f, g, o
        layer.noise.p_l0.fill_(0.7)
    report = na.saturation(layer, torch.zeros(1, 1, 1))
    # h - u: sigm(3) is 1 - 1.25, tanh(2) is 1 - 2, sigm(-4) is 0 + 0.5; c is 1, on its threshold
    deltas = {"l0.i": -0.25, "l0.f": 0.0, "l0.g": -1.0, "l0.o": 0.5, "l0.c": 0.0}
    assert {group.name for group in report} == set(deltas)
    for name, delta in deltas.items():
        group = report[name]
        assert group.kind == "NoisyLSTM"
        assert group.saturated == (name != "l0.f")
        assert group.depth == pytest.approx(abs(delta), abs=1e-7)
        assert group.sigma == pytest.approx(sigma_by_hand(delta, 0.7, 2.0), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("noise", ["nah:c=3", "nanil:c=6", "nanis:sigma=2", None])
def test_a_step_of_a_network_is_as_its_activation(noise):
    layer = na.NoisyRNN(4, 6, noise=noise).eval()
    linear = nn.Linear(4, 6)
    activation = nn.Hardtanh() if noise is None else na.NoisyHardTanh(noise, num_parameters=6).eval()
    with torch.no_grad():
        linear.weight.copy_(layer.weight_ih_l0)
        linear.bias.copy_(layer.bias_ih_l0 + layer.bias_hh_l0)
        if layer.noise is not None and layer.noise.noise.learns_p:
            activation.p.copy_(layer.noise.p_l0)
    x = 5 * torch.randn(1, 7, 4)
    inside = na.saturation(layer, x, loss=lambda out: out[0].square().sum())["l0.h"]
    outside = na.saturation(nn.Sequential(linear, activation), x[0], loss=lambda out: out.square().sum())["1"]
    for number in NUMBERS:
        assert getattr(inside, number) == pytest.approx(getattr(outside, number), rel=1e-5, abs=1e-7)
    assert inside.saturated > 0.3


def test_a_soft_layer_saturates_where_its_hard_version_does():
    soft, hard = (na.NoisyGRU(4, 6, noise=None, hard=is_hard) for is_hard in (False, True))
    hard.load_state_dict(soft.state_dict())
    x = 6 * torch.randn(1, 7, 4)
    shares = [[(group.name, group.saturated, group.depth) for group in na.saturation(m, x)][:2] for m in (soft, hard)]
    assert shares[0] == shares[1]  # of r and z, which depend on the input alone
    assert shares[0][0][1] > 0
    report = na.saturation(soft, x, loss=lambda out: out[0].sum())
    assert report["l0.n"].nonlinear > 0
    assert report["l0.n"].linear == report["l0.n"].sigma == 0


class Model(nn.Module):
    """A layer of every kind, and a cell called in a loop."""

    def __init__(self):
        super().__init__()
        self.lstm = na.NoisyLSTM(3, 4, 2, bidirectional=True, batch_first=True, proj_size=2)
        self.gru = na.NoisyGRU(4, 5, noise="nani")
        self.cell = na.NoisyLSTMCell(5, 2)
        self.plain = nn.LSTM(2, 2)

    def forward(self, x):
        y, _ = self.gru(self.lstm(x)[0].transpose(0, 1))
        state = None
        for step in y:
            state = self.cell(step, state)
        return self.plain(state[0][None])[0]


def test_every_nonlinearity_has_its_name():
    layers = [f"lstm.l{layer}{way}.{gate}" for layer in "01" for way in ("", "_reverse") for gate in "fgioc"]
    names = sorted(group.name for group in na.saturation(Model(), torch.randn(3, 6, 3)))
    assert names == sorted([*layers, *(f"gru.l0.{gate}" for gate in "rzn"), *(f"cell.{gate}" for gate in "ifgoc")])


def test_a_packed_batch():
    layer = na.NoisyGRU(3, 4)
    packed = pack_sequence([torch.full((n, 3), 9.0) for n in (2, 5)], enforce_sorted=False)
    assert len(list(na.saturation(layer, packed))) == 3


@pytest.mark.parametrize("fails", [False, True])
def test_the_layer_is_left_as_it_was(fails):
    """The observed values are those of the layer: the same noise and the same output."""
    layer = na.NoisyLSTM(3, 4, 2, noise="nah:c=3")
    x, wrong, outputs = 4 * torch.randn(5, 2, 3), torch.randn(5, 2, 7), []
    torch.manual_seed(3)
    right = layer(x)[0]
    torch.manual_seed(3)
    if fails:
        with pytest.raises(RuntimeError, match="input_size"):
            na.saturation(layer, wrong)
    else:
        na.saturation(layer, x, loss=lambda out: outputs.append(out[0]) or out[0].sum())
        torch.testing.assert_close(outputs[0], right)
    assert layer.backend == "auto"
    assert not layer._forward_hooks
    assert all(parameter.grad is None for parameter in layer.parameters())
    assert torch.equal(layer(x)[0], right)


class Tagger(nn.Module):
    """A layer and a cell inside a model, one step each. Their noise is not at their inputs."""

    def __init__(self):
        super().__init__()
        self.lstm = na.NoisyLSTM(4, 6, num_layers=1, bidirectional=True)
        self.cell = na.NoisyGRUCell(12, 5)

    def forward(self, x):
        return self.cell(torch.ones_like(self.lstm(x)[0][0]))


def test_a_meter_sees_the_nonlinearities_of_layers_and_cells():
    model, x = Tagger(), 5 * torch.randn(1, 7, 4)
    meter = SaturationMeter(model)
    model(x)
    assert meter.read() == {}
    meter.active = True
    model(x)
    shares = meter.read()
    seen = {group.name: group.saturated for group in na.saturation(model, x)}
    assert set(meter.read()) == set(shares)  # both look at once, and neither sees the other
    assert set(shares) == {
        *(f"lstm.{layer}.{gate}" for layer in ("l0", "l0_reverse") for gate in "ifgoc"), "cell.r", "cell.z", "cell.n",
    }  # fmt: skip
    for name in shares:
        if not name.endswith(".c"):  # the tanh of c, which the gates' noise is in
            assert shares[name] == pytest.approx(seen[name])
    assert shares["lstm.l0.g"] > 0
    model.eval()(x)
    assert meter.read() == {}
    meter.close()
    model.train()(x)
    assert meter.read() == {}


@pytest.mark.parametrize("make", [na.NoisyLSTM, na.NoisyGRU, na.NoisyRNN])
def test_training_is_the_same_with_a_meter(make):
    """Output, gradients and generators are the same, from the same kernels, and the meter calls no hooks."""
    layer = make(4, 6, num_layers=2, dropout=0.3)
    packed = pack_sequence([torch.randn(5, 4), torch.randn(2, 4)])
    found, calls = [], []
    layer.register_forward_hook(lambda *_: calls.append(layer.backend))
    for active in (False, True):
        meter = SaturationMeter(layer)
        meter.active = active
        torch.manual_seed(3)
        layer.zero_grad()
        y = layer(packed)[0].data
        y.square().sum().backward()
        found.append([y.detach(), *(p.grad.clone() for p in layer.parameters()), torch.get_rng_state()])
        assert bool(meter.read()) == active
        meter.close()
    assert all(map(torch.equal, *found))
    assert calls == ["auto", "auto"]


def test_the_steps_are_measured_together_as_they_are_one_by_one():
    """Without a loss all steps are one tensor; with one, each has its own gradient."""
    lstm, x = na.NoisyLSTM(3, 4, noise="nah", num_layers=2).eval(), 5 * torch.randn(6, 2, 3)
    together, alone = na.saturation(lstm, x), na.saturation(lstm, x, loss=lambda out: out[0].square().mean())
    for one, other in zip(together, alone, strict=True):
        for number in ("saturated", "depth", "sigma", "drawn", "p"):
            assert getattr(one, number) == pytest.approx(getattr(other, number), rel=1e-6), (one.name, number)
    assert max(group.saturated for group in together) > 0
