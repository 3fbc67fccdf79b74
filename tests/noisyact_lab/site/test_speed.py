"""The numbers about speed that the documentation and the rule of `accelerate` have from the records."""

import statistics
from pathlib import Path

import pytest
import torch

from noisyact.recurrent import routing
from noisyact_lab.bench.grid.summary import NOISE
from noisyact_lab.site import speed

ROOT = Path(__file__).parents[3]
COLUMNS = ("both_ms", "graph_ms")
RULE = " ".join((routing.__doc__ or "").split())


def chosen_and_left(fixed):
    rows = [row for row in speed.grid_rows(ROOT, "h200-grid") if row.case.fixed == fixed]
    chosen = [row for row in rows if speed.uses_kernels_on_gpu(row.case)]
    return chosen, [row for row in rows if row not in chosen]


def worst(row):
    """The larger ratio of soft layers, called from Python and as a CUDA graph."""
    (found,) = zip(*(speed.ratios([row], column, "soft") for column in COLUMNS), strict=True)
    return max(found)


def faster(rows):
    return sum(worst(row) < 1 for row in rows)


def slower(rows):
    return [row for row in rows if worst(row) > 1 + NOISE]


@pytest.mark.parametrize("fixed", [False, True])
def test_the_rule_selects_no_slower_row(fixed):
    assert not slower(chosen_and_left(fixed)[0])


def test_the_rule_says_what_the_rows_say():
    """The numbers of its docstring."""
    chosen, left = chosen_and_left(False)
    cells = [sum(row.case.cell == cell for row in chosen) for cell in ("LSTM", "GRU", "RNN")]
    assert "It selects {} of the 113 drawn rows: {} LSTMs, {} GRUs and {} RNNs".format(len(chosen), *cells) in RULE
    columns = ("both_ms", "called from Python"), ("graph_ms", "as CUDA graphs"), ("inference_ms", "in inference")
    for column, name in columns:
        found = speed.ratios(chosen, column, "soft")
        assert f"{name}: {min(found):.2f} to {max(found):.2f}, median {statistics.median(found):.2f}" in RULE
    assert f"leaves {len(left)} drawn rows to torch. {faster(left)} of them would have been faster" in RULE
    largest = [max(speed.ratios(slower(left), column, "soft")) for column in COLUMNS]
    most = "up to {:.2f} called from Python and {:.2f} as CUDA graphs".format(*largest)
    assert f"{len(slower(left))} would have been more than 5% slower in one of the two, {most}" in RULE
    chosen, left = chosen_and_left(True)
    assert (len(chosen), faster(left), len(slower(left))) == (0, 3, 8)


def test_the_rule_selects_every_tuned_row():
    rows = speed.record(ROOT, "h200-recurrent")["rows"]
    for row in rows:
        steps, batch, hidden, _ = row["shape"]
        sizes = steps, batch, hidden, True, speed.H200_PROCESSORS
        assert routing.why_torch_on_gpu(row["layer"].lower(), getattr(torch, row["dtype"]), *sizes) is None, row
    found = [[row[name] for row in rows] for name in ("both_ratio", "graph_ratio")]
    said = "({:.2f} to {:.2f} called from Python, {:.2f} to {:.2f} as CUDA graphs)"
    assert said.format(*(limit(values) for values in found for limit in (min, max))) in RULE


def test_every_drawn_case_is_in_one_group():
    _, _, *rows = speed.grid_groups(ROOT, "h200-grid").splitlines()
    counts = [int(row.split("|")[2]) for row in rows]
    assert sum(counts) == len(speed.drawn_rows(ROOT, "h200-grid"))
    assert all(counts)


def test_the_caption_says_how_many_are_slower():
    """Of shapes drawn at random, beside the range of those that the kernels were tuned for."""
    tuned, drawn, cpu = (line for line in speed.caption(ROOT).splitlines() if line.startswith("- "))
    assert "tuned for" in tuned
    assert "113 shapes drawn at random: geometric means 0.72 called from Python and 0.74 as CUDA graphs" in drawn
    assert "32 and 31 of them are more than 5% slower than torch's layer, the worst by factors of 2.4 and 3.4" in drawn
    assert "CPU" in cpu


def test_a_record_that_stopped_says_so():
    assert speed.grid_extent(ROOT, "h200-grid") == "the first 113 of 120 planned cases"
    assert speed.grid_extent(ROOT, "cpu-grid") == "all 40 planned cases"
