"""accelerate: what it replaces and keeps, what it says, and how it is undone."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

import noisyact as na
from noisyact.ops import native
from noisyact.recurrent import backends

KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
OURS = {nn.LSTM: na.NoisyLSTM, nn.GRU: na.NoisyGRU, nn.RNN: na.NoisyRNN}


@pytest.fixture
def always(monkeypatch):
    """noisyact's layer runs for every kind and size, whatever is faster."""
    for name in ("why_torch", "why_torch_uncached"):
        monkeypatch.setattr(backends, name, lambda *arguments: None)


class Net(nn.Module):
    """A shared layer, a nested one, a cell and parts that stay."""

    def __init__(self, kind=nn.GRU):
        super().__init__()
        self.first = kind(4, 4)
        self.again = self.first
        self.rest = nn.ModuleDict({"inner": kind(4, 4, 2, batch_first=True, bidirectional=True), "act": nn.Tanh()})
        self.cell, self.head = nn.GRUCell(8, 3), nn.Linear(3, 2)

    def forward(self, x):
        x = self.again(self.first(x)[0])[0]
        return self.head(self.cell(self.rest["act"](self.rest["inner"](x)[0][:, -1])))


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_same_parameters_keys_names_flags_hooks_and_results(kind, inplace, always):
    model, fired = Net(KINDS[kind]).eval(), []
    model.rest.inner.train()
    handle = model.first.register_forward_hook(lambda module, args, out: fired.append(type(module)))
    x = torch.randn(5, 3, 4)
    expected, state = model(x), {name: value.clone() for name, value in model.state_dict().items()}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    flags = {name: module.training for name, module in model.named_modules()}
    names = list(dict(model.named_modules(remove_duplicate=False)))
    fast = na.accelerate(model, inplace=inplace)
    assert (fast is model) == inplace
    assert type(fast.first) is OURS[KINDS[kind]]
    assert fast.again is fast.first
    assert type(fast.rest.inner) is type(fast.first)
    assert [type(part) for part in (fast.rest.act, fast.cell, fast.head)] == [nn.Tanh, nn.GRUCell, nn.Linear]
    assert list(dict(fast.named_modules(remove_duplicate=False))) == names
    assert {name: module.training for name, module in fast.named_modules()} == flags
    now = dict(fast.named_parameters(remove_duplicate=False))
    assert now.keys() == parameters.keys()
    assert all(now[name] is parameter for name, parameter in parameters.items())
    assert list(fast.state_dict()) == list(state)
    assert fast.load_state_dict(state)
    fired.clear()
    torch.testing.assert_close(fast(x), expected)
    assert fired == [type(fast.first)] * 2
    if inplace:
        handle.remove()
        fast(x)
        assert len(fired) == 2
    else:
        assert type(model.first) is KINDS[kind]
        assert model.load_state_dict(fast.state_dict())


def test_an_optimiser_made_before_goes_on(always):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    na.accelerate(model, inplace=True)
    before = [parameter.detach().clone() for parameter in model.first.parameters()]
    model(torch.randn(5, 3, 4)).square().sum().backward()
    optimizer.step()
    assert not any(torch.equal(a, b) for a, b in zip(before, model.first.parameters(), strict=True))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: m])
def test_denoisify_restores_torchs_layers(duplicate, always):
    model, x = Net(), torch.randn(5, 3, 4)
    fast = duplicate(na.accelerate(model))
    torch.testing.assert_close(fast(x), model(x))
    with torch.no_grad():
        fast.first.weight_hh_l0.mul_(2.0)  # training goes on
    back = na.denoisify(fast)
    assert repr(back) == repr(model)
    assert back.first is back.again
    assert all(a is b for a, b in zip(back.parameters(), fast.parameters(), strict=True))
    torch.testing.assert_close(back(x), fast(x))
    single = nn.GRU(4, 4)
    assert na.denoisify(na.accelerate(single, inplace=True), inplace=True) is single


