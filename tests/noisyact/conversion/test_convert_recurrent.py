"""Conversion of recurrent layers and cells: settings and weight tensors are kept, and it can be undone."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import noisyact as na

# What is converted, into what, and how many p it gets.
MODULES = {
    "lstm": (lambda: nn.LSTM(4, 5), na.NoisyLSTM, 1),
    "lstm, everything": (
        lambda: nn.LSTM(4, 5, 3, batch_first=True, dropout=0.3, bidirectional=True, proj_size=2).double(),
        na.NoisyLSTM, 6,
    ),
    "lstm, no bias": (lambda: nn.LSTM(4, 5, 2, bias=False), na.NoisyLSTM, 2),
    "lstm, float64": (lambda: nn.LSTM(4, 5, dtype=torch.float64), na.NoisyLSTM, 1),
    "lstm, frozen": (lambda: nn.LSTM(4, 5).requires_grad_(False), na.NoisyLSTM, 1),
    "gru": (lambda: nn.GRU(4, 5, 2, dropout=0.5, bidirectional=True), na.NoisyGRU, 4),
    "gru, evaluation": (lambda: nn.GRU(4, 5, batch_first=True).eval(), na.NoisyGRU, 1),
    "rnn": (lambda: nn.RNN(4, 5, 2, bias=False), na.NoisyRNN, 2),
    "lstm cell": (lambda: nn.LSTMCell(4, 5), na.NoisyLSTMCell, 1),
    "gru cell, no bias": (lambda: nn.GRUCell(4, 5, bias=False), na.NoisyGRUCell, 1),
    "rnn cell": (lambda: nn.RNNCell(4, 5), na.NoisyRNNCell, 1),
}  # fmt: skip
SETTINGS = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size")


def flat(result) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else [t for part in result for t in flat(part)]


def outputs(module: nn.Module) -> list[torch.Tensor]:
    """The outputs in evaluation mode for an input that every kind accepts. The mode is restored."""
    training, dtype = module.training, next(module.parameters()).dtype
    result = flat(module.eval()(torch.linspace(-3, 3, 12, dtype=dtype).reshape(3, 4)))
    module.train(training)
    return result


def equal(ones, others) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("case", MODULES)
def test_there_and_back(case, inplace):
    make, kind, count = MODULES[case]
    module = make()
    model = nn.ModuleDict({"inner": module})
    before, parameters = outputs(module), dict(model.named_parameters())
    keys, flag, rng = model.state_dict().keys(), module.training, torch.get_rng_state()
    noisy = na.noisify(model, "nah:c=3", inplace=inplace)
    new = noisy["inner"]
    assert type(new) is kind
    assert new.training == flag
    assert all(getattr(new, name) == getattr(module, name) for name in SETTINGS if hasattr(module, name))
    now = dict(noisy.named_parameters())
    assert all(now[name] is parameter for name, parameter in parameters.items())
    assert all(key.startswith("inner.noise.") for key in noisy.state_dict().keys() - keys)
    assert keys <= noisy.state_dict().keys()
    found = list(na.noise_parameters(noisy))
    assert len(found) == count
    assert {(p.dtype, p.device) for p in found} == {(p.dtype, p.device) for p in parameters.values()}
    assert all(p.requires_grad for p in found)
    assert [t.shape for t in outputs(new)] == [t.shape for t in before]
    assert not equal(outputs(new), before)
    torch.set_rng_state(rng)
    back = na.denoisify(noisy, inplace=inplace)["inner"]
    assert type(back) is type(module)
    assert (back is module) == inplace
    assert equal(outputs(back), before)
    assert all(back.get_parameter(name.partition(".")[2]) is parameter for name, parameter in parameters.items())
    assert back.training == flag


@pytest.mark.parametrize("case", MODULES)
def test_it_computes_as_one_built_by_hand(case):
    make, kind, _ = MODULES[case]
    old = make()
    noisy = na.noisify(old, "nan:c=3", gate_noise=None if case.startswith("rnn") else "nah:c=2")
    settings = {name: getattr(old, name) for name in SETTINGS[2:] if hasattr(old, name)}
    if not isinstance(old, nn.LSTM):
        settings.pop("proj_size", None)
    if not case.startswith("rnn"):
        settings["gate_noise"] = "nah:c=2"
    twin = kind(4, 5, **settings, noise="nan:c=3", dtype=next(old.parameters()).dtype).train(old.training)
    twin.load_state_dict(noisy.state_dict())
    x = 3 * torch.randn(3, 4, dtype=next(old.parameters()).dtype)
    torch.manual_seed(1)
    found = flat(noisy(x))
    torch.manual_seed(1)
    assert equal(found, flat(twin(x)))


def test_training_the_noisy_layer_trains_the_original():
    """Also with torch's own forward, which keeps a second list of the weights besides the parameters."""
    lstm = nn.LSTM(4, 5)
    noisy = na.noisify(lstm)
    before = outputs(lstm)
    optimizer = torch.optim.SGD(noisy.parameters(), lr=0.5)
    noisy(torch.randn(3, 4))[0].square().sum().backward()
    optimizer.step()
    assert not equal(outputs(lstm), before)
    assert equal(outputs(na.denoisify(noisy)), outputs(lstm))
    noisy.weight_hh_l0 = nn.Parameter(torch.zeros_like(lstm.weight_hh_l0))  # weights given later go back as well
    back = na.denoisify(noisy)
    assert not back.weight_hh_l0.any()
    assert not equal(outputs(back), outputs(lstm))


