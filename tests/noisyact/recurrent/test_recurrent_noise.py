"""The noise of the recurrent layers: the paper's equations by hand, what must not change a result, and what must."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence, pad_sequence

import noisyact as na
from noisyact.recurrent import functional

LAYERS = {"lstm": na.NoisyLSTM, "gru": na.NoisyGRU, "rnn": na.NoisyRNN}
CELLS = {"lstm": na.NoisyLSTMCell, "gru": na.NoisyGRUCell, "rnn": na.NoisyRNNCell}
FUNCTIONS = {"lstm": functional.noisy_lstm, "gru": functional.noisy_gru, "rnn": functional.noisy_rnn}
COUNTS = {"lstm": (4, 5), "gru": (3, 3), "rnn": (1, 1)}  # gates, nonlinearities
C, ALPHA = 1.5, 1.15  # of the half-normal noise in the sequences by hand


def noisy(x, u, low, high, p, xi):
    """Algorithm 1 of the paper with half-normal noise, in plain floats."""
    h = max(low, min(high, u))
    delta = h - u
    sigma = C * (1 / (1 + math.exp(-p * delta)) - 0.5) ** 2
    d = -math.copysign(1.0, x) * math.copysign(1.0, 1 - ALPHA)
    return ALPHA * h + (1 - ALPHA) * u + d * sigma * abs(xi)


def sigm(x, p, xi):
    return noisy(x, 0.25 * x + 0.5, 0.0, 1.0, p, xi)


def tanh(x, p, xi):
    return noisy(x, x, -1.0, 1.0, p, xi)


def by_hand(kind, x, h, c, w_ih, w_hh, b_ih, b_hh, p, xi):
    """Three steps of one sequence; every argument a (nested) list of floats. Returns every h and the last c."""
    size, every = len(h), []
    for x_t, xi_t in zip(x, xi, strict=True):
        a = [sum(w * v for w, v in zip(row, x_t, strict=True)) + b for row, b in zip(w_ih, b_ih, strict=True)]
        q = [sum(w * v for w, v in zip(row, h, strict=True)) + b for row, b in zip(w_hh, b_hh, strict=True)]
        new_h, new_c = [], []
        for j in range(size):

            def of(n, j=j, xi_t=xi_t):
                return p[n * size + j], xi_t[n][j]

            total = [a[n * size + j] + q[n * size + j] for n in range(len(a) // size)]
            if kind == "lstm":
                i, f, o = sigm(total[0], *of(0)), sigm(total[1], *of(1)), sigm(total[3], *of(3))
                cell = f * c[j] + i * tanh(total[2], *of(2))
                new_c.append(cell)
                new_h.append(o * tanh(cell, *of(4)))
            elif kind == "gru":
                r, z = sigm(total[0], *of(0)), sigm(total[1], *of(1))
                n = tanh(a[2 * size + j] + r * q[2 * size + j], *of(2))
                new_h.append((1 - z) * n + z * h[j])
            else:
                new_h.append(tanh(total[0], *of(0)))
        h, c = new_h, new_c
        every.append(h)
    return every, c


def arguments(kind, steps=3, batch=2, size=3, hidden=2, scale=2.0):
    """x, the first states, the weights, p and xi, float64, strong enough that about half the units saturate."""
    gates, count = COUNTS[kind]
    shapes = [(gates * hidden, size), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,)]
    weights = [scale * torch.randn(shape, dtype=torch.float64) for shape in shapes]
    states = [torch.randn(batch, hidden, dtype=torch.float64) for _ in range(1 + (kind == "lstm"))]
    x = torch.randn(steps, batch, size, dtype=torch.float64)
    p = torch.randn(count * hidden, dtype=torch.float64)
    return x, states, weights, p, torch.randn(steps, batch, count, hidden, dtype=torch.float64)


def state_argument(states):
    return tuple(states) if len(states) == 2 else states[0]


@pytest.mark.parametrize("kind", LAYERS)
def test_three_steps_by_hand(kind):
    x, states, weights, p, xi = arguments(kind)
    scheme = f"nah:c={C},alpha={ALPHA}"
    y, last = FUNCTIONS[kind](x, state_argument(states), *weights, noise=scheme, p=p, xi=xi)
    cell = CELLS[kind](3, 2, noise=scheme, dtype=torch.float64)
    with torch.no_grad():
        for name, value in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), weights, strict=True):
            getattr(cell, name).copy_(value)
        cell.noise.p.copy_(p)
        carried, from_cell = state_argument(states), []
        for x_t, xi_t in zip(x, xi, strict=True):
            carried = cell(x_t, carried, xi=xi_t)
            from_cell.append(carried[0] if kind == "lstm" else carried)
    for b in range(2):
        c = states[1][b].tolist() if kind == "lstm" else [0.0, 0.0]
        numbers = [w.tolist() for w in weights]
        every, last_c = by_hand(
            kind, x[:, b].tolist(), states[0][b].tolist(), c, *numbers, p.tolist(), xi[:, b].tolist()
        )
        expected = torch.tensor(every, dtype=torch.float64)
        torch.testing.assert_close(y[:, b], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(torch.stack(from_cell)[:, b], expected, rtol=1e-12, atol=1e-12)
        if kind == "lstm":
            for found in (last[1][b], carried[1][b]):
                torch.testing.assert_close(found, torch.tensor(last_c, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("noise", ["nan:c=2", "nah:c=2,alpha=0.9", "nanil:c=2", "nani"])
@pytest.mark.parametrize("kind", LAYERS)
def test_reference_gradients(kind, noise):
    torch.manual_seed(11)  # its points lie away from the kinks, where there is no derivative
    x, states, weights, p, xi = arguments(kind, scale=1.0)

    def run(x, p, *rest):
        given = state_argument(rest[: len(states)])
        y, last = FUNCTIONS[kind](x, given, *rest[len(states) :], noise=noise, p=p, xi=xi)
        return (y, *last) if kind == "lstm" else (y, last)

    leaves = [t.requires_grad_() for t in (x, p, *states, *weights)]
    if noise == "nani":  # p is no part of it
        leaves[1] = p.detach()
    assert torch.autograd.gradcheck(run, leaves, eps=1e-7, atol=1e-6)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_padding_and_packing_change_nothing(kind, bidirectional, backend):
    layer = LAYERS[kind](4, 6, 2, bidirectional=bidirectional, backend=backend).eval()
    sequences_ = [3 * torch.randn(n, 4) for n in (3, 8, 5, 1)]
    alone = [layer(sequence) for sequence in sequences_]
    y, last = layer(pack_sequence(sequences_, enforce_sorted=False))
    padded, lengths = pad_packed_sequence(y)
    for b, (output, state) in enumerate(alone):
        torch.testing.assert_close(padded[: lengths[b], b], output, rtol=1e-4, atol=1e-5)
        for one, all_ in zip(state if kind == "lstm" else (state,), last if kind == "lstm" else (last,), strict=True):
            torch.testing.assert_close(all_[:, b], one, rtol=1e-4, atol=1e-5)
    if not bidirectional:
        for padding in (0, 1, 7):
            batch = F.pad(pad_sequence(sequences_), (0, 0, 0, 0, 0, padding), value=100.0)
            y, _ = layer(batch)
            for b, (output, _) in enumerate(alone):
                torch.testing.assert_close(y[: len(output), b], output, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_sequence_in_two_pieces_with_the_state_carried(kind):
    layer = LAYERS[kind](4, 6, 2).eval()
    x = 3 * torch.randn(9, 2, 4)
    whole, end = layer(x)
    first, state = layer(x[:4])
    second, last = layer(x[4:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(last, end)
    x, states, weights, p, xi = arguments(kind, steps=6)
    run = FUNCTIONS[kind]
    whole, end = run(x, state_argument(states), *weights, p=p, xi=xi)
    first, state = run(x[:2], state_argument(states), *weights, p=p, xi=xi[:2])
    second, last = run(x[2:], state, *weights, p=p, xi=xi[2:])
    torch.testing.assert_close((torch.cat([first, second]), last), (whole, end), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_noise_is_fresh_everywhere(backend):
    """With zero weights and a large bias every unit is saturated alike: what is left is the noise itself."""
    layer = na.NoisyRNN(1, 64, 2, bidirectional=True, noise="nan:c=4,alpha=1.0", backend=backend)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.fill_(3.0 if name.startswith("bias") else 1.0 if name.startswith("noise") else 0.0)
    x = torch.zeros(20, 30, 1)
    torch.manual_seed(5)
    y = layer(x)[0]
    torch.manual_seed(5)
    assert torch.equal(layer(x)[0], y)
    again = layer(x)[0]
    # The lower layer's noise, seen as the last state: two directions of layer 0, two of layer 1.
    last = layer(x)[1]
    noise = (y - y.mean()).detach()
    pairs = {
        "calls": (y, again), "steps": (y[1:], y[:-1]), "rows": (y[:, 1:], y[:, :-1]),
        "units": (y[..., 1:], y[..., :-1]),
        "directions": (y[..., :64], y[..., 64:]), "layers": (last[0], last[2]), "ends": (last[0], last[1]),
    }  # fmt: skip
    for name, (a, b) in pairs.items():
        both = torch.stack([a.detach().reshape(-1), b.detach().reshape(-1)])
        assert both.std(dim=1).min() > 0.3, name
        assert abs(torch.corrcoef(both)[0, 1]) < 5 / math.sqrt(both.shape[1]), name
    assert abs(noise.std() / noise.abs().mean() - math.sqrt(math.pi / 2)) < 0.02  # normal
    state = torch.get_rng_state()
    layer.eval()(x)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("kind", "count"), [("lstm", 5), ("gru", 3), ("rnn", 1)])
def test_p_and_the_scale(kind, count):
    layer = LAYERS[kind](4, 300, 2, bidirectional=True, noise="nah:alpha=1.0")
    model = nn.Sequential(layer)
    found = list(na.noise_parameters(model))
    assert [p.shape for p in found] == [(count * 300,)] * 4
    assert {id(p) for p in found} == {id(p) for name, p in model.named_parameters() if ".noise." in name}
    for p in found:
        assert -1 <= p.min() < -0.9 < 0.9 < p.max() <= 1
        assert abs(p.mean()) < 0.15
    hard = LAYERS[kind](4, 300, 2, bidirectional=True, noise=None)
    hard.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("noise.")})
    x = 100 * torch.randn(4, 2, 4)  # far enough out for units of so wide a layer to saturate
    assert not torch.allclose(layer(x)[0], hard(x)[0], atol=1e-3)
    scheduler = na.NoiseScheduler(model, na.anneal.linear(1.0, 0.0, steps=2))
    assert layer.noise.scale == 1
    scheduler.step()
    assert layer.noise.scale == 0.5
    scheduler.step()
    torch.testing.assert_close(layer(x), hard(x))
    assert na.set_noise_scale(model, 0.25) == 1
    assert not torch.allclose(layer(x)[0], hard(x)[0], atol=1e-3)
