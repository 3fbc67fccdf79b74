"""Recurrent layers and cells compute with the module's current weights, however they were set."""

import copy

import pytest
import torch
import torch.nn.utils.parametrizations
import torch.nn.utils.parametrize
import torch.nn.utils.prune
from torch import nn

import noisyact as na

MODULES = {
    "lstm": lambda **s: na.NoisyLSTM(4, 5, num_layers=2, **s),
    "gru": lambda **s: na.NoisyGRU(4, 5, num_layers=2, **s),
    "rnn": lambda **s: na.NoisyRNN(4, 5, num_layers=2, **s),
    "projected": lambda **s: na.NoisyLSTM(4, 5, num_layers=2, proj_size=3, **s),
    "lstm cell": lambda **s: na.NoisyLSTMCell(4, 5, **s),
    "gru cell": lambda **s: na.NoisyGRUCell(4, 5, **s),
    "rnn cell": lambda **s: na.NoisyRNNCell(4, 5, **s),
}
SETTINGS = {
    "noisy": {"noise": "nah:c=3"},
    "hard": {"noise": None},
    "soft": {"noise": None, "hard": False},
    "noisy reference": {"noise": "nah:c=3", "backend": "reference"},
    "soft reference": {"noise": None, "hard": False, "backend": "reference"},
    "soft noisy": {"noise": "nan:c=3", "hard": False},
}
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
EVERY = [(module, settings) for module in MODULES for settings in SETTINGS]


def made(module: str, settings: str) -> nn.Module:
    made = MODULES[module](**SETTINGS[settings])
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(3)  # so that units saturate, and p matters
    return made


