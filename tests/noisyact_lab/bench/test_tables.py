"""The benchmarks' tables fit the terminal, with the rows of the recorded benchmarks."""

import json
from pathlib import Path

import pytest

from noisyact_lab.bench import activations, attention, recurrent, recurrent_gpu, resets, search, updates
from noisyact_lab.bench.grid.cases import Case
from noisyact_lab.bench.grid.measure import Row
from noisyact_lab.bench.grid.summary import summary

RECORDS = Path(__file__).parents[3] / "benchmarks"


def recorded(name, row):
    for fields in json.loads((RECORDS / name).read_text())["rows"]:
        yield row(**fields)


def grid_row(case, **fields):
    return Row(Case(**case), **fields)


CPU = [recurrent.Row("LSTM", (100, 32, 256, 1), 45.6, 0.5, *[123.456, 234.567, 0.53] * 2, 0.25)]
TABLES = {
    "activations": lambda width: activations.table([*recorded("cpu-activations.json", activations.Row)], width),
    "attention": lambda width: attention.table([*recorded("h200-attention.json", attention.Row)], width),
    "search": lambda width: search.table([*recorded("h200-search.json", search.Row)], width),
    "recurrent on a GPU": lambda width: recurrent_gpu.table(
        [*recorded("h200-recurrent.json", recurrent_gpu.Row)], width
    ),
    "recurrent": lambda width: recurrent.table(CPU, width),
    "resets": lambda width: resets.table(
        [resets.Row("soft LSTM without noise", (128, 64, 512), 123.4, 125.6, 1.018)], width
    ),
    "updates": lambda width: updates.table([updates.Row("unique", "nan-annealed", *[1234.5] * 6)], width),
    "grid": lambda width: summary([*recorded("cpu-grid.json", grid_row)], width),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_fit_the_terminal(kind):
    whole = TABLES[kind](None)
    assert max(map(len, whole.splitlines())) > 60
    for width in (60, 80, 200):
        text = TABLES[kind](width)
        assert max(map(len, text.splitlines())) <= width, width
        assert set(whole.split()) <= set(text.split())
    if kind.startswith("recurrent"):  # a row is named by its layer and its sizes, in each of the tables
        assert all(block.splitlines()[0].startswith("layer  T, B, H, layers") for block in text.split("\n\n"))
