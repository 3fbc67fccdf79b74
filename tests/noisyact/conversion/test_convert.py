"""Conversion: what noisify replaces, what it leaves unchanged, and that denoisify restores a bit-identical model."""

import contextlib
import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from convert_cases import MODELS, shared_in_one_parent, small
from torch import nn

from noisyact import (  # fmt: skip
    HardPair,
    NoisyActivation,
    NoisyGRU,
    NoisyGRUCell,
    NoisyHardSigmoid,
    NoisyHardTanh,
    NoisyLSTM,
    NoisyLSTMCell,
    NoisyRNN,
    NoisyRNNCell,
    denoisify,
    harden,
    noise_parameters,
    noisify,
)
from noisyact.recurrent.noise import RecurrentNoise

NOISY = {
    nn.Tanh: NoisyHardTanh, nn.Softsign: NoisyHardTanh, nn.Hardtanh: NoisyHardTanh, nn.ReLU6: NoisyHardTanh,
    nn.Sigmoid: NoisyHardSigmoid, nn.Hardsigmoid: NoisyHardSigmoid,
    nn.LSTM: NoisyLSTM, nn.GRU: NoisyGRU, nn.RNN: NoisyRNN, nn.LSTMCell: NoisyLSTMCell, nn.GRUCell: NoisyGRUCell,
    nn.RNNCell: NoisyRNNCell,
}  # fmt: skip


def eval_output(model: nn.Module) -> torch.Tensor:
    flags = flags_of(model)
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    x = torch.linspace(-3, 3, 12, dtype=dtype).reshape(3, 4)
    out = model.eval()(x.clone()).detach()
    for name, module in model.named_modules():
        module.training = flags[name]
    return out


def flags_of(model):
    return {name: module.training for name, module in model.named_modules()}


def types_of(model):
    return {name: type(module) for name, module in model.named_modules(remove_duplicate=False)}


def check_noisy(noisy, names, types, flags, parameters):
    converted = {name: kind for name, kind in types_of(noisy).items() if kind is not RecurrentNoise}
    unique = {name for name, _ in noisy.named_modules()}
    assert {name for name, kind in converted.items() if kind in NOISY.values()} & unique == set(names)
    assert converted.keys() == types.keys()
    for name, kind in converted.items():
        assert kind is (NOISY[types[name]] if kind in NOISY.values() else types[name])
    assert {name: flag for name, flag in flags_of(noisy).items() if name in flags} == flags
    now = dict(noisy.named_parameters(remove_duplicate=False))
    assert all(now[name] is parameter for name, parameter in parameters.items())
    new = [now[name] for name in now.keys() - parameters.keys()]
    assert {id(p) for p in new} == {id(p) for p in noise_parameters(noisy)}
    old_dtypes = {(p.dtype, p.device) for p in parameters.values()} or {(torch.float32, torch.device("cpu"))}
    assert all((p.dtype, p.device) in old_dtypes and p.requires_grad for p in new)


@pytest.mark.parametrize("case", MODELS)
def test_there_and_back(case):
    make, names = MODELS[case]
    model = make()
    types, flags, before = types_of(model), flags_of(model), eval_output(model)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = dict(model.named_parameters(remove_duplicate=False))

    def check_as_before(back):
        assert types_of(back) == types
        assert flags_of(back) == flags
        assert back.state_dict().keys() == state.keys()
        assert all(torch.equal(value, state[name]) for name, value in back.state_dict().items())
        after = dict(back.named_parameters(remove_duplicate=False))
        assert all(after[name] is parameter for name, parameter in parameters.items())
        assert torch.equal(eval_output(back), before)

    def said(of):
        """Where there is nothing to do, both say so; else neither says anything."""
        return contextlib.nullcontext() if names else pytest.warns(UserWarning, match=of)

    with said("noisify replaced nothing"):
        noisy = noisify(model)
    check_noisy(noisy, names, types, flags, parameters)
    check_as_before(model)
    with said("denoisify found nothing noisy"):
        check_as_before(denoisify(noisy))
    check_noisy(noisy, names, types, flags, parameters)

    modules = dict(model.named_modules(remove_duplicate=False))
    with said("noisify replaced nothing"):
        changed = noisify(model, inplace=True)
    check_noisy(changed, names, types, flags, parameters)
    assert (changed is model) == ("" not in names)
    with said("denoisify found nothing noisy"):
        back = denoisify(changed, inplace=True)
    check_as_before(back)
    assert all(modules[name] is module for name, module in back.named_modules(remove_duplicate=False))


def test_range_and_slope_stay():
    model = noisify(
        nn.Sequential(nn.Tanh(), nn.Sigmoid(), nn.Hardtanh(-2.0, 0.5), nn.Hardsigmoid(), nn.ReLU6(), nn.Softsign())
    )
    assert [module.pair for module in model] == [
        HardPair(1, 0, -1, 1), HardPair(0.25, 0.5, 0, 1), HardPair(1, 0, -2, 0.5), HardPair(1 / 6, 0.5, 0, 1),
        HardPair(1, 0, 0, 6), harden(F.softsign),
    ]  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_noise_and_leak_it_is_the_hard_network(training, dtype):
    first, second, third = (nn.Linear(4, 4).to(dtype) for _ in range(3))
    soft = nn.Sequential(first, nn.Tanh(), second, nn.Sigmoid(), third, nn.Hardtanh(-0.1, 0.3))
    x = torch.randn(64, 4, dtype=dtype) * 4
    hard = first(x).clamp(-1, 1)
    hard = (0.25 * second(hard) + 0.5).clamp(0, 1)
    hard = F.hardtanh(third(hard), -0.1, 0.3)
    noisy = noisify(soft, "nan:c=0,alpha=1.0").train(training)
    assert torch.equal(noisy(x), hard)
    assert not torch.equal(noisify(soft, "nan:c=5,alpha=1.2").train(training)(x), hard)
    noisy = noisify(nn.Hardsigmoid(), "nan:c=0,alpha=1.0").train(training)
    torch.testing.assert_close(noisy(x), F.hardsigmoid(x))
    assert torch.equal(noisify(nn.ReLU6(), "nan:c=0,alpha=1.0").train(training)(3 * x), F.relu6(3 * x))


