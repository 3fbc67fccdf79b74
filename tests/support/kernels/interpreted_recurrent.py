"""The GPU kernels of the recurrent layers and cells by Triton's interpreter: test_interpreted_kernels.py starts these.

All steps are in one launch, whose programs wait for each other: they run in turns.
"""

import pytest
import torch
from programs_in_turns import take_turns
from recurrent_cases import PLANS, Case, by_teams
from torch._dynamo.testing import CompileCounterWithBackend

import noisyact as na
from noisyact.noise import recurrent_normal, recurrent_positions
from noisyact.ops.recurrent import cell, reference
from noisyact.ops.recurrent.gpu import launches, registration
from noisyact.ops.recurrent.gpu import layers as gpu
from noisyact.ops.recurrent.gpu import plan as plans
from noisyact.ops.recurrent.gpu.call import packed_rows
from noisyact.ops.recurrent.gpu.steps import cell as step
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES, LayerWeights

# Triton 3.6 asks NumPy for numbers in a way that NumPy 2.4 no longer answers and earlier ones warn about.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array")
KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
CASES = [
    Case("lstm", 3, 3, 17),
    Case("lstm", 1, 20, 1, noise="nan:alpha=1.0"),
    Case("lstm", 3, 5, 7, noise="nani", packed=True),
    Case("lstm", 3, 5, 17, noise="nah:clip=True", packed=True, reverse=True),
    Case("lstm", 2, 3, 17, noise="nanis", gate_noise="nanil", hard=False),
    Case("lstm", 2, 3, 5, noise=None, hard=False, reverse=True),
    Case("lstm", 2, 3, 33, noise="nan", state=False, has_p=False, bias=False),
    Case("lstm", 2, 3, 9, noise="nah:draw=centred", gate_noise="nah:draw=mean"),
    Case("gru", 2, 3, 9, noise="nan:draw=mean", gate_noise="nah:draw=centred"),
    Case("lstm", 2, 3, 9, noise="nanil:c=9,draw=mean", gate_noise="nani:sigma=0.5,draw=mean"),
    Case("gru", 2, 20, 17, noise="nan:alpha=1.0"),
    Case("gru", 3, 5, 7, packed=True, reverse=True),
    Case("gru", 3, 3, 17, state=False, draw=False),
    Case("gru", 2, 3, 17, noise="nanil", hard=False, bias=False),
    Case("rnn_tanh", 3, 3, 17, noise="nanil", packed=True),
    Case("rnn_relu", 2, 3, 5, reverse=True),
    Case("rnn_tanh", 2, 3, 5, noise="nanis", hard=False, state=False),
    Case("rnn_tanh", 3, 3, 270),
    Case("lstm", 2, 3, 9, noise="straight-through:width=0.5", gate_noise="gumbel"),
    Case("gru", 2, 3, 9, noise="nah", gate_noise="straight-through:binary=True", hard=False),
    Case("lstm", 2, 3, 5, noise=None, gate_noise="hard-concrete", hard=False, draw=False),
    Case("gru", 2, 3, 5, noise="saturating-sigmoid", gate_noise="slope:slope=2", packed=True),
]


def close(mine, right, name=""):
    # A gradient is a sum of terms of order one, whose rounding remains where the sum itself is almost zero.
    scale = max(right.abs().max().item(), 1e-2)
    torch.testing.assert_close(mine.double() / scale, right / scale, rtol=0, atol=2e-5, msg=lambda m: f"{name}: {m}")