def test_noise_and_acceleration_go_together(always):
    """noisify takes an accelerated layer for the torch layer it was; accelerate leaves noisy layers alone."""
    model = nn.Sequential(nn.GRU(4, 4), nn.LSTM(4, 4))
    fast = na.accelerate(model)
    assert [found.why for found in na.inventory(fast).saturating] == ["noisify replaces it"] * 2
    noisy = na.noisify(fast, "nan", strict=True)
    assert [type(part) for part in noisy] == [na.NoisyGRU, na.NoisyLSTM]
    assert all(part.noise is not None and part.hard for part in noisy)
    assert noisy[0].weight_hh_l0 is model[0].weight_hh_l0
    with pytest.warns(UserWarning, match=r"accelerate replaced nothing in Sequential: 1 NoisyGRU \(is noisyact's alre"):
        na.accelerate(noisy)
    assert [type(part) for part in na.denoisify(noisy)] == [nn.GRU, nn.LSTM]
    half = na.noisify(fast, filter_fn=lambda module, name: name == "0")
    assert half[1].noise is None
    assert [type(part) for part in na.denoisify(half)] == [nn.GRU, nn.LSTM]
    with pytest.raises(ValueError, match=r"(?s)saturating parts remain.*Sigmoid"):
        na.noisify(nn.Sequential(fast, nn.LogSigmoid()), strict=True, inplace=True)
    assert [(type(part), part.noise) for part in fast] == [(na.NoisyGRU, None), (na.NoisyLSTM, None)]


class OwnGRU(nn.GRU):
    """A subclass may compute something else."""


def with_own_forward():
    gru = nn.GRU(4, 4)
    gru.forward = lambda x: x
    return gru


LEFT = {
    "subclass": (lambda: OwnGRU(4, 4), "a subclass may compute something else"),
    "pruned": (lambda: prune.identity(nn.GRU(4, 4), "weight_hh_l0"), "its weights are computed at every call"),
    "weight_norm": (lambda: weight_norm(nn.GRU(4, 4), "weight_hh_l0"), "its weights are computed at every call"),
    "own forward": (with_own_forward, "its forward method was replaced"),
    "float64": (lambda: nn.GRU(4, 4).double(), "the C kernels were not found to be faster in float64"),
    "LSTM": (lambda: nn.LSTM(4, 4), "nn.LSTM is as fast as the C kernels"),
    "meta": (lambda: nn.GRU(4, 4, device="meta"), "meta"),
    "cell": (lambda: nn.LSTMCell(4, 4), "is a cell, and accelerate replaces whole layers"),
    "ours": (lambda: na.NoisyGRU(4, 4), "is noisyact's already"),
    "nothing": (lambda: nn.Linear(4, 4), "it has no recurrent layer"),
}


@pytest.mark.parametrize("case", LEFT)
def test_left_alone_and_said_why(case):
    make, why = LEFT[case]
    module = make()
    with pytest.warns(UserWarning, match=f"accelerate replaced nothing in .*{why}") as caught:
        assert na.accelerate(module, inplace=True) is module
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.GRU(4, 6, 2, bias=False, bidirectional=True, dropout=0.5),
        lambda: nn.RNN(4, 6, batch_first=True, nonlinearity="relu"),
        lambda: nn.LSTM(4, 6, 2, proj_size=3),
    ],
)
@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
def test_what_it_replaces_on_a_cpu(make):
    layer, x = make(), torch.randn(14, 14, 4)
    if native.library() is None:
        pytest.skip("no compiled kernels")
    fast = na.accelerate(layer)
    assert type(fast) is OURS[type(layer)]
    assert fast.extra_repr().removesuffix(", hard=False") == layer.extra_repr()
    torch.manual_seed(1)
    expected = layer(x)
    torch.manual_seed(1)
    torch.testing.assert_close(fast(x), expected)


def test_without_compiled_kernels_nothing_is_replaced(monkeypatch):
    monkeypatch.setattr(backends, "_kernels_present", lambda: False)
    backends.why_torch.cache_clear()
    with pytest.warns(UserWarning, match="replaced nothing in GRU"):
        assert type(na.accelerate(nn.GRU(4, 4))) is nn.GRU
    backends.why_torch.cache_clear()


def test_it_prints_what_it_replaced_and_what_not(capsys, always):
    na.accelerate(Net(), filter_fn=lambda module, name: "inner" not in name, verbose=True)
    assert capsys.readouterr().out.splitlines() == [
        "what      module      type     now, or why not",
        "replaced  first       GRU      NoisyGRU",
        "left      rest.inner  GRU      filter_fn excludes it",
        "left      cell        GRUCell  is a cell, and accelerate replaces whole layers",
    ]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: na.accelerate([nn.GRU(2, 2)]), "GRU"),
        (lambda: na.accelerate(nn.GRU(2, 2), filter_fn=3), "filter_fn .*3"),
    ],
)
def test_wrong_arguments_are_named(call, named):
    with pytest.raises(TypeError, match=named):
        call()
