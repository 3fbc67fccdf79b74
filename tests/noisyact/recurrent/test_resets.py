"""Resets and replayed noise: a call equals the calls that it stands for, and wrong arguments are named."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from state_cases import LAYERS, StateCase, check_resets, state_cases
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence, pad_sequence
from torch.utils._pytree import tree_leaves

import noisyact as na
from noisyact.recurrent import functional

CELLS = {"lstm": na.NoisyLSTMCell, "gru": na.NoisyGRUCell, "rnn": na.NoisyRNNCell}
BACKENDS = {
    "reference": ("reference", torch.float64, {}),
    "cpu": ("cpu", torch.float32, {}),
    "cpu float64": ("cpu", torch.float64, {}),
}
"""The backend, the dtype and what else the cases have in common."""
TOLERANCES = {torch.float64: {"rtol": 1e-7, "atol": 1e-8}, torch.float32: {"rtol": 2e-3, "atol": 2e-4}}


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_resets_equal_each_sequence_alone(backend, data):
    name, dtype, fixed = BACKENDS[backend]
    case = data.draw(state_cases(name, dtype=dtype, **fixed))
    check_resets(case, **TOLERANCES[case.dtype])


@pytest.mark.parametrize("kind", LAYERS)
def test_nothing_passes_a_reset(kind):
    """No gradient, and not even what is not finite."""
    layer = LAYERS[kind](3, 4, noise=None, backend="reference")
    x = torch.randn(4, 2, 3, requires_grad=True)
    reset = torch.tensor([[0, 0], [0, 0], [1, 0], [0, 0]]).bool()
    y = layer(x, reset=reset)[0]
    (gradient,) = torch.autograd.grad(y[2:].sum(), x)
    assert not gradient[:2, 0].any()
    assert gradient[:2, 1].any()
    with torch.no_grad():
        x[1, 0] = torch.nan
    y = layer(x, reset=reset)[0]
    assert y[1, 0].isnan().all()
    assert y[2:].isfinite().all()


@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_of_the_reference(kind):
    case = StateCase(kind, steps=3, batch=2, hidden=2, hard=False, noise=None, zoneout=0.3, recurrent_dropout=0.3)
    case.reset = torch.tensor([[True, False], [False, True], [False, False]])

    def run(*leaves):
        names = [name for name, _ in case.layer.named_parameters()]
        states = leaves[1 : 1 + 2 * len(case.first)]
        first, anew = states[: len(case.first)], states[len(case.first) :]
        arguments = {"reset": case.reset, "reset_to": case.state(anew), "seed": 5}
        weights = dict(zip(names, leaves[1 + len(states) :], strict=True))
        return torch.func.functional_call(case.layer, weights, (leaves[0], case.state(first)), arguments)[0]

    assert torch.autograd.gradcheck(run, case.leaves())


@pytest.mark.parametrize("kind", LAYERS)
def test_a_rollout_has_the_noise_of_one_call(kind):
    """Step by step, a part of the rows, and cells: all with everything that is random."""
    options = {"zoneout": 0.3, "recurrent_dropout": 0.4, "backend": "reference", "dtype": torch.float64}
    layer = LAYERS[kind](3, 5, 2, dropout=0.5, **options)
    x, reset = 2 * torch.randn(6, 4, 3, dtype=torch.float64), torch.rand(6, 4) < 0.3
    generator = torch.get_rng_state()
    whole, last = layer(x, reset=reset, seed=11)
    assert torch.equal(torch.get_rng_state(), generator)
    again, _ = layer(x, reset=reset, seed=torch.tensor(11))
    assert torch.equal(again, whole)
    assert not torch.equal(layer(x, reset=reset, seed=12)[0], whole)
    assert not torch.equal(layer(x, reset=reset)[0], layer(x, reset=reset)[0])
    state, steps = None, []
    for t in range(6):
        now = slice(t, t + 1)
        y, state = layer(x[now], state, reset=reset[now], seed=11, first_step=t)
        steps.append(y)
    torch.testing.assert_close((torch.cat(steps), state), (whole, last))
    rows = torch.tensor([3, 1])
    some, _ = layer(x[:, rows], reset=reset[:, rows], seed=11, rows=rows)
    torch.testing.assert_close(some, whole[:, rows])
    one, cell = LAYERS[kind](3, 5, **options), CELLS[kind](3, 5, **options)
    own = {name.removesuffix("_l0"): value for name, value in one.state_dict().items()}
    cell.load_state_dict(own)
    whole, state, steps = one(x, reset=reset, seed=11)[0], None, []
    for t in range(6):
        state = cell(x[t], state, reset=reset[t], seed=11, step=t)
        steps.append(state[0] if kind == "lstm" else state)
    torch.testing.assert_close(torch.stack(steps), whole)
    some, right = (tree_leaves(cell(x[0][own], seed=11, rows=own)) for own in (rows, torch.arange(4)))
    torch.testing.assert_close(some, [state[rows] for state in right])


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_seed_alone_needs_no_reference(backend):
    """With the first positions, both backends have the same noise in every layer and direction."""
    layer = na.NoisyGRU(3, 5, 2, bidirectional=True, dropout=0.3, backend=backend)
    right = na.NoisyGRU(3, 5, 2, bidirectional=True, dropout=0.3, backend="reference")
    right.load_state_dict(layer.state_dict())
    x = 3 * torch.randn(4, 2, 3)
    torch.testing.assert_close(layer(x, seed=-3), right(x, seed=-3), rtol=1e-4, atol=1e-5)


def test_the_noise_of_a_row_does_not_depend_on_packing():
    layer = na.NoisyGRU(3, 4, zoneout=0.2, dtype=torch.float64, backend="reference")
    sequences = [torch.randn(n, 3, dtype=torch.float64) for n in (2, 5, 3)]
    padded, _ = layer(pad_sequence(sequences), seed=1)
    for rows in (None, torch.arange(3)):
        packed, _ = layer(pack_sequence(sequences, enforce_sorted=False), seed=1, rows=rows)
        for b, sequence in enumerate(sequences):
            torch.testing.assert_close(pad_packed_sequence(packed)[0][: len(sequence), b], padded[: len(sequence), b])


def test_layouts():
    layer = na.NoisyLSTM(3, 4, batch_first=True, dtype=torch.float64)
    x, reset = torch.randn(2, 5, 3, dtype=torch.float64), torch.rand(2, 5) < 0.5
    anew = torch.randn(1, 1, 4, dtype=torch.float64), torch.randn(1, 1, 4, dtype=torch.float64)
    y, _ = layer(x, reset=reset, reset_to=anew, seed=4)
    for b in range(2):
        alone = tuple(state[:, 0] for state in anew)
        own, _ = layer(x[b], reset=reset[b], reset_to=alone, seed=4, rows=torch.tensor([b]))
        torch.testing.assert_close(own, y[b])
    cell, state = na.NoisyGRUCell(3, 4, noise=None), torch.randn(4)
    new = cell(X[0, 0], state, reset=torch.tensor(True), reset_to=2 * state)
    torch.testing.assert_close(new, cell(X[0, 0], 2 * state))
    weights = layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0
    arguments = {"p": layer.noise.p_l0, "reset": reset.t(), "reset_to": tuple(s[0] for s in anew), "seed": 4}
    same, _ = functional.noisy_lstm(x.transpose(0, 1), None, *weights, **arguments)
    torch.testing.assert_close(same.transpose(0, 1), y)


def test_a_soft_layer_without_noise_has_resets():
    """What users of nn.LSTM have; without resets it is torch's own layer."""
    layer = na.NoisyLSTM(3, 4, noise=None, hard=False)
    x, reset = torch.randn(5, 2, 3), torch.zeros(5, 2, dtype=torch.bool)
    torch.testing.assert_close(layer(x, reset=reset, seed=1), layer(x))
    reset[2] = True
    torch.testing.assert_close(layer(x, reset=reset)[0][2:], layer(x[2:])[0])


