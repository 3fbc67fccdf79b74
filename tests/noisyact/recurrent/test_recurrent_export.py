"""Recurrent layers and cells, exported: torch's operators in evaluation mode, for any steps and batch size."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves

import noisyact as na
from noisyact.ops.recurrent import reference
from noisyact.ops.recurrent import scan as scanned
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES, CellNoise, LayerWeights, StateRules

T, B = Dim("T", min=1, max=4096), Dim("B", min=1, max=4096)
DIFFERENTIABLE = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Whether torch's scan has the right gradients. In 2.9 it has wrong ones; releases between were not tried."""
SIZES = [(4, 3), (1, 1), (7, 2), (2, 9), (30, 1)]

pytestmark = [
    # torch's own exporter copies a deprecated kind of tree specification.
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning"),  # torch.export.load in torch 2.9
]
needs_scan = pytest.mark.skipif(not scanned.available(), reason="this torch has no scan operator")


@pytest.fixture(autouse=True)
def _without_gradients():
    """An export takes a third of the time if torch does not trace the gradients too."""
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def operators(program: torch.export.ExportedProgram) -> list[str]:
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    return [str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_function"]


def exported(layer: nn.Module, x: Tensor, *states: Tensor, **options) -> torch.export.ExportedProgram:
    sizes = ({0: T, 1: B}, *([{1: B}] * len(states)))
    return torch.export.export(layer, (x, *states), dynamic_shapes=sizes, **options)


@needs_scan
@pytest.mark.parametrize("strict", [False, True])
def test_several_layers_with_a_given_state(strict):
    layer = na.NoisyGRU(3, 4, 2, noise=None, backend="reference").eval()
    program = exported(layer, torch.randn(4, 3, 3), torch.randn(2, 3, 4), strict=strict)
    assert operators(program).count("scan") == 2
    for steps, batch in SIZES:
        x, h = 3 * torch.randn(steps, batch, 3), torch.randn(2, batch, 4)
        torch.testing.assert_close(program.module()(x, h), layer(x, h))


@needs_scan
def test_a_saved_program_runs_without_noisyact_and_has_the_gradients(tmp_path):
    layer = na.NoisyRNN(3, 4, noise=None).eval()
    torch.export.save(exported(layer, torch.randn(4, 3, 3)), tmp_path / "layer.pt2")
    with torch.enable_grad():
        x = (3 * torch.randn(6, 2, 3)).requires_grad_()
        y = layer(x)[0]
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
    torch.save((x, y.detach(), gradient), tmp_path / "values.pt")
    code = (
        "import sys, torch; x, *right = torch.load('values.pt'); y = torch.export.load('layer.pt2').module()(x)[0]; "
        "assert 'noisyact' not in sys.modules; torch.testing.assert_close(y, right[0]); "
        f"{DIFFERENTIABLE} and torch.testing.assert_close(torch.autograd.grad(y.square().sum(), x)[0], right[1])"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, check=True)


class Everything(nn.Module):
    """Layers and a cell that have every option of an ONNX graph between them."""

    def __init__(self):
        super().__init__()
        self.lstm = na.NoisyLSTM(3, 4, proj_size=3, noise="nah:c=2")
        self.gru = na.NoisyGRU(3, 3, bias=False, batch_first=True, hard=False, noise=None)
        self.rnn = na.NoisyRNN(3, 2, bidirectional=True, noise="nah", eval_noise="hard")
        self.relu = na.NoisyRNN(4, 3, nonlinearity="relu", noise="nan:alpha=1.3").half()
        self.cell = na.NoisyLSTMCell(3, 3, noise="nah:c=2")

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        y, state = self.lstm(x, (h, c))
        z, last = self.gru(3 * y.transpose(0, 1))
        w, _ = self.rnn(3 * z.transpose(0, 1))
        v, _ = self.relu(w.half())
        return *state, last, w, v.float(), *self.cell(3 * y[-1], (last[0], last[0]))


def everything(steps: int, batch: int) -> tuple[Tensor, ...]:
    return 3 * torch.randn(steps, batch, 3), torch.randn(1, batch, 3), torch.randn(1, batch, 4)


@pytest.fixture(scope="module")
def model_and_program():
    torch.manual_seed(0)
    model = Everything().eval()
    with torch.no_grad():
        return model, exported(model, *everything(4, 3))


@needs_scan
def test_each_layer_and_direction_is_one_scan_for_any_size(model_and_program):
    model, program = model_and_program
    found = operators(program)
    assert found.count("scan") == 5
    assert not any("noisyact" in name for name in found)
    for size in SIZES:
        given = everything(*size)
        torch.testing.assert_close(program.module()(*given), model(*given))


@needs_scan
@pytest.mark.filterwarnings("ignore:# The axis name:UserWarning")  # torch says so of axes with one name
def test_onnx_has_one_scan_for_each_layer_and_direction(model_and_program):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, program = model_and_program
    converted = torch.onnx.export(program, dynamo=True, verbose=False)
    assert [node.op_type for node in converted.model.graph].count("Scan") == 5
    file = io.BytesIO()
    converted.save(file)
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    for size in SIZES:
        given = everything(*size)
        found = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, given, strict=True)})
        for mine, right in zip(found, model(*given), strict=True):
            torch.testing.assert_close(torch.from_numpy(mine), right, rtol=1e-4, atol=1e-5)


