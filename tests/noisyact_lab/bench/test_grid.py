"""The grid of recurrent layers: its draw, its checks, its record and what it says. Times themselves are not tested."""

import dataclasses
import importlib.machinery
import json
import math
import sys
import types
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import noisyact as na
from noisyact_lab.bench.__main__ import main
from noisyact_lab.bench.grid import cases as grid_cases
from noisyact_lab.bench.grid import check as grid_check
from noisyact_lab.bench.grid import layers as grid_layers
from noisyact_lab.bench.grid import measure as grid_measure
from noisyact_lab.bench.grid import run as grid_run
from noisyact_lab.bench.grid.cases import DTYPES, Bounds, Case, draw, fixed
from noisyact_lab.bench.grid.measure import Effort, Refused, Row, measure
from noisyact_lab.bench.grid.peak import peak_megabytes

QUICK = Effort(seconds=1e-3, memory=False)
TINY = Case("GRU", 3, 2, 9, 2, "float32")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# The draw


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 2**60),
    st.integers(1, 30),
    st.sampled_from(["cpu", "cuda"]),
    st.floats(0.01, 1e4),
    st.floats(0.01, 9),
)
def test_drawn_cases_are_within_the_bounds_and_repeatable(seed, count, device, gflop, gib):
    bounds = Bounds(gflop, gib)
    cases, rejected = draw(count, seed, device, bounds)
    assert (cases, rejected) == draw(count, seed, device, bounds)
    assert len(set(cases)) == len({case.name for case in cases}) == count
    for case in cases:
        assert 8 <= case.hidden <= 4096
        assert 1 <= case.batch <= 2048
        assert 1 <= case.steps <= 1000
        assert 1 <= case.layers <= 4
        assert case.dtype in DTYPES[device]
        assert case.gflop <= gflop
        assert case.gib <= gib
        assert not case.fixed
    assert set(rejected) <= {f"more work than {gflop:g} GFLOP", f"more memory than {gib:g} GiB"}


def test_the_whole_space_is_drawn():
    cases, rejected = draw(3000, 0, "cuda", Bounds(math.inf, math.inf))
    assert not rejected
    for size, (low, high) in {"hidden": (8, 4096), "batch": (1, 2048), "steps": (1, 1000)}.items():
        values = sorted(getattr(case, size) for case in cases)
        assert values[0] <= 1.1 * low
        assert values[-1] >= 0.9 * high
        assert math.log(values[1500]) == pytest.approx((math.log(low - 0.5) + math.log(high)) / 2, abs=0.4)
        assert 0.3 < sum(value % 2 for value in values) / 3000 < 0.7  # odd sizes too
    counts = Counter((case.cell, case.dtype, case.layers) for case in cases)
    assert len(counts) == 3 * 4 * 4
    assert min(counts.values()) > 3000 / 48 / 2


def test_another_seed_draws_other_cases():
    assert draw(5, 0, "cpu", Bounds(1, 1))[0] != draw(5, 1, "cpu", Bounds(1, 1))[0]


def test_bounds_that_reject_everything_are_an_error():
    with pytest.raises(ValueError, match="within these bounds"):
        draw(1, 0, "cpu", Bounds(1e-12, 1.0))


def test_fixed_rows_have_what_is_not_drawn():
    for device in ("cpu", "cuda"):
        rows = fixed(device)
        assert all(row.fixed for row in rows)
        assert {row.option for row in rows} == set(grid_cases.OPTIONS) - {"flashrnn"}
        assert "float64" in {row.dtype for row in rows}
        assert not [row for row in rows if row.cell == "GRU" and row.option == "projection"]


@pytest.mark.parametrize(
    "wrong",
    [{"cell": "lstm"}, {"steps": 0}, {"hidden": 1.5}, {"dtype": "int8"}, {"option": "peephole"}, {"batch": True}],
)
def test_a_case_that_does_not_exist_is_refused(wrong):
    (name, value), *_ = wrong.items()
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        dataclasses.replace(TINY, **wrong)