def test_gate_noise_goes_to_the_sigmoids():
    model = noisify(
        nn.Sequential(nn.Tanh(), nn.Sigmoid(), nn.Hardsigmoid(), nn.Hardtanh()), "nah:c=0.3", gate_noise="nani:sigma=2"
    )
    assert [module.noise.name for module in model] == ["nah", "nani", "nani", "nah"]
    assert [round(module.scale.item(), 6) for module in model] == [0.3, 2.0, 2.0, 0.3]
    assert [module.p is None for module in model] == [False, True, True, False]


@pytest.mark.parametrize("inplace", [True, False])
def test_filter(inplace):
    model = small(nn.Tanh(), small(nn.Sigmoid(), nn.Tanh()))
    asked = []
    keep = model[2][2]

    def wanted(module, name):
        asked.append((module, name))
        return module is not keep  # the very module of the model given, also where a copy is converted

    noisy = noisify(model, filter_fn=wanted, inplace=inplace)
    assert [name for name, m in noisy.named_modules() if isinstance(m, NoisyActivation)] == ["1", "2.1"]
    assert [name for _, name in asked] == ["1", "2.1", "2.2"]
    with pytest.warns(UserWarning, match=r"nothing in Tanh: 1 Tanh \(filter_fn excludes it\)\.$"):
        assert noisify(nn.Tanh(), filter_fn=lambda module, name: name != "").__class__ is nn.Tanh


def test_hooks_stay_and_handles_still_remove():
    model = small(nn.Tanh())
    fired = []
    handles = [
        model[1].register_forward_hook(lambda module, args, out: fired.append("forward")),
        model[1].register_forward_pre_hook(lambda module, args: fired.append("pre")),
        model[1].register_full_backward_hook(lambda module, gi, go: fired.append("backward")),
    ]
    noisify(model, inplace=True)
    x = torch.ones(2, 4)
    model(x).sum().backward()
    assert fired == ["pre", "forward", "backward"]
    noisify(denoisify(model), inplace=False)(x).sum().backward()
    assert fired == ["pre", "forward", "backward"] * 2
    for handle in handles:
        handle.remove()
    model(x).sum().backward()
    denoisify(model, inplace=True)(x).sum().backward()
    assert len(fired) == 6


def test_a_backward_hook_added_to_the_noisy_module_survives_the_way_back():
    model = noisify(small(nn.Tanh()))
    shapes = []
    model[1].register_full_backward_hook(lambda module, gi, go: shapes.append(gi[0].shape))
    model = denoisify(model, inplace=True)
    model(torch.ones(2, 4)).sum().backward()
    assert shapes == [(2, 4)]


def test_an_optimiser_made_before_goes_on_and_takes_p_as_well():
    model = small(nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    noisy = noisify(model, "nan:c=2")
    optimizer.add_param_group({"params": list(noise_parameters(noisy))})
    before = [parameter.detach().clone() for parameter in noisy.parameters()]
    noisy(torch.full((8, 4), 9.0)).square().sum().backward()
    optimizer.step()
    assert not any(torch.equal(a, b) for a, b in zip(before, noisy.parameters(), strict=True))
    assert model[0].weight is noisy[0].weight


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_of_a_converted_model_can_still_be_undone(duplicate):
    model = small(nn.Hardtanh(-2.0, 1.0), shared_in_one_parent())
    noisy = noisify(model, "nah:c=3")
    twin = duplicate(noisy)
    assert twin[0].weight is not noisy[0].weight
    assert torch.equal(eval_output(twin), eval_output(noisy))
    assert twin[2][1] is twin[2][3]
    back = denoisify(twin)
    assert types_of(back) == types_of(model)
    assert (back[1].min_val, back[1].max_val) == (-2.0, 1.0)
    assert torch.equal(eval_output(back), eval_output(model))


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: noisify([nn.Tanh()]), TypeError, r"\[Tanh\(\)\]"),
        (lambda: noisify(nn.Tanh), TypeError, "<class .*Tanh"),
        (lambda: denoisify("net"), TypeError, "'net'"),
        (lambda: noisify(nn.Tanh(), 0.3), TypeError, "0.3"),
        (lambda: noisify(nn.Tanh(), gate_noise=["nah"]), TypeError, r"\['nah'\]"),
        (lambda: noisify(nn.Tanh(), filter_fn="1"), TypeError, "filter_fn .*'1'"),
        (lambda: noisify(nn.Tanh(), "nax"), ValueError, "nax"),
        (lambda: noisify(nn.Tanh(), eval_noise="soft"), ValueError, "soft"),
    ],
)
def test_wrong_arguments_are_named(call, error, named):
    with pytest.raises(error, match=named):
        call()