def test_hooks_stay():
    lstm, fired = nn.LSTM(4, 5), []
    handle = lstm.register_forward_hook(lambda module, args, out: fired.append(type(module).__name__))
    noisy = na.noisify(lstm)
    noisy(torch.randn(3, 4))
    na.denoisify(noisy)(torch.randn(3, 4))
    assert fired == ["NoisyLSTM", "LSTM"]
    na.noisify(lstm, inplace=True)
    handle.remove()
    na.noisify(lstm)(torch.randn(3, 4))
    assert len(fired) == 2


class OwnGRU(nn.GRU):
    """A subclass may compute something else."""


def pruned():
    return prune.identity(nn.LSTM(4, 5), "weight_hh_l0")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: nn.RNN(4, 5, nonlinearity="relu"), "does not saturate"),
        (lambda: nn.RNNCell(4, 5, nonlinearity="relu"), "does not saturate"),
        (lambda: OwnGRU(4, 5), "a subclass"),
        (pruned, "weights are computed"),
        (lambda: na.NoisyLSTM(4, 5, noise=None), "made without noise"),
        (lambda: na.NoisyLSTM(4, 5), "1 already noisy"),
    ],
    ids=["relu", "relu cell", "subclass", "pruned", "ours", "ours, noisy"],
)
def test_left_alone_and_said_why(make, why):
    module = make()
    with pytest.warns(UserWarning, match=f"noisify replaced nothing in {type(module).__name__}: .*({why})"):
        assert na.noisify(module, inplace=True) is module
    outputs(module)


def test_the_filter_sees_them():
    model = nn.Sequential(nn.LSTM(4, 5), nn.GRU(5, 5))
    noisy = na.noisify(model, filter_fn=lambda module, name: module is model[1])
    assert [type(part) for part in noisy] == [nn.LSTM, na.NoisyGRU]
    with pytest.raises(ValueError, match=r"(?s)saturating parts remain.*0 .*LSTM"):
        na.noisify(model, filter_fn=lambda module, name: module is model[1], strict=True, inplace=True)
    assert [type(part) for part in model] == [nn.LSTM, nn.GRU]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_can_be_undone(duplicate):
    lstm = nn.LSTM(4, 5, bidirectional=True)
    twin = duplicate(na.noisify(lstm, "nah:c=3"))
    assert twin.weight_ih_l0 is not lstm.weight_ih_l0
    assert equal(outputs(twin), outputs(na.noisify(lstm, "nah:c=3"))) is False  # p was drawn anew
    assert equal(outputs(na.denoisify(twin)), outputs(lstm))
