"""One case of the grid: wrong results are refused, and all columns are measured. Times themselves are not tested."""

import dataclasses
import importlib.machinery
import math
import sys
import types

import pytest
import torch

import noisyact as na
from noisyact_lab.bench.grid import check as grid_check
from noisyact_lab.bench.grid import layers as grid_layers
from noisyact_lab.bench.grid import measure as grid_measure
from noisyact_lab.bench.grid import run as grid_run
from noisyact_lab.bench.grid.cases import Case, fixed
from noisyact_lab.bench.grid.measure import Effort, Refused, measure
from noisyact_lab.bench.grid.peak import peak_megabytes

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = Effort(seconds=1e-3, memory=False)
TINY = Case("GRU", 3, 2, 9, 2, "float32")


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("case", [TINY, *fixed("cpu")], ids=lambda case: case.name)
def test_right_results_are_measured(case):
    row = measure(dataclasses.replace(case, steps=3, batch=2, hidden=9), "cpu", QUICK)
    assert {"noisy", "torch"} <= set(row.both_ms) == set(row.inference_ms)
    assert min(*row.both_ms.values(), *row.inference_ms.values()) > 0
    assert row.graph_ms == {}
    assert row.checked == "the reference, all 3 steps"


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_long_case_is_checked_on_its_first_steps(cell, dtype):
    row = measure(Case(cell, 40, 3, 17, 2, dtype), "cpu", QUICK)
    assert row.checked == "the reference, the first 8 steps"


def _scaled(forward, backward):
    """output() of a kernel whose output or gradients are wrong by a factor."""
    right = grid_layers.output

    def output(layer, x, lengths):
        y = right(layer, x, lengths)
        if isinstance(layer, na.NoisyGRU) and layer.backend != "reference":
            y = forward * (y.detach() + backward * (y - y.detach()))
        return y

    return output


@pytest.mark.parametrize(
    ("forward", "backward", "said"),
    [(1.01, 1.0, "noisy: the output is off"), (1.0, 1.05, "noisy: the gradient of input is off"),
     (math.nan, 1.0, "noisy: the output is off")],
)  # fmt: skip
def test_wrong_results_are_refused(monkeypatch, forward, backward, said):
    monkeypatch.setattr(grid_check, "output", _scaled(forward, backward))
    with pytest.raises(Refused, match=f"{TINY.name}: not measured, its results are wrong: {said}"):
        measure(TINY, "cpu", QUICK)


def test_soft_layers_are_compared_with_torchs():
    case = dataclasses.replace(TINY, option="dropout")
    layers = grid_layers.build(case, "cpu")
    soft = na.NoisyGRU(9, 9, 2, noise=None, hard=False, dropout=0.3)
    soft.load_state_dict(layers.by_name["torch"].state_dict())
    layers.by_name["soft"] = soft
    grid_check.check(case, layers)
    with torch.no_grad():
        soft.weight_hh_l1 *= 1.5
    with pytest.raises(AssertionError, match="soft: the output is off"):
        grid_check.check(case, layers)


def _fake_flashrnn(wx, recurrent, bias, *, function, backend, dtype):
    """The function flashrnn as its documentation describes it: one head, gates i, f, g, o, states [2, B, T, 1, D]."""
    assert (function, backend, dtype) == ("lstm", "cuda_fused", "bfloat16")
    batch, steps, _, _, units = wx.shape
    h = c = wx.new_zeros(batch, units)
    kept = []
    for step in range(steps):
        q = wx[:, step, :, 0] + torch.einsum("gdp,bp->bgd", recurrent[:, 0], h) + bias[:, 0]
        i, f, g, o = q[:, 0].sigmoid(), q[:, 1].sigmoid(), q[:, 2].tanh(), q[:, 3].sigmoid()
        c = f * c + i * g
        h = o * c.tanh()
        kept.append(torch.stack((h, c)))
    return torch.stack(kept, dim=2)[:, :, :, None], None


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_flashrnn_is_a_row_where_it_is_installed(monkeypatch, factor):
    assert not [row for row in fixed("cuda") if row.option == "flashrnn"]
    module = types.ModuleType("flashrnn")
    module.__spec__ = importlib.machinery.ModuleSpec("flashrnn", None)
    module.flashrnn = lambda wx, *rest, **more: _fake_flashrnn(factor * wx, *rest, **more)
    monkeypatch.setitem(sys.modules, "flashrnn", module)
    (case,) = [row for row in fixed("cuda") if row.option == "flashrnn"]
    case = dataclasses.replace(case, steps=3, batch=2, hidden=9)
    if factor == 1.0:
        assert "flashrnn" in measure(case, "cpu", QUICK).both_ms
    else:
        with pytest.raises(Refused, match="flashrnn: the output is off"):
            measure(case, "cpu", QUICK)