@pytest.mark.parametrize("option", ["", "bidirectional", "projection", "no bias"])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_the_work_is_that_of_the_weights(cell, option):
    """Each weight is used once for each step and row, forward and twice backward."""
    if option == "projection" and cell != "LSTM":
        return
    case = Case(cell, 5, 3, 12, 3, "float32", option)
    plain = grid_layers.build(case, "cpu").by_name["torch"]
    matrices = sum(weight.numel() for weight in plain.parameters() if weight.dim() == 2)
    assert case.gflop == pytest.approx(3 * 2 * 5 * 3 * matrices / 1e9)


# The check


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

    def median_ms(functions, repeats):
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
    monkeypatch.setattr(grid_measure, "median_ms", median_ms)
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


# The run


@pytest.fixture
def quick(monkeypatch):
    """No fixed rows and no memory; returns the cases that were measured."""
    measured = []

    def one(case, device, effort):
        measured.append(case.name)
        return grid_measure.measure(case, device, QUICK)

    monkeypatch.setattr(grid_run, "fixed", lambda device: [])
    monkeypatch.setattr(grid_run, "measure", one)
    return measured


def command(*more):
    return ["recurrent", "--grid", "--device", "cpu", "--threads", "1", "--cases", "3", "--max-gflop", "0.001", *more]


def test_a_grid_prints_its_draw_and_its_summary_and_is_resumed(quick, capsys, tmp_path):
    record, figure = tmp_path / "grid.json", tmp_path / "map.png"
    assert main(command("--json", str(record), "--figure", str(figure))) == 0
    out = capsys.readouterr().out
    assert "seed=0" in out
    assert "were rejected: " in out
    assert "for more work than 0.001 GFLOP" in out
    assert "geometric means over 3 drawn cases" in out
    assert figure.read_bytes().startswith(b"\x89PNG")
    written = json.loads(record.read_text())
    assert [row["case"]["cell"] for row in written["rows"]]
    assert len(written["rows"]) == len(quick) == 3
    assert written["setting"]["niceness"] >= 0
    assert sum(written["rejected"].values()) > 0
    assert main(command("--json", str(record))) == 0
    assert len(quick) == 3  # nothing was measured again
    assert json.loads(record.read_text()) == written
    with pytest.raises(ValueError, match="holds another grid"):
        main(command("--json", str(record), "--seed", "5"))


def test_a_stopped_grid_keeps_every_finished_case(quick, monkeypatch, tmp_path, capsys):
    record, right = tmp_path / "grid.json", grid_run.measure

    def stops(case, device, effort):
        if len(quick) == 2:
            raise KeyboardInterrupt
        return right(case, device, effort)

    monkeypatch.setattr(grid_run, "measure", stops)
    with pytest.raises(KeyboardInterrupt):
        main(command("--json", str(record)))
    assert len(json.loads(record.read_text())["rows"]) == 2
    monkeypatch.setattr(grid_run, "measure", right)
    assert main(command("--json", str(record))) == 0
    assert len(set(quick)) == len(quick) == 3


def test_a_grid_ends_when_its_time_is_over(quick, monkeypatch, capsys):
    minutes = iter(range(100))
    monkeypatch.setattr(grid_run.time, "monotonic", lambda: 60.0 * next(minutes))
    assert main(command("--minutes", "2.5")) == 0
    assert len(quick) == 2
    assert "stopped after 2.5 minutes: 2 of 3 cases are done." in capsys.readouterr().out


def test_refused_cases_are_said_and_not_measured_again(quick, monkeypatch, tmp_path, capsys):
    record = tmp_path / "grid.json"
    monkeypatch.setattr(grid_check, "_BOUNDS", dict.fromkeys(grid_check._BOUNDS, (-1.0, -1.0)))
    assert main(command("--json", str(record))) == 1
    out = capsys.readouterr().out
    assert out.count("REFUSED") == 3
    assert "no case was measured" in out
    written = json.loads(record.read_text())
    assert (written["rows"], len(written["refused"])) == ([], 3)
    assert main(command("--json", str(record))) == 1
    assert len(quick) == 3


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"grid": 1, "setting": 2, "rows": 3, "refused": 4}'])
def test_a_file_that_is_no_record_is_left_alone(quick, tmp_path, content):
    record = tmp_path / "grid.json"
    record.write_text(content)
    with pytest.raises(ValueError, match=r"grid\.json"):
        main(command("--json", str(record)))
    assert record.read_text() == content