def check_case(case):
    """What the kernels compute and every gradient, against the reference; returns the results."""
    right, wide = case.reference()
    mine = case.by_kernels()
    for a, b in zip(mine, right, strict=True):
        close(a, b)
    right_gradients = case.gradients(right, wide)
    for name, gradient in case.gradients(mine, case.leaves()).items():
        close(gradient, right_gradients[name], name)
    return mine


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize(
    ("case", "plan"),
    [
        (case, plan)
        for i, case in enumerate(CASES)
        for plan in ("registers", "together", ("in_parts", "one_slice")[i % 2])
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.kind}-{value.noise}",
)
def test_layers_equal_the_reference(case, plan, monkeypatch):
    """Three plans for each case, and every plan for each kind of layer: the interpreter is slow."""
    forward, backward = PLANS[plan](case)
    monkeypatch.setattr(gpu, "forward_plan", lambda *_: forward)
    monkeypatch.setattr(gpu, "backward_plan", lambda *_: backward)
    take_turns(monkeypatch)
    mine = check_case(case)
    if plan == "registers":
        with torch.no_grad():
            for a, b in zip(case.by_kernels(), mine, strict=True):
                assert torch.equal(a, b)


ALL = {"share": 0.3, "zoneout": (0.3, 0.2), "dropout": 0.4, "first_step": 7, "places": True}
RULED = [
    Case("lstm", 3, 3, 9, share=0.4),
    Case("gru", 3, 3, 5, share=0.5, state=False, reverse=True),
    Case("rnn_tanh", 3, 3, 5, share=0.4, learned=False),
    Case("gru", 3, 3, 5, share=0.4, learned=False, state=False, reverse=True),
    Case("lstm", 2, 5, 7, zoneout=(0.3, 0.2), packed=True, reverse=True),
    Case("lstm", 2, 3, 5, zoneout=(0.0, 0.4), masked=False),
    Case("rnn_relu", 3, 3, 5, zoneout=(0.3, 0.0), masked=False, reverse=True),
    Case("lstm", 2, 5, 7, dropout=0.4, packed=True, first_step=2, state=False),
    Case("gru", 2, 3, 5, dropout=0.4, reverse=True),
    Case("lstm", 2, 3, 5, first_step=2**31 - 3, places=True),
    Case("lstm", 2, 3, 17, **ALL),
    Case("gru", 3, 3, 9, **ALL, reverse=True),
    Case("rnn_tanh", 3, 3, 9, **ALL, hard=False),
    Case("rnn_relu", 3, 3, 5, **ALL, state=False, bias=False),
]


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("case", RULED, ids=lambda case: f"{case.kind}-{case.features()}")
def test_layers_with_rules_equal_the_reference(case):
    mine = check_case(case)
    if case.hidden == 17:
        with torch.no_grad():
            for a, b in zip(case.by_kernels(), mine, strict=True):
                assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_reset_replaces_a_state_that_is_not_finite(kind):
    case = Case(kind, 2, 3, 5, share=1.0, learned=False)
    for state in (case.h0, case.c0):
        if state is not None:
            state.data.fill_(float("nan"))
    mine = case.by_kernels()
    for name, gradient in case.gradients(mine, case.leaves()).items():
        assert gradient.isfinite().all(), name
    assert all(result.isfinite().all() for result in mine)


TOGETHER = [
    Case("lstm", 3, 3, 37, packed=True),
    Case("gru", 2, 3, 20, noise="nan:alpha=1.0", state=False),
    Case("lstm", 3, 3, 20, **ALL, state=False, reverse=True),
]


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("case", TOGETHER, ids=lambda case: f"{case.kind}-{case.features()}")
def test_programs_that_wait_for_each_other_equal_the_reference(case, monkeypatch):
    forward, backward = by_teams(case)
    monkeypatch.setattr(gpu, "forward_plan", lambda *_: forward)
    monkeypatch.setattr(gpu, "backward_plan", lambda *_: backward)
    take_turns(monkeypatch)
    check_case(case)


MIXED = [
    Case("lstm", 3, 3, 20, share=0.4, zoneout=(0.3, 0.2), dropout=0.4),
    Case("lstm", 3, 3, 20, packed=True, reverse=True),
    Case("gru", 3, 3, 20),
    Case("rnn_tanh", 2, 3, 20, state=False),
]


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("case", MIXED, ids=lambda case: f"{case.kind}-{case.features()}")
def test_forward_in_one_launch_and_backward_step_by_step(case, monkeypatch):
    """Some large layers have a forward pass whose programs all run at once, and a backward pass that has too many."""
    forward, _ = by_teams(case)
    monkeypatch.setattr(gpu, "forward_plan", lambda *_: forward)
    assert not plans.backward_plan(case.kind, 3, 20, 4, 0).persistent
    take_turns(monkeypatch)
    check_case(case)


