"""What modules show of themselves: the scale in force, and the kernel that computes them."""

import pytest
import torch
from torch import nn

import noisyact as na
from noisyact.text_table import text_table

LAYERS = {
    "NoisyHardTanh": lambda noise: na.NoisyHardTanh(noise),
    "NoisyReLU": lambda noise: na.NoisyReLU(noise),
    "NoisyLSTM": lambda noise: na.NoisyLSTM(2, 2, noise=noise),
    "NoisyGRUCell": lambda noise: na.NoisyGRUCell(2, 2, noise=noise),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_the_repr_has_the_scale_in_force(kind):
    layer = LAYERS[kind]("nah:c=30")
    assert "NAH(c=30.0, " in repr(layer)
    na.set_noise_scale(layer, 0.3)
    assert "NAH(c=0.3, " in repr(layer)
    other = LAYERS[kind]("nah:c=7")
    other.load_state_dict(layer.state_dict())
    assert "NAH(c=0.3, " in repr(other)
    scheduler = na.NoiseScheduler(layer, na.anneal.linear(5.0, 1.0, 4))
    scheduler.step()
    scheduler.step()
    assert "NAH(c=3.0, " in repr(layer)
    assert "NANI(sigma=0.1)" in repr(_scaled(LAYERS[kind]("nani"), 0.1))
    assert "NAH(c=30.0, " in repr(LAYERS[kind]("nah:c=30").to("meta"))  # a scale without a value


def _scaled(layer, value):
    na.set_noise_scale(layer, value)
    return layer


def test_gates_have_their_own_scale():
    lstm = na.NoisyLSTM(2, 2, noise="nah:c=2,alpha=1.0", gate_noise="nan:c=3")
    assert "NAH(c=2.0, alpha=1.0, clip=False), gate=NAN(c=3.0, " in repr(lstm)
    na.set_noise_scale(lstm, 0.5)
    assert "NAH(c=0.5, alpha=1.0, clip=False), gate=NAN(c=0.5, " in repr(lstm)
    gates = _scaled(na.NoisyGRU(2, 2, noise=None, gate_noise="nan:c=3"), 0.25)
    assert "None, gate=NAN(c=0.25, " in repr(gates)


def test_the_repr_has_the_range():
    assert repr(na.NoisyHardTanh("nani")) == "NoisyHardTanh(NANI(sigma=0.05), num_parameters=1)"
    assert repr(na.noisify(nn.ReLU6(), "nani")) == (
        "NoisyHardTanh(NANI(sigma=0.05), num_parameters=1, min_val=0, max_val=6)"
    )


def test_backend_info_of_activations():
    for layer in (na.NoisyHardTanh(), na.NoisyHardSigmoid("nani"), na.NoisyReLU()):
        last = na.backend_info(layer).splitlines()[-1]
        assert last == f"{type(layer).__name__}: the C kernel for float32 input"
    assert "the C kernel for bfloat16 input" in na.backend_info(na.NoisyHardTanh(dtype=torch.bfloat16))
    assert "torch operations: the kernel computes in float32" in na.backend_info(na.NoisyHardTanh().double())
    assert "the C kernel" in na.backend_info(na.NoisyActivation(na.harden(torch.erf)))
    soft = na.NoisyActivation(na.Pair(torch.tanh, lambda x: x))
    assert "torch operations: the kernels support only piecewise linear" in na.backend_info(soft)
    with pytest.raises(TypeError, match="a noisy layer, cell or activation, not Tanh"):
        na.backend_info(nn.Tanh())


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder_of_whole_sentences = nn.Sequential(nn.Tanh(), nn.GELU(), nn.LSTM(3, 3))

    def forward(self, x):
        return torch.tanh(self.encoder_of_whole_sentences(x)[0])


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_tables_fit_the_terminal(columns, monkeypatch, capsys):
    """They are wider than 60 and 80 columns, and each row's name and last cell are still there."""
    monkeypatch.setenv("COLUMNS", str(columns))
    noisy = na.noisify(Deep(), "nan", verbose=True)
    noisy.encoder_of_whole_sentences.register_module("1", na.NoisyHardTanh())
    printed = [
        capsys.readouterr().out, str(na.inventory(Deep())),
        str(na.saturation(noisy.train(), torch.randn(2, 4, 3), loss=lambda y: y.sum())),
    ]  # fmt: skip
    for table in printed:
        assert max(map(len, table.splitlines())) <= columns
    for table in printed[:2]:
        assert "does not saturate on both sides" in " ".join(table.split())
    names = [group.name for group in na.saturation(noisy, torch.randn(2, 4, 3))]
    assert len(names) == 7
    assert all(printed[2].count(f"{name} ") >= (1 if columns == 200 else 2) for name in names)
    monkeypatch.delenv("COLUMNS")
    assert max(map(len, str(na.inventory(Deep())).splitlines())) > 80  # no terminal, no limit


def test_names_of_columns_are_wrapped_to_their_longest_word():
    """It sets the width of the column anyway; to the width of the cells, each word had a line of its own."""
    table = text_table(("arm", "test_error at update 1800 (%)", "runs"), [("hard", "34", "1")], 30)
    assert table.splitlines() == [
        "arm   test_error  runs",
        "      at update",
        "      1800 (%)",
        "hard  34          1",
    ]
