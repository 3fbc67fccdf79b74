"""eval_noise="binary": gates of exactly 0 or 1 in evaluation mode, on every path, and how many of them there are."""

import pytest
import torch
from torch import nn

import noisyact as na

LAYERS = {"lstm": (na.NoisyLSTM, na.NoisyLSTMCell, nn.LSTM), "gru": (na.NoisyGRU, na.NoisyGRUCell, nn.GRU)}
NOISES = [
    {"noise": None},
    {"noise": None, "hard": False},
    {"noise": "nah"},
    {"noise": "nah", "gate_noise": "gumbel"},
    {"noise": None, "gate_noise": "hard-concrete", "hard": False},
]


def by_hand(kind, layer, x):
    """One layer with the step function for its gates, in torch operations and in the order of torch's weights."""
    step = lambda a: (a >= 0).to(a.dtype)  # noqa: E731
    state = layer.noise.state if layer.noise is not None else None
    scale = None if state is None else layer.noise.scale
    p = None if state is None or not layer.noise.names else layer.noise.p_l0.reshape(-1, layer.hidden_size)

    def tanh(n, a):
        if state is None:
            return torch.tanh(a) if not layer.hard else na.functional.hard_tanh(a)
        return na.functional.noisy_hard_tanh(a, state.with_scale(scale.item()), p[n], training=False)

    h = c = x.new_zeros(x.shape[1], layer.hidden_size)
    outputs = []
    for now in x:
        a = now @ layer.weight_ih_l0.T + layer.bias_ih_l0
        q = h @ layer.weight_hh_l0.T + layer.bias_hh_l0
        if kind == "lstm":
            i, f, g, o = (a + q).chunk(4, dim=1)
            c = step(f) * c + step(i) * tanh(2, g)
            h = step(o) * tanh(4, c)
        else:
            (a_r, a_z, a_n), (q_r, q_z, q_n) = a.chunk(3, dim=1), q.chunk(3, dim=1)
            n = tanh(2, a_n + step(a_r + q_r) * q_n)
            h = n + step(a_z + q_z) * (h - n)
        outputs.append(h)
    return torch.stack(outputs)


