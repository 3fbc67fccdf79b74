"""Reports of a conversion: what noisify skipped and why, and what denoisify does with modules built by hand."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

import noisyact as na

LEFT = {
    "LogSigmoid": (nn.LogSigmoid, "saturates on one side only"),
    "GLU": (nn.GLU, "not elementwise"),
    "Hardswish": (nn.Hardswish, "does not saturate on both sides"),
    "SiLU": (nn.SiLU, "does not saturate on both sides"),
    "GELU": (nn.GELU, "does not saturate on both sides"),
    "ReLU": (nn.ReLU, "see NoisyReLU"),
    "RNN": (lambda: nn.RNN(4, 4, nonlinearity="relu"), "see NoisyRNN with nonlinearity='relu'"),
    "Hardtanh": (lambda: nn.Hardtanh(1.0, 2.0), "its range excludes 0"),
}


def mobile_block() -> nn.Module:
    """No activation that noisify replaces."""
    convolution = [nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.SiLU()]
    return nn.Sequential(*convolution, nn.Sequential(nn.Conv2d(4, 4, 1), nn.SiLU(), nn.ReLU()))


def test_a_model_with_nothing_to_convert_is_named_with_what_it_has():
    left = r"2 SiLU \(does not saturate on both sides\), 1 ReLU \(does not saturate on both sides; see NoisyReLU\)"
    for inplace in (False, True):
        with pytest.warns(UserWarning, match=rf"noisify replaced nothing in Sequential: {left}\.$") as caught:
            na.noisify(mobile_block(), inplace=inplace)
        assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match="nothing in Linear: it has no activation"):
        na.noisify(nn.Linear(2, 2))


@pytest.mark.parametrize("kind", LEFT)
def test_what_was_left_and_why(kind):
    """If something else is converted there is no warning; the inventory lists what was skipped."""
    make, why = LEFT[kind]
    model = na.noisify(nn.Sequential(nn.Tanh(), make(), make()))
    found = na.inventory(model)
    assert [(part.name, part.kind) for part in found.noisy] == [("0", "NoisyHardTanh")]
    assert found.left.startswith(f"2 {kind} (")
    assert why in found.left
    assert why in " ".join(str(found).split())


@pytest.mark.parametrize(
    "made",
    [
        lambda: na.NoisyRNN(2, 3, nonlinearity="relu", noise=None, hard=False),
        lambda: na.NoisyRNNCell(2, 3, nonlinearity="relu", noise=None),
    ],
)
def test_a_relu_network_of_ours_without_noise_is_named(made):
    """accelerate makes one of nn.RNN."""
    with pytest.warns(UserWarning, match=r"1 NoisyRNN(Cell)? \(does not saturate on both sides\)"):
        na.noisify(nn.Sequential(made()))
    assert na.inventory(made()).complete


def test_calls_are_among_what_was_left():
    class Net(nn.Module):
        def forward(self, x):
            return torch.tanh(x)

    with pytest.warns(UserWarning, match=r"nothing in Net: a call of torch\.tanh \(test_convert_said\.py:\d+\)\.$"):
        na.noisify(Net())


def test_many_of_a_kind_are_one_row():
    rows = str(na.inventory(nn.Sequential(*(nn.GELU() for _ in range(30))))).splitlines()
    assert rows[1:] == ["other  0 and 29 more  GELU  does not saturate on both sides"]


RECURRENT = {
    "LSTM": lambda **noise: na.NoisyLSTM(
        4,
        5,
        2,
        bias=False,
        batch_first=True,
        dropout=0.5,
        bidirectional=True,
        proj_size=3,
        dtype=torch.float64,
        **noise,
    ),
    "GRU": lambda **noise: na.NoisyGRU(4, 5, 2, dtype=torch.float64, **noise),
    "RNN": lambda **noise: na.NoisyRNN(4, 5, nonlinearity="relu", **noise),
    "RNN, tanh": lambda **noise: na.NoisyRNN(4, 5, bidirectional=True, **noise),
    "LSTMCell": lambda **noise: na.NoisyLSTMCell(4, 5, bias=False, **noise),
    "GRUCell": lambda **noise: na.NoisyGRUCell(4, 5, **noise),
    "RNNCell": lambda **noise: na.NoisyRNNCell(4, 5, nonlinearity="relu", **noise),
}


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("case", RECURRENT)
def test_recurrent_modules_built_by_hand_become_torchs(case, inplace):
    """They keep weight tensors, settings, flags and hooks, and compute the soft function without noise."""
    by_hand, fired = RECURRENT[case](noise="nah:c=3").eval(), []
    by_hand.register_forward_hook(lambda *_: fired.append(1))
    model = nn.Sequential(by_hand)
    (plain,) = na.denoisify(model, inplace=inplace)
    assert type(plain) is getattr(nn, case.partition(",")[0])
    assert model[0] is (plain if inplace else by_hand)
    assert not plain.training
    for name, weight in plain.named_parameters():
        assert weight is by_hand.get_parameter(name)
    assert {name for name, _ in by_hand.named_parameters() if not name.startswith("noise.")} == {
        name for name, _ in plain.named_parameters()
    }
    soft = RECURRENT[case](noise=None, hard=False).eval()
    soft.load_state_dict(plain.state_dict())
    x = torch.randn(3, 4, dtype=next(plain.parameters()).dtype)
    torch.testing.assert_close(plain(x), soft(x))
    assert fired == [1]
    assert plain.__dict__.get("dropout") == by_hand.__dict__.get("dropout")
    if getattr(plain, "nonlinearity", "tanh") == "tanh":
        assert type(na.noisify(plain)) is type(by_hand)


@pytest.mark.parametrize(
    ("noisy", "kind", "function"),
    [
        (na.NoisyHardTanh(), nn.Hardtanh, F.hardtanh),
        (na.NoisyHardTanh(min_val=-2.0, max_val=0.5), nn.Hardtanh, lambda x: x.clamp(-2.0, 0.5)),
        (na.NoisyHardSigmoid(slope=1 / 6), nn.Hardsigmoid, F.hardsigmoid),
        (na.NoisyHardSigmoid(), nn.Sigmoid, torch.sigmoid),
        (na.NoisyReLU(), nn.ReLU, torch.relu),
        (na.NoisyActivation(na.HARD_TANH, "nani"), nn.Hardtanh, F.hardtanh),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_activations_built_by_hand_become_torchs(noisy, kind, function):
    x = 4 * torch.randn(64)
    plain = na.denoisify(nn.Sequential(noisy))[0]
    assert type(plain) is kind
    assert torch.equal(plain(x), function(x))


class OwnLSTM(na.NoisyLSTM):
    """A subclass may compute something else."""


@pytest.mark.parametrize(
    ("noisy", "why"),
    [
        (na.NoisyActivation(na.harden(torch.erf)), "torch has no such function"),
        (na.NoisyHardSigmoid(slope=0.3), "torch has no such function"),
        (OwnLSTM(4, 4), "a subclass may compute something else"),
        (prune.identity(na.NoisyGRU(4, 4), "weight_hh_l0"), "its weights are computed at every call"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_what_stays_noisy_is_named(noisy, why):
    model = nn.Sequential(nn.Linear(4, 4), noisy, na.NoisyHardTanh())
    with pytest.warns(
        UserWarning, match=rf"denoisify left parts of Sequential unchanged: 1: {type(noisy).__name__}, {why}$"
    ):
        back = na.denoisify(model)
    assert [type(part) for part in back] == [nn.Linear, type(noisy), nn.Hardtanh]


def test_denoisify_of_a_model_without_noise_says_so():
    for model in (nn.Sequential(nn.Tanh()), na.NoisyLSTM(4, 4, noise=None)):
        with pytest.warns(UserWarning, match=f"denoisify found nothing noisy in {type(model).__name__}$"):
            assert type(na.denoisify(model)) is type(model)


def test_a_whole_conversion_there_and_back_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = na.noisify(nn.Sequential(nn.Tanh(), nn.LSTM(4, 4)))
        assert [type(part) for part in na.denoisify(model)] == [nn.Tanh, nn.LSTM]


class Calls(nn.Module):
    """Uses each kind of part: replaced, left, excluded, called as a function."""

    def __init__(self):
        super().__init__()
        self.act, self.twin, self.out, self.pool = nn.Tanh(), nn.Tanh(), nn.Sigmoid(), nn.GELU()

    def forward(self, x):
        return torch.tanh(self.pool(self.out(self.twin(self.act(x)))))


def test_noisify_prints_what_it_replaced_and_what_not_and_why(capsys):
    model = na.noisify(Calls(), filter_fn=lambda module, name: name != "out", verbose=True)
    *rows, call = capsys.readouterr().out.splitlines()
    assert rows == [
        "what      module          type        now, or why not",
        "replaced  act and 1 more  Tanh        NoisyHardTanh",
        "left      out             Sigmoid     filter_fn excludes it",
        "left      pool            GELU        does not saturate on both sides",
    ]
    assert call.startswith("left      (the model)     torch.tanh  test_convert_said.py:")
    assert isinstance(model, Calls)
    na.noisify(Calls())
    assert capsys.readouterr().out == ""


def test_denoisify_prints_the_same_way(capsys):
    model = na.noisify(nn.Sequential(nn.Softsign(), nn.GRU(4, 4), nn.Linear(4, 4)))
    model.append(na.NoisyHardSigmoid(slope=0.3))
    with pytest.warns(UserWarning, match="unchanged: 3: NoisyHardSigmoid"):
        na.denoisify(model, verbose=True)
    assert capsys.readouterr().out.splitlines() == [
        "what      module  type              now, or why not",
        "replaced  0       NoisyHardTanh     Softsign",
        "replaced  1       NoisyGRU          GRU",
        "left      3       NoisyHardSigmoid  torch has no such function",
    ]
    with pytest.warns(UserWarning, match="nothing noisy"):
        na.denoisify(nn.Linear(2, 2), verbose=True)
    assert capsys.readouterr().out == "nothing to replace\n"


def test_weights_computed_after_the_conversion_are_not_lost():
    """denoisify must not restore a layer whose own weights are those of before pruning."""
    noisy = na.noisify(nn.Sequential(nn.GRU(4, 4)))
    prune.l1_unstructured(noisy[0], "weight_hh_l0", 0.5)
    with pytest.warns(UserWarning, match="unchanged: 0: NoisyGRU, its weights are computed at every call"):
        assert na.denoisify(noisy)[0].__class__ is na.NoisyGRU
