"""The inventory: every saturating call is found once, by running and in the source, and the model is unchanged."""

import importlib.util
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

from noisyact import (  # fmt: skip
    NoisyGRU,
    NoisyGRUCell,
    NoisyHardTanh,
    NoisyLSTM,
    NoisyLSTMCell,
    NoisyReLU,
    NoisyRNN,
    NoisyRNNCell,
    inventory,
    noisify,
)
from noisyact.conversion.inventory import Found

SOURCE = '''\
import math
import torch
import torch.nn.functional as F
from torch import nn, tanh


class Net(nn.Module):
    """tanh(x) in a text is no call."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.tanh = nn.ReLU()

    def forward(self, x):
        x = math.tanh(2.0) * self.tanh(self.linear(x))
        return {form}
'''

# How it is written, and the function that runs.
FORMS = [
    ("torch.tanh(x)", "torch.tanh"),
    ("x.tanh()", "Tensor.tanh"),
    ("x.tanh_()", "Tensor.tanh_"),
    ("torch.tanh_(x)", "torch.tanh_"),
    ("F.tanh(x)", "Tensor.tanh"),
    ("tanh(x)", "torch.tanh"),
    ("torch.sigmoid(x)", "torch.sigmoid"),
    ("x.sigmoid()", "Tensor.sigmoid"),
    ("x.sigmoid_()", "Tensor.sigmoid_"),
    ("torch.sigmoid_(x)", "torch.sigmoid_"),
    ("F.sigmoid(x)", "Tensor.sigmoid"),
    ("torch.special.expit(x)", "torch.special.expit"),
    ("F.hardtanh(x, -2.0, 2.0)", "F.hardtanh"),
    ("F.hardtanh(x, inplace=True)", "F.hardtanh"),
    ("F.hardtanh_(x)", "F.hardtanh_"),
    ("F.hardsigmoid(x)", "F.hardsigmoid"),
    ("F.softsign(x)", "F.softsign"),
    ("F.relu6(x)", "F.relu6"),
    ("F.logsigmoid(x)", "F.logsigmoid"),
    ("F.glu(x)", "F.glu"),
    ("torch.nn.functional.glu(x)", "F.glu"),
]
HARMLESS = ["torch.relu(x)", "F.gelu(x)", "F.softmax(x, -1)", "F.silu(x)", "F.tanhshrink(x)", "self.tanh(x)", "x + 1"]


@pytest.fixture
def written_model(tmp_path, monkeypatch):
    def make(form):
        file = tmp_path / "written.py"
        file.write_text(SOURCE.format(form=form))
        spec = importlib.util.spec_from_file_location("noisyact_written", file)  # somebody else's package
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "noisyact_written", module)
        spec.loader.exec_module(module)
        return nn.Sequential(nn.Linear(4, 4), module.Net())

    return make


@pytest.mark.parametrize(("form", "function"), FORMS)
def test_each_functional_form_is_found_once(form, function, written_model):
    model = written_model(form)
    line = SOURCE.splitlines().index("        return {form}") + 1
    assert inventory(model, torch.ones(2, 4)).calls == (Found("1", function, f"written.py:{line}"),)
    assert inventory(model).calls == (Found("1", form.partition("(")[0], f"written.py:{line}"),)


@pytest.mark.parametrize("form", HARMLESS)
def test_what_does_not_saturate_is_not_listed(form, written_model):
    model = written_model(form)
    assert inventory(model, torch.ones(2, 4)).complete
    assert inventory(model).complete


class OwnSigmoid(nn.Sigmoid):
    def forward(self, input):
        return torch.sigmoid(input) * 2


SATURATING = [
    nn.Tanh(), nn.Sigmoid(), nn.Hardtanh(), nn.Hardtanh(1.0, 2.0), nn.Hardsigmoid(), nn.Softsign(), nn.ReLU6(),
    nn.LogSigmoid(), nn.GLU(), nn.LSTM(4, 4), nn.GRU(4, 4), nn.RNN(4, 4), nn.LSTMCell(4, 4), nn.GRUCell(4, 4),
    nn.RNNCell(4, 4), OwnSigmoid(),
]  # fmt: skip
OTHERS = [nn.ReLU(), nn.GELU(), nn.Linear(4, 4), nn.RNN(4, 4, nonlinearity="relu"), nn.Tanhshrink()]