@pytest.fixture
def poisoned_memory(monkeypatch, poisoned_memory):
    """Memory from new_empty too."""
    empty = torch.Tensor.new_empty

    def poisoned(*args, **kwargs):
        tensor = empty(*args, **kwargs)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)


@pytest.fixture
def as_on_a_gpu(monkeypatch, poisoned_memory):
    """Plans as for a GPU, all programs in one launch."""
    for name in ("forward_plan", "backward_plan"):
        chosen = getattr(gpu, name)
        monkeypatch.setattr(gpu, name, lambda *sizes, chosen=chosen: chosen(*sizes[:4], 132))
    monkeypatch.setattr(launches, "processors", lambda device: 132)
    take_turns(monkeypatch)


IN_LAUNCH = [
    Case("lstm", 2, 3, 9),
    Case("gru", 2, 20, 8, inputs=136, reverse=True, has_p=False),
    Case("gru", 3, 2, 17, inputs=1, state=False),
    Case("rnn_tanh", 1, 1, 1),
    Case("rnn_relu", 1, 40, 8, reverse=True),
    Case("lstm", 2, 3, 8, zoneout=(0.3, 0.2), first_step=3, places=True),
]


@pytest.mark.parametrize("case", IN_LAUNCH, ids=lambda case: f"{case.kind}-{case.hidden}-{case.features()}")
def test_products_in_the_launch_equal_the_reference(case, as_on_a_gpu, monkeypatch):
    monkeypatch.delattr(torch, "mm")  # so that it fails if torch's products are taken
    check_case(case)


def test_products_in_the_launch_are_torchs(as_on_a_gpu, monkeypatch):
    case = Case("gru", 2, 3, 9, dtype=torch.float16)
    case.x = torch.randn(6, 8, dtype=torch.float16)[:, :5]  # rows apart from each other, and no gradient of its own
    leaves = {name: leaf for name, leaf in case.leaves().items() if name != "x"}
    in_launch = case.gradients(case.by_kernels(), leaves)
    monkeypatch.setattr(plans, "_ROWS_IN_LAUNCH", 0)
    products = case.gradients(case.by_kernels(), leaves)
    for name, gradient in in_launch.items():  # torch's gradient of W_hh is rounded twice, with and without the first h
        torch.testing.assert_close(gradient, products[name], rtol=2e-3, atol=2e-3, msg=lambda m, n=name: f"{n}: {m}")
    case.w_ih.requires_grad_(False)
    case.w_hh.requires_grad_(False)
    others = {name: leaf for name, leaf in leaves.items() if name not in ("w_ih", "w_hh")}
    for name, gradient in case.gradients(case.by_kernels(), others).items():
        assert torch.equal(gradient, products[name])


def test_products_in_the_launch_of_two_layers(as_on_a_gpu, monkeypatch):
    cases = [Case("gru", 2, 2, 8, inputs=inputs) for inputs in (5, 8)]
    weights = [LayerWeights(case.w_ih, case.w_hh, case.b_ih, case.b_hh, case.p) for case in cases]
    names = ("w_ih", "w_hh", "b_ih", "b_hh", "p")
    leaves = {f"{name} {i}": leaf for i in range(2) for name, leaf in zip(names, weights[i][:5], strict=True)}
    leaves |= {"x": cases[0].x, "h": cases[0]._leaf(2, 2, 8)}

    def gradients():
        sizes, seeds = cases[0].sizes, [case.seed for case in cases]
        results = gpu.layers("gru", sizes, leaves["x"], leaves["h"], None, weights, seeds, cases[0].cell_noise, False)
        return cases[0].gradients(_tensors(results), leaves)

    in_launch = gradients()
    monkeypatch.setattr(plans, "_ROWS_IN_LAUNCH", 0)
    for name, gradient in gradients().items():
        torch.testing.assert_close(in_launch[name], gradient, msg=lambda m, name=name: f"{name}: {m}")