@pytest.mark.parametrize("options", NOISES, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_and_a_cell_by_hand(kind, options):
    torch.manual_seed(0)
    own, own_cell, _ = LAYERS[kind]
    x = 3 * torch.randn(5, 4, 6)
    for backend in ("auto", "cpu", "reference"):
        layer = own(6, 19, eval_noise="binary", backend=backend, **options).eval()
        y = layer(x)[0]
        torch.testing.assert_close(y, by_hand(kind, layer, x), rtol=1e-5, atol=1e-5)
        cell = own_cell(6, 19, eval_noise="binary", backend=backend, **options).eval()
        weights = {k.replace("_l0", ""): v for k, v in layer.state_dict().items()}
        cell.load_state_dict(weights)
        state, steps = None, []
        for now in x:
            state = cell(now, state)
            steps.append(state[0] if kind == "lstm" else state)
        torch.testing.assert_close(torch.stack(steps), y, rtol=1e-5, atol=1e-5)
        assert layer.train().rounds is False
        assert layer.eval_noise == "binary"


@pytest.mark.parametrize("options", NOISES[:3], ids=lambda o: "-".join(map(str, o.values())))
def test_training_is_as_without_rounding(options):
    torch.manual_seed(0)
    x, layers = torch.randn(5, 3, 4), [na.NoisyLSTM(4, 7, eval_noise=r, **options) for r in ("binary", "expectation")]
    layers[1].load_state_dict(layers[0].state_dict())
    assert torch.equal(layers[0](x, seed=7)[0], layers[1](x, seed=7)[0])
    assert layers[0].state_dict().keys() == layers[1].state_dict().keys()
    assert ["eval_noise='binary'" in repr(layer) for layer in layers] == [True, False]
    assert not torch.allclose(layers[0].eval()(x)[0], layers[1].eval()(x)[0])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_gradients_are_straight_through(backend):
    """da = u' times the gradient of the gate, in evaluation mode too, so that a rounded layer can be fine-tuned."""
    cell = na.NoisyGRUCell(3, 5, noise=None, hard=False, eval_noise="binary", backend=backend).eval()
    x, h = torch.randn(2, 3), torch.randn(2, 5)
    cell(x, h).sum().backward()
    n = torch.tanh((x @ cell.weight_ih.T + cell.bias_ih + (h @ cell.weight_hh.T + cell.bias_hh))[:, 10:])
    a_r = (x @ cell.weight_ih.T + cell.bias_ih + h @ cell.weight_hh.T + cell.bias_hh)[:, :5]
    q_n = (h @ cell.weight_hh.T + cell.bias_hh)[:, 10:]
    n = torch.tanh((x @ cell.weight_ih.T + cell.bias_ih)[:, 10:] + (a_r >= 0) * q_n)
    torch.testing.assert_close(cell.bias_ih.grad[5:10], (0.25 * (h - n)).sum(0), rtol=1e-4, atol=1e-5)


def test_a_whole_model_there_and_back():
    """Soft layers of torch too, once accelerate has replaced them; tanh, RNN and torch's own modules stay."""
    model = nn.ModuleDict(
        {
            "gate": na.NoisyHardSigmoid("gumbel"),
            "tanh": na.NoisyHardTanh("nah"),
            "lstm": na.NoisyLSTM(3, 4, noise="nah"),
            "gru": na.accelerate(nn.GRU(3, 4)),
            "rnn": na.NoisyRNN(3, 4),
            "plain": nn.Sigmoid(),
        }
    ).eval()
    x = torch.randn(6, 2, 3)
    before = [model[name](x)[0] for name in ("lstm", "gru")]
    assert na.set_eval_noise(model, "binary") == 3
    assert [model[name].eval_noise for name in ("gate", "tanh", "lstm", "gru", "rnn")] == [
        "binary", "expectation", "binary", "binary", "expectation",
    ]  # fmt: skip
    assert model["gate"](torch.tensor([-0.2, 0.0, 9.0])).tolist() == [0.0, 1.0, 1.0]
    assert not any(torch.allclose(model[name](x)[0], y) for name, y in zip(("lstm", "gru"), before, strict=True))
    assert na.set_eval_noise(model, "expectation") == 5
    assert all(torch.equal(model[name](x)[0], y) for name, y in zip(("lstm", "gru"), before, strict=True))
    with pytest.raises(ValueError, match="no gate to round"):
        na.set_eval_noise(nn.Sequential(nn.Sigmoid(), na.NoisyHardTanh()), "binary")
    with pytest.raises(ValueError, match="'round'"):
        na.set_eval_noise(model, "round")


def test_noisify_rounds_the_gates():
    model = na.noisify(
        nn.Sequential(nn.Sigmoid(), nn.Tanh(), nn.RNN(3, 3), nn.GRU(3, 3)), gate_noise="gumbel", eval_noise="binary"
    )
    assert [part.eval_noise for part in model] == ["binary", "expectation", "expectation", "binary"]


def test_other_functions_where_one_chooses():
    x = torch.tensor([-0.1, 0.0, 0.4, float("nan")])
    tanh = na.NoisyHardTanh("nah", eval_noise="binary").eval()
    assert tanh(x)[:3].tolist() == [-1.0, 1.0, 1.0]
    assert tanh(x)[3].isnan()
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert tanh(x.to(dtype))[:3].tolist() == [-1.0, 1.0, 1.0]
    wide = na.NoisyActivation(na.HardPair(0.5, 0.25, -0.5, 2.0), "nah", eval_noise="binary").eval()
    assert wide(torch.tensor([0.9, 1.0])).tolist() == [-0.5, 2.0]
    soft = na.NoisyActivation(na.Pair(torch.sigmoid, na.HARD_SIGMOID.u, limits=(0.0, 1.0)), eval_noise="binary").eval()
    assert soft(x)[:3].tolist() == [0.0, 1.0, 1.0]


def test_an_exported_program_rounds():
    model = na.NoisyGRU(3, 5, noise=None, hard=False, eval_noise="binary").eval()
    x = torch.randn(4, 2, 3)
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x)[0], model(x)[0])
    gate = na.NoisyHardSigmoid("gumbel", eval_noise="binary").eval()
    assert torch.equal(torch.export.export(gate, (x,)).module()(x), (x >= 0).float())
    assert torch.equal(torch.compile(gate, backend="aot_eager", fullgraph=True)(x), (x >= 0).float())


def test_backend_info_says_what_computes_rounded_gates():
    layer = na.NoisyLSTM(3, 5, noise=None, hard=False, eval_noise="binary")
    assert "torch's own layer" in na.backend_info(layer)
    assert "the C kernel" in na.backend_info(layer.eval()).splitlines()[-1]


def test_the_share_at_the_limits(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    x = torch.tensor([[-9.0, -1.0, 0.0, 5.0]])
    report = na.saturation(nn.Sequential(na.NoisyHardSigmoid("nah:alpha=1,c=0")).eval(), x)
    assert report["0"].at_limits == 0.5
    assert "at limits" in str(report)
    model = nn.Sequential(na.NoisyLSTM(3, 6, noise=None, gate_noise="gumbel", hard=False)).eval()
    y = torch.randn(4, 2, 3)
    gates = ("0.l0.i", "0.l0.f", "0.l0.o")
    assert [na.saturation(model, y)[name].at_limits for name in gates] == [0.0] * 3
    na.set_eval_noise(model, "binary")
    report = na.saturation(model, y)
    assert [report[name].at_limits for name in gates] == [1.0] * 3
    assert report["0.l0.g"].at_limits == 0.0
    plain = na.saturation(nn.Sequential(nn.Sigmoid(), nn.ReLU6()), torch.tensor([[0.0, 200.0]]))
    assert plain["0"].at_limits == 0.5  # float32's sigmoid of 200 is 1