@pytest.mark.parametrize("module", SATURATING, ids=repr)
def test_saturating_modules_are_listed_and_not_counted_as_calls_too(module):
    for found in (inventory(nn.Sequential(module)), inventory(nn.Sequential(module), torch.ones(2, 4))):
        assert found.saturating == (Found("0", type(module).__name__),)
        assert found.calls == ()
        assert found.noisy == ()
        assert not found.complete


@pytest.mark.parametrize("module", OTHERS, ids=repr)
def test_other_modules_are_not(module):
    for found in (inventory(module), inventory(module, torch.ones(2, 4))):
        assert found.complete
        kinds = [part.kind for part in found.others]
        assert kinds == ([] if isinstance(module, (nn.Linear, nn.Tanhshrink)) else [type(module).__name__])


@pytest.mark.parametrize("noise", ["nah", "nan:clip=True", "nani", "nanil", "nanis"])
def test_noisy_modules_are_noisy_and_nothing_else(noise):
    model = nn.Sequential(NoisyHardTanh(noise), NoisyReLU(noise))
    for found in (inventory(model), inventory(model, torch.ones(2, 4))):
        assert [(part.name, part.kind) for part in found.noisy] == [("0", "NoisyHardTanh"), ("1", "NoisyReLU")]
        assert found.complete


RECURRENT = [NoisyLSTM, NoisyGRU, NoisyRNN, NoisyLSTMCell, NoisyGRUCell, NoisyRNNCell]


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_and_cells(kind, backend):
    """Listed once, as one thing, whatever functions the path taken calls inside."""
    for hard in (True, False):
        model = nn.Sequential(kind(4, 4, noise="nah", hard=hard, backend=backend))
        for found in (inventory(model), inventory(model, torch.ones(2, 4))):
            assert found.noisy == (Found("0", kind.__name__),)
            assert found.complete
        model = nn.Sequential(kind(4, 4, noise=None, hard=hard, backend=backend))
        for found in (inventory(model), inventory(model, torch.ones(2, 4))):
            assert found.saturating == (Found("0", kind.__name__),)
            assert (found.noisy, found.calls) == ((), ())


@pytest.mark.parametrize("kind", [NoisyRNN, NoisyRNNCell])
def test_a_recurrent_rectifier_is_noisy_or_nothing(kind):
    assert inventory(kind(4, 4, nonlinearity="relu", noise="nah")).noisy == (Found("", kind.__name__),)
    without = inventory(kind(4, 4, nonlinearity="relu", noise=None), torch.ones(2, 4))
    assert without.complete
    assert without.noisy == ()


class Block(nn.Module):
    def __init__(self, activation=torch.tanh):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.activation = activation
        self.names = {"unhashable": []}

    def forward(self, x):
        for _ in range(3):
            x = self.activation(self.linear(x))
        return x


def test_a_function_kept_as_an_attribute():
    model = nn.Sequential(Block(), Block(F.gelu), Block(F.hardsigmoid))
    expected = [("0", "torch.tanh"), ("2", "F.hardsigmoid")]
    assert [(found.name, found.kind) for found in inventory(model).calls] == expected
    assert [(found.name, found.kind) for found in inventory(model, torch.ones(2, 4)).calls] == expected
    layer = nn.TransformerEncoderLayer(4, 2, 8, activation=torch.tanh)
    assert [found.kind for found in inventory(layer).calls] == ["torch.tanh"]
    assert [found.kind for found in inventory(layer, torch.ones(1, 2, 4)).calls] == ["torch.tanh"]


def test_a_class_inside_a_function_with_text_at_the_margin():
    class Inner(nn.Module):
        text = """
at the margin
"""

        def forward(self, x):
            return torch.tanh(x)

    (found,) = inventory(Inner()).calls
    assert found.kind == "torch.tanh"
    assert found.where == inventory(Inner(), torch.ones(1)).calls[0].where


