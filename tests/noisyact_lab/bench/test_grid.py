"""The grid of recurrent layers: its draw, its record and what it says. Times themselves are not tested."""

import dataclasses
import json
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisyact_lab.bench.__main__ import main
from noisyact_lab.bench.grid import cases as grid_cases
from noisyact_lab.bench.grid import check as grid_check
from noisyact_lab.bench.grid import layers as grid_layers
from noisyact_lab.bench.grid import measure as grid_measure
from noisyact_lab.bench.grid import run as grid_run
from noisyact_lab.bench.grid.cases import DTYPES, Bounds, Case, draw, fixed
from noisyact_lab.bench.grid.measure import Effort, Row

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = Effort(seconds=1e-3, memory=False)
TINY = Case("GRU", 3, 2, 9, 2, "float32")


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


# The run


@pytest.fixture
def quick(monkeypatch):
    """No fixed rows and no memory; returns the cases that were measured."""
    measured = []

    def one(case, device, effort, _):
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

    def stops(case, device, effort, how):
        if len(quick) == 2:
            raise KeyboardInterrupt
        return right(case, device, effort, how)

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
