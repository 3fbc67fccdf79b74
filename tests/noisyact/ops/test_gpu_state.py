"""Resets, replayed noise, zoneout and recurrent dropout in the GPU kernels: outputs and gradients of the reference."""

import pytest
import torch
from recurrent_cases import Case
from state_cases import LAYERS, StateCase
from torch.nn.utils.rnn import pack_sequence
from torch.utils._pytree import tree_leaves

import noisyact as na
from noisyact.ops.recurrent.gpu import layers as gpu

pytestmark = pytest.mark.gpu
CELLS = {"lstm": na.NoisyLSTMCell, "gru": na.NoisyGRUCell, "rnn": na.NoisyRNNCell}
# Relative errors by norm, of outputs and of gradients. In 16 bits some values fall on the other side of a kink, where
# the slope jumps, and an error of one step is an input of the next. One such value can exceed a whole gradient (float64
# arithmetic with the roundings of bfloat16 has the same error), so one number in a thousand is left out there.
BOUNDS = {torch.float32: (1e-4, 5e-3), torch.bfloat16: (5e-2, 0.4)}
ALL = {"share": 0.1, "zoneout": (0.3, 0.2), "dropout": 0.4, "first_step": 7, "places": True}
RULES = {
    "resets": {"share": 0.05},
    "resets to zeros": {"share": 0.05, "learned": False},
    "zoneout": {"zoneout": (0.3, 0.2)},
    "expected zoneout": {"zoneout": (0.3, 0.2), "masked": False},
    "recurrent dropout": {"dropout": 0.4},
    "position": {"first_step": 2**31 - 200, "places": True},
    "all": ALL,
}
# Weights in registers, with products in the launch or without; in parts; and with more units than programs at once.
SIZES = [(20, 16, 32), (128, 16, 128), (35, 20, 650), (35, 64, 512), (12, 3, 1500), (9, 1000, 512)]
POSITION = {"first_step": 7, "rows": torch.tensor([2**31 + 5, 3, -1, 2**33 + 4])}


@pytest.fixture(autouse=True)
def _exact_products():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def off(mine, right):
    """The relative error by norm; in 16 bits without the largest errors, one in a thousand."""
    errors = (mine.double() - right.double()).abs().flatten()
    if mine.dtype is torch.bfloat16:
        errors = errors.sort().values[: len(errors) - len(errors) // 1000]
    return (errors.norm() / right.double().norm().clamp(min=1e-9)).item()


def compare(mine, right, bound):
    """Raise an error unless all are finite and close."""
    for index, (one, other) in enumerate(zip(mine, right, strict=True)):
        assert one.isfinite().all(), index
        if other.norm() > 1e-6:
            assert off(one, other) <= bound, f"{index}: {off(one, other)}"


def check(case):
    """Outputs and gradients against the reference in float64; and the same outputs without gradients."""
    of_outputs, of_gradients = BOUNDS[case.dtype]
    right, wide = case.reference()
    mine = case.by_kernels()
    compare(mine, right, of_outputs)
    found, wanted = case.gradients(mine, case.leaves()), case.gradients(right, wide)
    compare(found.values(), wanted.values(), of_gradients)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(case.by_kernels(), mine, strict=True))
    return mine, found


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_every_size_equals_the_reference(kind, size, dtype):
    for turn, name in enumerate(("resets", "all")):
        check(Case(kind, *size, inputs=size[2], dtype=dtype, state=turn == 0, device="cuda", **RULES[name]))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_every_rule_equals_the_reference(kind, name):
    packs = "share" not in RULES[name]
    for hidden, reverse, hard in ((33, False, True), (70, True, False), (290, True, True)):
        rules = {"packed": packs, "reverse": reverse, **RULES[name]}
        check(Case(kind, 11, 21, hidden, hard=hard, state=hard, device="cuda", **rules))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_repeats_are_equal_to_the_bit(kind):
    case = Case(kind, 20, 20, 650, device="cuda", **ALL)
    results = []
    for _ in range(3):
        mine = case.by_kernels()
        results.append([*mine, *case.gradients(mine, case.leaves()).values()])
    for again in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], again, strict=True))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_launch_a_step_gives_the_same(kind, monkeypatch):
    case = Case(kind, 7, 20, 300, device="cuda", **ALL)
    right = case.by_kernels()
    gradients = case.gradients(right, case.leaves())
    for name in ("forward_plan", "backward_plan"):
        chosen = getattr(gpu, name)
        monkeypatch.setattr(gpu, name, lambda *a, chosen=chosen: chosen(*a[:4], 0))
    mine = case.by_kernels()
    compare(mine, right, 1e-4)
    compare(case.gradients(mine, case.leaves()).values(), gradients.values(), 1e-3)