class Changing(nn.Module):
    """Does what a careless forward does: rebinds a buffer, writes through .data, draws, fails on demand."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout()
        self.act = nn.Tanh()
        self.register_buffer("rebound", torch.zeros(()))
        self.register_buffer("written", torch.zeros(()))
        self.register_buffer("lazy", None)

    def forward(self, x, fail=False):
        self.norm.train()
        self.rebound = self.rebound + 1
        self.written.data.add_(1)
        self.lazy = torch.ones(3)
        x = self.drop(self.norm(x)) + torch.rand_like(x)
        if fail:
            raise RuntimeError("as asked")
        return torch.sigmoid(self.act(x))


@pytest.mark.parametrize("fail", [False, True])
def test_the_model_and_the_generator_stay_as_they_were(fail):
    model = Changing()
    model.act.eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    buffers = dict(model.named_buffers())
    flags = {name: module.training for name, module in model.named_modules()}
    x = torch.randn(8, 4)
    rng = torch.get_rng_state()
    if fail:
        with pytest.raises(RuntimeError, match="as asked"):
            inventory(model, x, fail=True)
    else:
        assert [found.kind for found in inventory(model, x).calls] == ["torch.sigmoid"]
    assert torch.equal(torch.get_rng_state(), rng)
    assert flags == {name: module.training for name, module in model.named_modules()}
    assert model.lazy is None
    assert all(model.get_buffer(name) is buffer for name, buffer in buffers.items())
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_prints_as_a_table():
    model = noisify(nn.Sequential(nn.Tanh(), nn.LSTM(4, 4), OwnSigmoid()))
    assert str(inventory(model)).splitlines() == [
        "what        module  type           where or why",
        "noisy       0       NoisyHardTanh",
        "noisy       1       NoisyLSTM",
        "saturating  2       OwnSigmoid     a subclass may compute something else",
    ]
    assert str(inventory(nn.Tanh())).splitlines()[1].split()[:4] == ["saturating", "(the", "model)", "Tanh"]
    assert str(inventory(nn.Linear(2, 2))) == "nothing noisy and nothing saturating"
    call = str(inventory(nn.Sequential(Block(F.gelu), OwnCall()), torch.ones(2, 4))).splitlines()[1].split()
    assert call[:3] == ["call", "1", "torch.sigmoid"]
    assert call[3].startswith("test_inventory.py:")


class OwnLSTM(nn.LSTM):
    """A subclass may compute something else: conversion must not touch it."""


def pruned_lstm():
    """An LSTM whose weight is computed at every call from parameters of other names."""
    return prune.identity(nn.LSTM(4, 4), "weight_hh_l0")


class OwnCall(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x)


@pytest.mark.parametrize("wrong", [nn.Tanh, "model", None])
def test_wrong_model(wrong):
    with pytest.raises(TypeError, match=r"nn\.Module, not"):
        inventory(wrong)


def test_strict_passes_when_nothing_saturating_remains():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Sigmoid(), nn.ReLU(), Block(F.gelu), nn.LSTM(4, 4))
    assert inventory(noisify(model, strict=True)).complete


@pytest.mark.parametrize(
    ("left", "named"),
    [
        (OwnCall(), "torch.sigmoid.*test_inventory.py:"),
        (Block(torch.tanh), "torch.tanh"),
        (OwnLSTM(4, 4), "OwnLSTM"),
        (pruned_lstm(), "LSTM"),
        (nn.Hardtanh(1.0, 2.0), "Hardtanh"),
        (OwnSigmoid(), "OwnSigmoid"),
        (nn.GLU(), "GLU"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("inplace", [True, False])
def test_strict_names_what_remains_and_leaves_the_model_alone(left, named, inplace):
    model = nn.Sequential(nn.Tanh(), left)
    with pytest.raises(ValueError, match=f"(?s)saturating parts remain.* 1 .*{named}"):
        noisify(model, strict=True, inplace=inplace)
    assert type(model[0]) is nn.Tanh
    with pytest.raises(ValueError, match="saturating parts remain"):
        noisify(nn.Sequential(nn.Tanh()), strict=True, inplace=inplace, filter_fn=lambda module, name: False)