class EveryFunction(nn.Module):
    """Hard functions, soft functions in both directions of two layers, and the expectation with the leak in both."""

    def __init__(self, kind: type[nn.Module]):
        super().__init__()
        hard = kind(3, 4, noise=None)
        soft = kind(3, 4, 2, bidirectional=True, noise=None, hard=False)
        self.layers = nn.ModuleList([hard, soft, kind(3, 4, bidirectional=True, noise="nah:c=2,alpha=1.3")])

    def forward(self, x: Tensor, h: Tensor, c: Tensor | None = None) -> tuple[Tensor, ...]:
        leaves = []
        for layer in self.layers:
            count = layer.num_layers * (1 + layer.bidirectional)
            leaves += tree_leaves(layer(x, h[:count] if c is None else (h[:count], c[:count])))
        return tuple(leaves)


@needs_scan
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:# The axis name:UserWarning")
@pytest.mark.parametrize("kind", [na.NoisyLSTM, na.NoisyGRU, na.NoisyRNN])
def test_onnxruntime_computes_what_torch_does_for_every_function(kind):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, states = EveryFunction(kind).eval(), 2 if kind is na.NoisyLSTM else 1
    given = [3 * torch.randn(4, 3, 3), *(torch.randn(4, 3, 4) for _ in range(states))]
    sizes = ({0: T, 1: B}, *({1: B} for _ in range(states)))
    program = torch.export.export(model, tuple(given), dynamic_shapes=sizes)
    converted = torch.onnx.export(program, dynamo=True, verbose=False)
    assert [node.op_type for node in converted.model.graph].count("Scan") == 7
    file = io.BytesIO()
    converted.save(file)
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    for steps, batch in SIZES:
        given = [3 * torch.randn(steps, batch, 3), *(torch.randn(4, batch, 4) for _ in range(states))]
        found = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, given, strict=True)})
        for mine, right in zip(found, model(*given), strict=True):
            torch.testing.assert_close(torch.from_numpy(mine), right, rtol=1e-4, atol=1e-5)


@needs_scan
def test_resets_are_an_input_of_the_graph():
    layer = na.NoisyRNN(3, 4, bidirectional=True, zoneout=0.2, recurrent_dropout=0.5).eval()
    example = {"reset": torch.rand(4, 3) < 0.5, "reset_to": torch.randn(2, 1, 4)}
    sizes = {"input": {0: T, 1: B}, "hx": None, "reset": {0: T, 1: B}, "reset_to": None}
    program = torch.export.export(layer, (torch.randn(4, 3, 3), None), example, dynamic_shapes=sizes)
    assert operators(program).count("scan") == 2
    for steps, batch in SIZES:
        x, reset, reset_to = 3 * torch.randn(steps, batch, 3), torch.rand(steps, batch) < 0.5, torch.randn(2, 1, 4)
        found = program.module()(x, None, reset=reset, reset_to=reset_to)
        torch.testing.assert_close(found, layer(x, reset=reset, reset_to=reset_to))


@needs_scan
@pytest.mark.parametrize("kind", [na.NoisyLSTM, na.NoisyGRU, na.NoisyRNN])
def test_the_state_after_a_reset_may_have_any_batch_size(kind):
    layer, states = kind(3, 4, 2).eval(), 2 if kind is na.NoisyLSTM else 1

    def reset_to(batch: int):
        given = tuple(torch.randn(2, batch, 4) for _ in range(states))
        return given if states == 2 else given[0]

    example = {"reset": torch.rand(4, 3) < 0.5, "reset_to": reset_to(3)}
    sizes = {"input": {0: T, 1: B}, "reset": {0: T, 1: B}, "reset_to": ({1: B}, {1: B}) if states == 2 else {1: B}}
    program = torch.export.export(layer, (torch.randn(4, 3, 3),), example, dynamic_shapes=sizes)
    for steps, batch in SIZES:
        x, reset, to = 3 * torch.randn(steps, batch, 3), torch.rand(steps, batch) < 0.5, reset_to(batch)
        found = program.module()(x, reset=reset, reset_to=to)
        torch.testing.assert_close(found, layer(x, reset=reset, reset_to=to))


class Cells(nn.Module):
    """One step of each kind of cell."""

    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList(kind(3, 4) for kind in (na.NoisyLSTMCell, na.NoisyGRUCell, na.NoisyRNNCell))

    def forward(self, x: Tensor) -> list[Tensor]:
        return tree_leaves([cell(x) for cell in self.cells])


def test_a_cell_is_torch_operations():
    model = Cells().eval()
    program = torch.export.export(model, (torch.randn(3, 3),), dynamic_shapes=({0: B},))
    assert not any("noisyact" in name for name in operators(program))
    for batch in (1, 3, 8):
        x = 3 * torch.randn(batch, 3)
        torch.testing.assert_close(program.module()(x), model(x))