def test_compiled_in_one_graph():
    torch.compiler.reset()
    layer = na.NoisyRNN(3, 4, zoneout=0.2, recurrent_dropout=0.3, backend="reference")
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    x, reset = torch.randn(2, 2, 3), torch.rand(2, 2) < 0.5
    arguments = {"reset": reset, "seed": 5, "first_step": 2, "rows": torch.tensor([3, 1])}
    torch.testing.assert_close(compiled(x, **arguments), layer(x, **arguments))


X, RESET = torch.randn(5, 2, 3), torch.zeros(5, 2, dtype=torch.bool)
WRONG = [
    ({"reset": RESET.float()}, TypeError, r"dtype torch.bool, not torch.float32: use reset.bool\(\)"),
    ({"reset": RESET.t()}, ValueError, r"reset must be of shape \(5, 2\)"),
    ({"reset": [True]}, TypeError, "reset must be a bool tensor, not list"),
    ({"reset_to": (torch.zeros(1, 1, 4),) * 2}, ValueError, "it needs reset"),
    ({"reset": RESET, "reset_to": torch.zeros(1, 1, 4)}, TypeError, r"reset_to must be the tensors \(h, c\)"),
    ({"reset": RESET, "reset_to": (torch.zeros(1, 3, 4),) * 2}, ValueError, r"not \(1, 3, 4\)"),
    ({"reset": RESET, "reset_to": (torch.zeros(1, 2, 5),) * 2}, ValueError, r"reset_to must be of shape \(2, 4\)"),
    ({"first_step": 3}, ValueError, "they need seed"),
    ({"rows": torch.arange(2)}, ValueError, "they need seed"),
    ({"seed": 1, "rows": torch.arange(3)}, ValueError, r"rows must be of shape \(2,\)"),
    ({"seed": 1, "rows": torch.ones(2)}, TypeError, "rows must be an int64 tensor, not torch.float32"),
    ({"seed": 1, "first_step": -1}, ValueError, "first_step=-1"),
    ({"seed": 1, "first_step": 2**31 - 3}, ValueError, "5 steps must be in"),
    ({"seed": 1, "first_step": 0.5}, TypeError, "first_step must be an int, not 0.5"),
    ({"seed": 2**63}, ValueError, "64-bit integers are allowed"),
    ({"seed": 0.5}, TypeError, "seed must be an int or a tensor"),
    ({"seed": torch.tensor(0.5)}, ValueError, "seed must be an int or one int64"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        na.NoisyLSTM(3, 4)(X, **arguments)


def test_what_cannot_run_says_so():
    packed = pack_sequence([torch.randn(n, 3) for n in (3, 2)])
    with pytest.raises(ValueError, match="NoisyGRU: reset needs padded input, not a PackedSequence"):
        na.NoisyGRU(3, 4)(packed, reset=torch.zeros(3, 2, dtype=torch.bool))
    for cell in (na.NoisyLSTMCell(3, 4), na.NoisyGRUCell(3, 4)):
        with pytest.raises(ValueError, match=r"reset must be of shape \(5,\)"):
            cell(torch.randn(5, 3), reset=torch.zeros(4, dtype=torch.bool))
        with pytest.raises(ValueError, match=r"step and rows .* they need seed"):
            cell(torch.randn(5, 3), step=2)
        with pytest.raises(ValueError, match=r"^step=-1"):
            cell(torch.randn(5, 3), seed=1, step=-1)