@pytest.mark.parametrize(
    "arguments",
    [
        ["recurrent", "--seed", "3"],
        ["recurrent", "--figure", "map.png"],
        ["activations", "--grid"],
        ["recurrent", "--grid", "--figure", "map.txt"],
        ["recurrent", "--grid", "--minutes", "0"],
        ["recurrent", "--grid", "--max-gflop", "nan"],
        ["recurrent", "--grid", "--cases", "-1"],
    ],
)
def test_wrong_options_stop_it(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert arguments[-1] in capsys.readouterr().err


# What it says


def row(noisy, torch_ms=1.0, *, case=TINY, soft=None, memory=(2.0, 4.0), **changes):
    times = {"noisy": noisy, "torch": torch_ms} | ({} if soft is None else {"soft": soft})
    found = Row(case, "", times, {}, dict.fromkeys(times, 1.0), {"noisy": memory[0], "torch": memory[1]}, [])
    return dataclasses.replace(found, **changes)


def test_geometric_means_and_every_row_above_one():
    from noisyact_lab.bench.grid.summary import ratio, slower, summary

    other = dataclasses.replace(TINY, cell="LSTM", hidden=11)
    rows = [
        row(0.5, soft=0.4),
        row(2.0, case=other, memory=(3.0, 0.5)),
        row(1.04, case=dataclasses.replace(TINY, batch=3)),
    ]
    assert ratio(rows[1], "memory_mib") is None  # less than 1 MiB
    assert ratio(rows[1], "both_ms", "soft") is None
    assert ratio(rows[0], "both_ms", "noisy", "soft") == pytest.approx(1.25)
    said = slower(rows)
    assert said[0] == "2 ratios to torch are above 1.0, 1 of them above 1.05:"
    assert said[1] == f"  2.00 fwd+bwd, noisy, {other.name}"
    assert said[2].endswith("(within 5% measurement noise)")
    fixed_row = row(7.0, case=dataclasses.replace(TINY, option="packed"))
    lines = [line.split() for line in summary([*rows, fixed_row]).splitlines()]
    mean = (0.5 * 2.0 * 1.04) ** (1 / 3)
    assert ["noisy", "/", "torch", "all", "3", f"{mean:.3f}", "1.000", "0.500"] in lines  # the fixed row is no sample
    assert ["noisy", "/", "torch", "LSTM", "1", "2.000", "1.000"] in lines
    assert ["noisy", "/", "soft", "all", "3", "1.250", "1.000"] in lines
    assert slower([row(0.5)]) == ["0 ratios to torch are above 1.0, 0 of them above 1.05"]


def test_the_map_has_a_panel_for_each_cell(tmp_path):
    from noisyact_lab.bench.grid.map import draw_map, save_map

    rows = [
        row(value, case=Case(cell, 5, batch, hidden, 1, dtype))
        for cell, value in (("LSTM", 0.4), ("RNN", 1.3))
        for batch, hidden, dtype in ((1, 8, "tf32"), (2048, 4096, "float16"), (33, 100, "bfloat16"))
    ]
    figure = draw_map([*rows, row(9.0, case=dataclasses.replace(TINY, option="packed"))], "a title")
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [panel.get_title() for panel in panels] == ["LSTM", "RNN"]
    for panel, values in zip(panels, ((0.4,) * 3, (1.3,) * 3), strict=True):
        assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
        points = [tuple(point) for drawn in panel.collections for point in drawn.get_offsets().tolist()]
        assert sorted(points) == [(8, 1), (100, 33), (4096, 2048)]
        assert [value for drawn in panel.collections for value in drawn.get_array().tolist()] == list(values)
    assert [text.get_text() for text in panels[0].texts] == []
    assert [text.get_text() for text in panels[1].texts] == ["1.30"] * 3
    assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
    for name, start in (("map.svg", b"<?xml"), ("map.png", b"\x89PNG")):
        save_map(rows, tmp_path / name, "a title")
        assert (tmp_path / name).read_bytes().startswith(start)
    with pytest.raises(ValueError, match="at least one"):
        draw_map([], "nothing")