def output(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The output of a layer, or of two steps of a cell so that W_hh is used, with the same noise."""
    torch.manual_seed(7)
    found = module(x) if isinstance(module, nn.RNNBase) else module(x[1], module(x[0]))
    return found[0] if isinstance(found, tuple) else found


class Same(nn.Module):
    """A parametrization that changes nothing."""

    def forward(self, x):
        return x


class Half(nn.Module):
    def forward(self, x):
        return 0.5 * x


X = 3 * torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(3))


def holder_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf


@pytest.mark.parametrize(("module", "settings"), EVERY)
def test_a_parametrization_that_is_the_identity_changes_nothing(module, settings):
    original = made(module, settings)
    expected = output(original, X)
    gradients = torch.autograd.grad(expected.square().sum(), list(original.parameters()), allow_unused=True)
    for (name, _), gradient in zip(original.named_parameters(), gradients, strict=True):
        twin = copy.deepcopy(original)
        holder, leaf = holder_of(twin, name)
        torch.nn.utils.parametrize.register_parametrization(holder, leaf, Same())
        found = output(twin, X)
        assert torch.equal(found, expected), name
        found.square().sum().backward()
        torch.testing.assert_close(getattr(holder.parametrizations, leaf).original.grad, gradient)


@pytest.mark.parametrize(("module", "settings"), EVERY)
def test_a_parametrization_is_what_is_computed_with(module, settings):
    original = made(module, settings)
    for name, _ in original.named_parameters():
        halved, twin = copy.deepcopy(original), copy.deepcopy(original)
        with torch.no_grad():
            halved.get_parameter(name).mul_(0.5)
        torch.nn.utils.parametrize.register_parametrization(*holder_of(twin, name), Half())
        assert torch.equal(output(twin, X), output(halved, X)), name


@pytest.mark.parametrize(("module", "settings"), EVERY)
def test_a_pruned_weight_is_what_is_computed_with(module, settings):
    original = made(module, settings)
    for name, _ in original.named_parameters():
        holder, leaf = holder_of(twin := copy.deepcopy(original), name)
        torch.nn.utils.prune.identity(holder, leaf)
        assert torch.equal(output(twin, X), output(original, X)), name
        output(twin, X).square().sum().backward()
        assert getattr(holder, leaf + "_orig").grad is not None or "noise" in name
    names = [name for name, _ in original.named_parameters() if "weight" in name]
    torch.nn.utils.prune.random_unstructured(original, names[-1], amount=0.9)
    pruned = output(original, X)
    torch.nn.utils.prune.remove(original, names[-1])
    assert torch.equal(output(original, X), pruned)


@pytest.mark.parametrize("way", ["weight_norm", "spectral_norm"])
@pytest.mark.parametrize(("module", "settings"), EVERY)
def test_reparametrised_weights_train(module, settings, way):
    layer = made(module, settings)
    name = "weight_hh" if "cell" in module else "weight_hh_l0"
    getattr(torch.nn.utils.parametrizations, way)(layer, name)
    if way == "weight_norm":
        torch.testing.assert_close(output(layer.eval(), X), output(made_alike(layer, module, settings), X))
    layer.train()
    before = getattr(layer, name).detach().clone()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        output(layer, X / 6).square().sum().backward()
        originals = layer.parametrizations[name].parameters()
        assert all(p.grad is not None and p.grad.any() for p in originals)
        optimizer.step()
    assert not torch.allclose(getattr(layer, name), before)


def made_alike(layer: nn.Module, module: str, settings: str) -> nn.Module:
    """A module without parametrizations that has the values of one with them."""
    plain = made(module, settings).eval()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            holder, leaf = holder_of(layer, name)
            parameter.copy_(getattr(holder, leaf))
    return plain


@pytest.mark.parametrize(("module", "settings"), EVERY)
def test_a_plain_tensor_may_stand_in_for_a_parameter(module, settings):
    layer = made(module, settings)
    name = "weight_hh" if "cell" in module else "weight_hh_l0"
    raw = getattr(layer, name)
    delattr(layer, name)
    layer.register_parameter("raw", raw)
    setattr(layer, name, raw * 0)
    zeroed = made_alike(layer, module, settings)
    expected = output(zeroed.train(), X)
    assert torch.equal(output(layer, X), expected)
    setattr(layer, name, torch.nn.functional.dropout(raw, 0.5))  # weight drop
    assert not torch.equal(output(layer, X), expected)
    output(layer, X).square().sum().backward()
    assert raw.grad.any()


@pytest.mark.parametrize(("module", "settings"), EVERY)
def test_functional_call(module, settings):
    layer, other = made(module, settings), made(module, settings)
    given = {name: p.detach().clone().requires_grad_() for name, p in other.named_parameters()}

    def called(*inputs):
        return torch.func.functional_call(layer, given, inputs)

    torch.manual_seed(7)
    found = called(X) if isinstance(layer, nn.RNNBase) else called(X[1], called(X[0]))
    found = found[0] if isinstance(found, tuple) else found
    expected = output(other, X)
    assert torch.equal(found, expected)
    mine = torch.autograd.grad(found.square().sum(), list(given.values()), allow_unused=True)
    theirs = torch.autograd.grad(expected.square().sum(), list(other.parameters()), allow_unused=True)
    torch.testing.assert_close(mine, theirs)
    assert all(p.grad is None for p in layer.parameters())


def test_a_weight_of_the_wrong_shape_is_named():
    layer = na.NoisyLSTM(4, 5)
    del layer.weight_hh_l0
    layer.weight_hh_l0 = torch.randn(10, 5)
    with pytest.raises(RuntimeError, match=r"w_hh must be of shape \(20, 5\).*not of shape \(10, 5\)"):
        layer(X)
    del layer.weight_hh_l0
    with pytest.raises(AttributeError, match="weight_hh_l0"):
        layer(X)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_checkpoints_go_both_ways(kind):
    noisy, plain = (
        getattr(na, f"Noisy{kind}")(4, 5, 2, bidirectional=True),
        getattr(nn, kind)(4, 5, 2, bidirectional=True),
    )
    noisy.load_state_dict(plain.state_dict())  # strict
    missing, unexpected = plain.load_state_dict(noisy.state_dict(), strict=False)
    assert not missing
    assert unexpected
    assert all(name.startswith("noise.") for name in unexpected)
    own = {name: value for name, value in noisy.state_dict().items() if not name.startswith("noise.")}
    plain.load_state_dict(own)  # strict, without what is new


def test_a_module_pickled_by_an_earlier_version_has_its_p():
    layer = na.NoisyLSTM(4, 5, noise="nah:c=3").eval()
    state = {name: value for name, value in layer.noise.__getstate__().items() if name != "names"}
    twin = copy.deepcopy(layer)
    twin.noise = object.__new__(type(layer.noise))
    twin.noise.__setstate__(state)
    assert torch.equal(output(twin, X), output(layer, X))