OPTIONS = {
    "resets": {},
    "resets of a wide layer": {"hidden": 35, "batch": 9},
    "soft, resets to zero": {"hard": False, "learned": False, "recurrent_dropout": 0.4},
    "zoneout": {"zoneout": 0.3, "share": 0.0},
    "recurrent dropout": {"recurrent_dropout": 0.4, "share": 0.0},
    "all, two layers, both directions": {
        "zoneout": 0.3, "recurrent_dropout": 0.4, "dropout": 0.5, "layers": 2, "bidirectional": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", LAYERS)
def test_a_module_equals_the_reference(kind, name):
    case = StateCase(kind, "triton", dtype=torch.float32, device="cuda", **{"batch": 4, **OPTIONS[name]})
    rows = {} if case.batch != 4 else {"first_step": 7, "rows": POSITION["rows"].cuda()}
    found = []
    for case.layer.backend in ("triton", "reference"):
        reset_to = case.state(case.anew) if case.learned else None
        arguments = {"reset": case.reset, "reset_to": reset_to, "seed": case.seed, **rows}
        outputs = tree_leaves(case.layer(case.x, case.state(case.first), **arguments))
        case.layer.eval()
        expected = tree_leaves(case.layer(case.x, case.state(case.first), **arguments))
        case.layer.train()
        found.append([*outputs, *expected, *case.gradients(outputs), *case.gradients(expected)])
    torch.testing.assert_close(*found, rtol=2e-3, atol=3e-4)


@pytest.mark.parametrize("kind", LAYERS)
def test_packed_sequences_have_masks(kind):
    layer = LAYERS[kind](3, 19, bidirectional=True, zoneout=0.3, recurrent_dropout=0.4, device="cuda")
    sequences, found = [torch.randn(n, 3, device="cuda") for n in (2, 5, 3, 1)], []
    for layer.backend in ("triton", "reference"):
        y, last = layer(pack_sequence(sequences, enforce_sorted=False), seed=1)
        total = y.data.square().sum() + sum(state.sin().sum() for state in tree_leaves(last))
        found.append([y.data, *tree_leaves(last), *torch.autograd.grad(total, list(layer.parameters()))])
    torch.testing.assert_close(*found, rtol=2e-3, atol=3e-4)


@pytest.mark.parametrize("kind", CELLS)
def test_a_cell_has_a_position(kind):
    cell, x, found = CELLS[kind](3, 19, zoneout=0.3, device="cuda"), 3 * torch.randn(4, 3, device="cuda"), []
    rows, reset = POSITION["rows"].cuda(), torch.tensor([True, False] * 2, device="cuda")
    for cell.backend in ("triton", "reference"):
        new = tree_leaves(cell(x, reset=reset, seed=5, step=2, rows=rows))
        total = sum(state.square().sum() for state in new)
        found.append([*new, *torch.autograd.grad(total, list(cell.parameters()), materialize_grads=True)])
    torch.testing.assert_close(*found, rtol=2e-3, atol=3e-4)


@pytest.mark.parametrize("kind", LAYERS)
def test_compiled_and_recorded(kind):
    """A compiled layer and a replayed CUDA graph give the results of an eager call."""
    torch.compiler.reset()
    case = StateCase(
        kind, "triton", batch=4, zoneout=0.3, recurrent_dropout=0.4, dtype=torch.float32, device="cuda"
    )  # fmt: skip
    arguments = {"reset": case.reset, "reset_to": case.state(case.anew), "seed": torch.tensor(5, device="cuda")}
    arguments |= {"first_step": 7, "rows": POSITION["rows"].cuda()}

    def run():
        return tree_leaves(case.layer(case.x, case.state(case.first), **arguments))

    eager, compiled = run(), torch.compile(run, fullgraph=True)()
    torch.testing.assert_close(compiled, eager)
    torch.testing.assert_close(case.gradients(compiled), case.gradients(eager), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = run()
        graph.replay()
        torch.testing.assert_close(recorded, eager)


def test_auto_uses_the_kernels():
    layer = na.NoisyLSTM(8, 16, zoneout=0.1, recurrent_dropout=0.2).cuda()
    assert "the Triton kernels" in na.backend_info(layer)
