"""Resets, replayed noise, zoneout and recurrent dropout in the C kernels: outputs and gradients of the reference."""

import pytest
import torch
from state_cases import LAYERS, StateCase
from torch.nn.utils.rnn import pack_sequence
from torch.utils._pytree import tree_leaves

import noisyact as na
from noisyact.ops.recurrent.cpu import registration

CELLS = {"lstm": na.NoisyLSTMCell, "gru": na.NoisyGRUCell, "rnn": na.NoisyRNNCell}
CLOSE = {torch.float64: {"rtol": 1e-8, "atol": 1e-9}, torch.float32: {"rtol": 2e-3, "atol": 3e-4}}
ALL = {"zoneout": 0.3, "recurrent_dropout": 0.4}
POSITION = {"first_step": 7, "rows": torch.tensor([2**31 + 5, 3, -1, 2**33 + 4])}
CASES = {
    "resets": {},
    "resets of a wide layer": {"hidden": 35, "batch": 9, "position": {}},
    "soft, resets to zero": {"hard": False, "noise": None, "learned": False},
    "zoneout": {"zoneout": 0.3, "share": 0.0},
    "recurrent dropout": {"recurrent_dropout": 0.4, "share": 0.0},
    "all, both directions": {**ALL, "bidirectional": True, "layers": 2},
    "all, soft": {**ALL, "hard": False, "hidden": 17},
    "all, projected": {**ALL, "projection": 18, "hidden": 19},
    "all, projected, both directions, wide": {**ALL, "projection": 3, "bidirectional": True, "hidden": 35},
}


def results(case: StateCase, backend: str, position: dict) -> list[torch.Tensor]:
    """The output, the final states and all gradients; and, in inference, the output and the states."""
    case.layer.backend = backend
    reset_to = case.state(case.anew) if case.learned else None
    arguments = {"reset": case.reset, "reset_to": reset_to, "seed": case.seed, **position}
    found = tree_leaves(case.layer(case.x, case.state(case.first), **arguments))
    with torch.no_grad():
        more = tree_leaves(case.layer(case.x, case.state(case.first), **arguments))
        case.layer.eval()
        more += tree_leaves(case.layer(case.x, case.state(case.first), **arguments))
        case.layer.train()
    return [*found, *case.gradients(found), *more]


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_equals_the_reference(kind, name, dtype):
    options = {"batch": 4, **CASES[name]}
    if kind != "lstm" and "projection" in options:
        pytest.skip("only the LSTM has projections")
    position = options.pop("position", POSITION)
    case = StateCase(kind, dtype=dtype, **options)
    right = results(case, "reference", position)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found = results(case, "cpu", position)
        torch.testing.assert_close(found, right, **CLOSE[dtype])
        if threads == 1:
            first = found
    assert all(torch.equal(a, b) for a, b in zip(first, found, strict=True))


@pytest.fixture(autouse=True)
def _same_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("kind", LAYERS)
def test_packed_sequences_have_masks(kind):
    layer = LAYERS[kind](3, 19, bidirectional=True, zoneout=0.3, recurrent_dropout=0.4)
    sequences, found = [torch.randn(n, 3) for n in (2, 5, 3, 1)], []
    for layer.backend in ("cpu", "reference"):
        y, last = layer(pack_sequence(sequences, enforce_sorted=False), seed=1)
        total = y.data.square().sum() + sum(state.sin().sum() for state in tree_leaves(last))
        found.append([y.data, *tree_leaves(last), *torch.autograd.grad(total, list(layer.parameters()))])
    torch.testing.assert_close(*found, **CLOSE[torch.float32])


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("kind", CELLS)
def test_a_cell_has_a_position(kind):
    cell, x, found = CELLS[kind](3, 19, **ALL), 3 * torch.randn(4, 3), []
    for cell.backend in ("cpu", "reference"):
        new = tree_leaves(cell(x, reset=torch.tensor([True, False] * 2), seed=5, step=2, rows=POSITION["rows"]))
        total = sum(state.square().sum() for state in new)
        found.append([*new, *torch.autograd.grad(total, list(cell.parameters()), materialize_grads=True)])
    torch.testing.assert_close(*found, **CLOSE[torch.float32])


@pytest.mark.parametrize("kind", LAYERS)
def test_compiled(kind):
    torch.compiler.reset()
    case = StateCase(kind, "cpu", batch=4, dtype=torch.float32, **ALL)
    compiled = torch.compile(lambda *given, **named: case.layer(*given, **named), fullgraph=True, backend="aot_eager")
    arguments = {"reset": case.reset, "reset_to": case.state(case.anew), "seed": torch.tensor(5), **POSITION}
    found = []
    for run in (case.layer, compiled):
        outputs = tree_leaves(run(case.x, case.state(case.first), **arguments))
        found.append([*outputs, *case.gradients(outputs)])
    torch.testing.assert_close(*found)


def test_the_operators_fit_what_they_declare():
    case = StateCase("lstm", "cpu", batch=4, projection=3, dtype=torch.float32)
    weights = [case.layer.weight_ih_l0, case.layer.weight_hh_l0, None, None, None, case.layer.weight_hr_l0]
    h, c = (state[0].detach().requires_grad_() for state in case.first)
    anew = [state[0].expand(4, -1) for state in case.anew]
    scale = torch.tensor(0.5)
    settings = ("lstm", "nah", "", True, scale, scale, False)
    rules = (case.reset, *anew, POSITION["rows"], torch.tensor(3), 0.3, 0.2, 0.4, 7)
    arguments = (case.x.detach().flatten(0, 1).requires_grad_(), None, h, c, *weights, torch.tensor(7), *settings)
    torch.library.opcheck(registration._layer, (*arguments, *rules))
    for index, wrong in enumerate((case.reset[1:], anew[0][:, 1:], anew[1][1:], torch.arange(3), torch.arange(2))):
        with pytest.raises(ValueError, match="must"):
            registration._layer(*arguments, *rules[:index], wrong, *rules[index + 1 :])
    for index, wrong in ((5, 1.0), (6, -0.1), (7, 2.0), (8, -1), (8, 2**31 - 3)):
        with pytest.raises(ValueError, match=r"allowed|must be in"):
            registration._layer(*arguments, *rules[:index], wrong, *rules[index + 1 :])
    with pytest.raises(ValueError, match="a packed sequence has no resets"):
        registration._layer(arguments[0], torch.tensor([4, 4, 4, 4, 3, 1]), *arguments[2:], *rules)