def test_in_training_mode_or_with_a_forced_kernel_the_operator_is_exported():
    for layer in (na.NoisyGRU(3, 4, 2), na.NoisyGRU(3, 4, 2, backend="cpu").eval()):
        program = exported(layer, torch.randn(4, 3, 3))
        found = operators(program)
        assert found.count("noisyact.recurrent_layer.default") == 2
        assert any("rand" in name for name in found) == layer.training
        y, _ = program.module()(torch.randn(7, 2, 3))
        assert y.shape == (7, 2, 4)


def test_what_cannot_be_exported_says_what_to_do():
    class Packs(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = na.NoisyLSTM(3, 4).eval()

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(pack_padded_sequence(x, [4, 3, 1]))[0].data

    x = torch.randn(4, 3, 3)
    with pytest.raises(RuntimeError, match=r"PackedSequence cannot be exported.*export the layer with padded input"):
        torch.export.export(Packs().eval(), (x,))
    for sampled in (na.NoisyHardTanh, na.NoisyReLU):
        with pytest.raises(RuntimeError, match=r"eval_noise='sample' draws noise.*'expectation' or 'hard'"):
            torch.export.export(sampled(eval_noise="sample").eval(), (x,))
    for sampled, rows in ((na.NoisyLSTM, x), (na.NoisyGRUCell, x[0])):
        with pytest.raises(RuntimeError, match=r"eval_noise='sample' draws noise.*'expectation' or 'hard'"):
            torch.export.export(sampled(3, 4, eval_noise="sample").eval(), (rows,))


@pytest.mark.filterwarnings("ignore")
def test_onnx_in_training_mode_says_what_to_do():
    pytest.importorskip("onnxscript")
    for module in (na.NoisyRNN(3, 4), na.NoisyHardTanh()):
        with pytest.raises(Exception, match=r"call model\.eval\(\) first"):
            torch.onnx.export(module, (torch.randn(4, 3, 3),), dynamo=True, verbose=False)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_the_old_exporter_traces_the_reference():
    runtime = pytest.importorskip("onnxruntime")
    model, x = nn.Sequential(na.NoisyGRU(3, 4, noise="nah:c=2")).eval(), 3 * torch.randn(3, 2, 3)
    file = io.BytesIO()
    torch.onnx.export(model, (x,), file, dynamo=False, input_names=["x"])
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    found = session.run(None, {"x": x.numpy()})
    for mine, right in zip(found, model(x), strict=True):
        torch.testing.assert_close(torch.from_numpy(mine), right, rtol=1e-4, atol=1e-5)


def loop(step, first, xs, *, reverse=False):
    """What torch's scan computes, in Python."""
    ys, state = [], first
    for now in zip(*(x.flip(0) if reverse else x for x in xs), strict=True):
        state, y = step(state, now)
        ys.append(y)
    y = torch.stack(ys)
    return state, y.flip(0) if reverse else y


@needs_scan
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(GATES)), st.tuples(*[st.integers(1, 5)] * 5), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from([None, "nah:c=2", "nan:alpha=1.3", "nah:alpha=1.0", "nanil", "nani"]), st.booleans(),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_the_scan_form_is_the_reference(kind, sizes, bias, projects, reverse, scheme, hard, resets, learned):
    """Every combination of options, without the exporter, which takes seconds for each."""
    steps, batch, inputs, hidden, projection = sizes
    output = projection if projects and kind == "lstm" else hidden
    wide, noise = GATES[kind] * hidden, None if scheme is None else na.scheme(scheme)
    weights = LayerWeights(
        torch.randn(wide, inputs), torch.randn(wide, output), *(torch.randn(2, wide) if bias else (None, None)),
        torch.randn(NONLINEARITIES[kind] * hidden), torch.randn(output, hidden) if output != hidden else None,
    )  # fmt: skip
    scale = torch.tensor(0.0 if noise is None else noise.scale)
    own = CellNoise(noise, noise, scale, scale, hard)
    x, h = 2 * torch.randn(steps, batch, inputs), torch.randn(batch, output)
    c = torch.randn(batch, hidden) if kind == "lstm" else None
    rules = StateRules(zoneout_h=0.3, zoneout_c=0.1, recurrent_dropout=0.2)
    if resets:
        states = (torch.randn(batch, output), torch.randn(batch, hidden) if kind == "lstm" else None)
        rules = StateRules(torch.rand(steps, batch) < 0.4, *(states if learned else (None, None)))
    y, *last = reference.layer(kind, x.flatten(0, 1), [batch] * steps, h, c, weights, None, own, reverse, rules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["torch._higher_order_ops.scan"], "scan", loop)
        found, *state = scanned.layer(kind, x, h, c, weights, own, reverse, rules)
    torch.testing.assert_close(found, y.reshape(steps, batch, output))
    for mine, right in zip(state, last, strict=True):
        assert (mine is None) == (right is None)
        if right is not None:
            torch.testing.assert_close(mine, right)