def test_a_case_that_does_not_run_is_refused(monkeypatch):
    def fails(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmuch")

    monkeypatch.setattr(grid_measure, "build", fails)
    with pytest.raises(Refused, match=r"does not run: CUDA out of memory\. Tried to allocate$"):
        measure(TINY, "cpu", QUICK)


def test_on_a_gpu_graphs_are_measured_too(monkeypatch):
    """All but the timing itself: the GPU's functions are replaced and the layers are on the CPU."""
    calls = []

    def least_ms(functions, repeats):
        calls.append((len(functions), repeats))
        return [function() or 1.0 + index for index, function in enumerate(functions)]

    def graph(run):
        if len(calls) == 1 and not graphs:
            graphs.append(run)
            return run
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    graphs = []
    build = grid_layers.build
    monkeypatch.setattr(grid_measure, "build", lambda case, device: build(case, "cpu"))
    monkeypatch.setattr(grid_measure, "least_ms", least_ms)
    monkeypatch.setattr(grid_measure, "graph", graph)
    monkeypatch.setattr(grid_measure, "peak_mib", lambda run: run() or 2.0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("emptied"))
    row = measure(dataclasses.replace(TINY, dtype="tf32"), "cuda", Effort(repeats=7))
    assert list(row.both_ms) == list(row.inference_ms) == list(row.memory_mib)
    assert list(row.graph_ms) == ["noisy"]
    assert row.notes[-1] == "torch: not recorded as a CUDA graph: operation not permitted when stream is capturing"
    assert {call[1] for call in calls[:-1]} == {7}
    assert calls[-1] == "emptied"


def test_products_follow_the_dtype():
    before = torch.backends.cudnn.allow_tf32
    for dtype, expected in (("tf32", True), ("float32", False), ("bfloat16", False)):
        with grid_layers.products_of(dtype):
            assert torch.backends.cudnn.allow_tf32 is expected
        assert torch.backends.cudnn.allow_tf32 is before


def test_peak_memory_is_measured_apart():
    found = peak_megabytes(Case("GRU", 60, 16, 128, 1, "float32"), ["torch", "noisy"], 1)
    assert list(found) == ["torch", "noisy"]
    assert all(1 < megabytes < 100 for megabytes in found.values())


def test_cases_are_checked_in_processes_before_they_are_measured(monkeypatch):
    found = grid_run._checked([TINY], "cpu", 1)
    assert found == {TINY.name: "the reference, all 3 steps"}
    monkeypatch.setattr(grid_measure, "check", lambda *_: pytest.fail("it was checked already"))
    assert grid_measure.measure(TINY, "cpu", QUICK, found[TINY.name]).checked == found[TINY.name]


def test_a_case_that_fails_its_check_is_checked_again_to_say_why(monkeypatch):
    def wrong(case, layers):
        raise AssertionError("the output is off by 1")

    monkeypatch.setattr(grid_measure, "check", wrong)
    assert grid_measure.checked(TINY, "cpu") is None
    with pytest.raises(grid_measure.Refused, match="off by 1"):
        grid_measure.measure(TINY, "cpu", QUICK, None)