def test_products_are_in_the_launch_only_of_what_is_small():
    plan = plans.backward_plan("lstm", 20, 200, 4, 132)
    assert plan.writes_products(20 * 20, 200)
    assert not plan.writes_products(200 * 64, 200)
    assert not plan.writes_products(20 * 20, 10_000)
    assert not plans.backward_plan("lstm", 20, 200, 4, 0).writes_products(20 * 20, 200)
    assert not plans.backward_plan("lstm", 20, 650, 4, 132).writes_products(20 * 20, 200)


def _tensors(results):
    return [result for result in results if result is not None]


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize(
    ("kind", "state", "rules"),
    [("lstm", True, {}), ("lstm", False, {}), ("gru", True, ALL), ("rnn_tanh", False, {})],
)
def test_layers_above_each_other_equal_one_after_the_other(kind, state, rules):
    below = Case(kind, 3, 3, 5, state=state, packed=not rules, **rules)
    above = Case(kind, 3, 3, 5, state=state, **rules)
    rules = [below.rules(), above.rules()] if rules else None
    weights = [LayerWeights(case.w_ih, case.w_hh, case.b_ih, case.b_hh, case.p) for case in (below, above)]
    leaves = {f"{name} {i}": leaf for i, case in enumerate((below, above)) for name, leaf in case.leaves().items()}
    del leaves["x 1"]
    h, c = (None if s[0] is None else torch.stack(s) for s in ((below.h0, above.h0), (below.c0, above.c0)))
    seeds, noise = [below.seed, below.seed + 1], below.cell_noise
    together = _tensors(gpu.layers(kind, below.sizes, below.x, h, c, weights, seeds, noise, False, rules))
    x, last = below.x, []
    for index in range(2):
        own = [None if s is None else s[index : index + 1] for s in (h, c)]
        one = [weights[index]], [seeds[index]], noise, False, rules and rules[index : index + 1]
        x, *states = _tensors(gpu.layers(kind, below.sizes, x, *own, *one))
        last.append(states)
    apart = [x, *(torch.cat(states) for states in zip(*last, strict=True))]
    for one, other in zip(together, apart, strict=True):
        assert torch.equal(one, other)
    right = below.gradients(apart, leaves)
    for name, gradient in below.gradients(together, leaves).items():
        torch.testing.assert_close(gradient, right[name], msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("draw", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_cells_equal_the_reference(kind, draw, hard, monkeypatch):
    case = Case(kind, 1, 11, 70, noise="nah", gate_noise="nan:alpha=0.9", hard=hard, draw=draw, places=hard)
    monkeypatch.setattr(
        cell, "_forward", lambda *a, kept_noise, **at: step.cell_forward(a[-2], *a[:6], a[-1], kept_noise, **at)
    )
    monkeypatch.setattr(cell, "_backward", lambda dh, dc, extra, gates, *a, **at: step.cell_backward(
        a[-2], dh, dc, gates, extra, *a[:4], a[-1], **at))  # fmt: skip
    a = case._leaf(11, GATES[kind] * 70)
    q = case._leaf(11, 210) if kind == "gru" else None
    leaves = {"a": a, "q": q, "h": case.h0 if kind == "gru" else None, "c": case.c0, "p": case.p}
    leaves = {name: leaf for name, leaf in leaves.items() if leaf is not None}
    wide = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    count = NONLINEARITIES[kind]
    first = 2**31 - 2 if hard else 0
    positions = recurrent_positions([11], case.x.device, first, case.rows)
    xi = recurrent_normal(case.seed, *positions, count, 70).double() if draw else None
    h_n, c_n = reference.cell(
        kind, wide["a"], wide.get("q"), wide.get("h"), wide.get("c"), wide["p"].reshape(count, 70), xi, case.cell_noise
    )
    tensors = (a, q, case.h0 if kind == "gru" else None, case.c0, case.p, case.seed)
    mine = cell._EagerCell.apply(*tensors, case.rows, kind, case.cell_noise, None, first)
    outputs, right = ([mine[0], mine[1]], [h_n, c_n]) if kind == "lstm" else ([mine[0]], [h_n])
    for one, other in zip(outputs, right, strict=True):
        close(one, other)
    right_gradients = case.gradients(right, wide)
    for name, gradient in case.gradients(outputs, leaves).items():
        close(gradient, right_gradients[name], name)
    left = []
    leaving = cell._EagerCell.apply(*tensors, case.rows, kind, case.cell_noise, left.append, first)
    assert not case.gradients(leaving[: len(outputs)], leaves)["p"].any()
    assert left[0].shape == (2, count * 70)  # 11 rows, 8 at a time
    close(left[0].sum(0), right_gradients["p"], "p in parts")


OPERATORS = [(kind, *form) for kind in ("lstm", "gru", "rnn_tanh") for form in ((False, True, {}), (True, False, {}))]


@pytest.mark.parametrize(
    ("kind", "packed", "state", "rules"),
    [*OPERATORS, ("lstm", False, False, ALL), ("lstm", True, True, {"projection": 2})],
)
def test_the_operators_keep_torchs_rules(kind, packed, state, rules):
    text = str(na.NAH())
    case = Case(kind, 2, 2, 3, packed=packed, state=state, inputs=2, **rules)
    offsets, before = packed_rows(tuple(case.sizes), False, case.x.device) if packed else (None, None)
    scales = (case.cell_noise.state_scale, case.cell_noise.gate_scale)
    tensors = (case.x, offsets, before, case.h0, case.c0, case.w_ih, case.w_hh, case.b_ih, case.b_hh, case.p, case.w_hr)
    sizes = case.sizes if packed else None
    torch.library.opcheck(
        registration._layer,
        (*tensors, case.seed, *scales, kind, text, text, True, 2, 2, False, sizes, True, *(case.rules() or ())),
    )


def test_compiled_with_gradients():
    case = Case("lstm", 2, 2, 4, state=False, **ALL)
    arguments = (case.x, *[None] * 4, case.w_ih, case.w_hh, case.b_ih, case.b_hh, case.p, None, case.seed)
    scales, text = (case.cell_noise.state_scale, case.cell_noise.gate_scale), str(na.NAH())
    settings = ("lstm", text, text, True, 2, 2, False, None, True, *case.rules())

    def run():
        return registration._layer(*arguments, *scales, *settings)[:3]

    leaves = case.leaves()
    outputs = case.by_kernels(), run(), torch.compile(run, backend="aot_eager", fullgraph=True)()
    eager, plain, compiled = (case.gradients(list(own), leaves) for own in outputs)
    for name in leaves:
        torch.testing.assert_close(plain[name], eager[name])
        torch.testing.assert_close(compiled[name], eager[name])


def test_compiled_for_all_sizes():
    """Without a list of sizes the graph is for any number of steps and any batch size."""
    counter = CompileCounterWithBackend("aot_eager")
    for steps, batch in ((3, 2), (2, 4), (5, 3)):
        case = Case("gru", steps, batch, 4, state=False)
        weights = LayerWeights(case.w_ih, case.w_hh, case.b_ih, case.b_hh, case.p)

        def run(x, weights, seed, noise):
            return registration.layer("gru", x, None, None, None, weights, seed, noise, False)

        compiled = torch.compile(run, backend=counter, fullgraph=True)
        y, h_n, _ = compiled(case.x.reshape(steps, batch, -1), weights, case.seed, case.cell_noise)
        right, h_right = case.by_kernels()
        torch.testing.assert_close([y.flatten(0, 1), h_n], [right, h_right])
    assert counter.frame_count == 2
