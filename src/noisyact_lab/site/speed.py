"""Speed in Markdown: tables from the records of the benchmarks."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from noisyact.ops.recurrent.gpu.plan import in_one_launch
from noisyact.recurrent.routing import why_torch_on_gpu
from noisyact_lab.bench.grid.cases import Case
from noisyact_lab.bench.grid.measure import COLUMNS, Row
from noisyact_lab.bench.grid.summary import NOISE, geometric_mean, ratio
from noisyact_lab.engine.folder.files import read_json
from noisyact_lab.site.markdown import table

__all__ = [
    "accelerated", "accelerated_on_gpu", "activations", "attention", "caption", "drawn_rows", "grid_extent",
    "grid_groups", "grid_means", "grid_options", "grid_rows", "grid_slower", "ratios", "record", "recurrent", "resets",
    "scope", "search", "uses_kernels_on_gpu",
]  # fmt: skip

_COLUMNS = {"both_ms": "forward + backward", "graph_ms": "as a graph", "inference_ms": "inference",
            "memory_mib": "peak memory"}  # fmt: skip
_CELLS = ("LSTM", "GRU", "RNN")
H200_PROCESSORS = 132
"""The number of multiprocessors of the GPU of the records, by which a layer is divided into programs."""


@functools.cache
def record(root: Path, name: str) -> dict[str, Any]:
    """A record of `benchmarks/`."""
    return read_json(root / "benchmarks" / f"{name}.json", dict)


def scope(root: Path, name: str) -> str:
    """Where and when a record was made: device, versions, date and commit. Records without a commit are old.

    `changed` of a setting says what was not as in the commit.
    """
    setting = record(root, name)["setting"]
    commit = f", commit `{setting['commit'][:7]}`" if "commit" in setting else ", an earlier version"
    device = setting["device"].replace(", 1 threads", ", 1 thread")
    commit += f" ({setting['changed']})" if "changed" in setting else ""
    times = f", {setting['times']}" if "times" in setting else ""
    return f"{device}, torch {setting['torch']}, {setting['kernels']}{times}; {setting['date']}{commit}"


def recurrent(root: Path) -> str:
    """The noisy LSTM and GRU beside cuDNN's on a GPU."""
    lines = []
    for row in record(root, "h200-recurrent")["rows"]:
        lines.append([
            f"{row['layer']} ({', '.join(map(str, row['shape']))})", row["dtype"],
            f"{row['both_ms']:.2f}", f"{row['torch_both_ms']:.2f}", f"{row['both_ratio']:.2f}",
            f"{row['graph_ms']:.2f}", f"{row['torch_graph_ms']:.2f}", f"{row['graph_ratio']:.2f}",
            f"{row['inference_ratio']:.2f}", f"{row['memory_ratio']:.2f}",
        ])  # fmt: skip
    header = ["layer (T, B, H, layers)", "dtype", "eager, ms", "torch", "ratio", "graph, ms", "torch", "ratio",
              "inference, ratio", "memory, ratio"]  # fmt: skip
    return table(header, lines, numbers=2)


def activations(root: Path, device: str) -> str:
    """The noisy activations beside F.hardtanh, forward + backward; `device` is the beginning of the record's name."""
    lines = [
        [
            row["case"], f"{row['both_ms']:.2f}", f"{row['hardtanh_both_ms']:.2f}", f"{row['both_ratio']:.2f}",
            f"{row['formula_both_ms']:.1f}",
            "" if row["compiled_both_ms"] is None else f"{row['compiled_both_ms']:.2f}",
        ]
        for row in record(root, f"{device}-activations")["rows"]
    ]  # fmt: skip
    header = ["noisy function", "ours, ms", "F.hardtanh, ms", "ratio", "formula in torch, ms", "compiled, ms"]
    return table(header, lines, numbers=1)


def attention(root: Path) -> str:
    """A training step of the attention models, noisy and soft."""
    lines = [
        [
            row["model"], f"{row['noisy_ms']:.2f}", f"{row['soft_ms']:.2f}", f"{row['ratio']:.2f}",
            f"{row['words_a_second']:,.0f}",
        ]
        for row in record(root, "h200-attention")["rows"]
    ]  # fmt: skip
    return table(["model", "noisy, ms", "soft, ms", "ratio", "words a second, noisy"], lines, numbers=1)


def search(root: Path) -> str:
    """Beam search with the translation model."""
    (row,) = record(root, "h200-search")["rows"]
    return (
        f"{row['sentences']:,} sentences, beam {row['beam']}, random weights, {row['words']} words each: "
        f"{row['noisy_s']:.2f} s with NAH and {row['soft_s']:.2f} s with soft functions"
    )


@functools.cache
def grid_rows(root: Path, name: str) -> tuple[Row, ...]:
    """The rows of a grid's record, fixed ones first."""
    return tuple(Row(Case(**row["case"]), **{k: v for k, v in row.items() if k != "case"})
                 for row in record(root, name)["rows"])  # fmt: skip


def drawn_rows(root: Path, name: str) -> list[Row]:
    """The rows of a grid's record that were drawn at random."""
    return [row for row in grid_rows(root, name) if not row.case.fixed]


def ratios(rows: Iterable[Row], column: str, ours: str = "noisy", theirs: str = "torch") -> list[float]:
    """One layer's time or memory over another's, of the rows that have both."""
    return [r for row in rows if (r := ratio(row, column, ours, theirs)) is not None]


def grid_means(root: Path, name: str) -> str:
    """Geometric means of the drawn cases: ours with noise over torch's, and over our kernels without noise."""
    drawn, columns = drawn_rows(root, name), _columns(root, name)
    groups = {"all": drawn} | {cell: [row for row in drawn if row.case.cell == cell] for cell in _CELLS}
    lines = []
    for theirs, said in (("torch", "torch's layer"), ("soft", "our kernels without noise")):
        for group, rows in groups.items():
            means = [_mean(ratios(rows, column, "noisy", theirs)) for column in columns]
            lines.append([f"noisy layer over {said}", group, str(len(rows)), *means])
    return table(["ratio", "cells", "cases", *columns.values()], lines, numbers=2)


def grid_slower(root: Path, name: str) -> str:
    """How many drawn cases are slower than torch's, and by how much at most."""
    drawn = drawn_rows(root, name)
    slower, worst = _slower(ratios(drawn, "both_ms"))
    said = (
        f"{slower} of the {len(drawn)} drawn cases are more than {NOISE:.0%} slower than torch's layer "
        f"forward + backward, the worst by a factor of {worst:.1f}"
    )
    if graphs := ratios(drawn, "graph_ms"):
        slower, worst = _slower(graphs)
        said += f"; as CUDA graphs it is {slower} of {len(graphs)}, the worst by a factor of {worst:.1f}"
    return said


def grid_extent(root: Path, name: str) -> str:
    """How many of the planned cases a record has. They are measured in the order of the draw."""
    planned, drawn = record(root, name)["grid"]["cases"], len(drawn_rows(root, name))
    return f"all {drawn} planned cases" if drawn == planned else f"the first {drawn} of {planned} planned cases"


def grid_groups(root: Path, name: str) -> str:
    """The drawn cases of a GPU by what decides how they are computed, and how many of them are slower."""
    groups: dict[str, list[Row]] = {group: [] for group in _GROUPS}
    for row in drawn_rows(root, name):
        groups[_group(row.case)].append(row)
    lines = []
    for group, rows in groups.items():
        cells = []
        for column in ("both_ms", "graph_ms"):
            found = ratios(rows, column)
            slower, worst = _slower(found)
            cells += [_mean(found), str(slower), f"{worst:.2f}"]
        lines.append([group, str(len(rows)), *cells, _mean(ratios(rows, "inference_ms"))])
    header = ["noisy layer over torch's", "cases", "forward + backward", "slower", "worst", "as a graph", "slower",
              "worst", "inference"]  # fmt: skip
    return table(header, lines, numbers=1)


_GROUPS = (
    "LSTM and GRU, one launch, more than 128 units, 4 steps or more",
    "the same, 1 to 3 steps",
    "RNN, one launch, more than 128 units",
    "one launch, at most 128 units",
    "too large for one launch",
)


def _group(case: Case) -> str:
    kind, size = {"RNN": "rnn_tanh"}.get(case.cell, case.cell.lower()), case.torch_dtype.itemsize
    if not in_one_launch(kind, case.batch, case.hidden, size, H200_PROCESSORS):
        return _GROUPS[4]
    if case.hidden <= 128:
        return _GROUPS[3]
    return _GROUPS[2] if case.cell == "RNN" else _GROUPS[case.steps < 4]


def grid_options(root: Path, name: str) -> str:
    """The fixed rows of the grid: options and dtypes at one size."""
    columns = _columns(root, name)
    lines = []
    for row in grid_rows(root, name):
        if row.case.fixed:
            cells = [ratio(row, column) for column in columns]
            lines.append([row.case.name, *("" if value is None else f"{value:.2f}" for value in cells)])
    return table(["case", *columns.values()], lines, numbers=1)


def _columns(root: Path, name: str) -> dict[str, str]:
    """The columns that a record has, and their titles."""
    return {column: _COLUMNS[column] for column in COLUMNS if ratios(grid_rows(root, name), column)}


def _mean(values: list[float]) -> str:
    return f"{geometric_mean(values):.2f}" if values else ""


def _slower(values: list[float]) -> tuple[int, float]:
    """How many ratios are above 1 plus the measurement noise, and the largest one."""
    return sum(value > 1 + NOISE for value in values), max(values)


def accelerated(root: Path) -> str:
    """The kernels without noise over torch's layers, for what `accelerate` replaces on a CPU: range and median."""
    lines = []
    for cell, least in (("GRU", 4), ("RNN", 12)):
        rows = [row for row in grid_rows(root, "cpu-grid") if row.case.cell == cell and row.case.dtype == "float32"
                and row.case.steps >= least]  # fmt: skip
        found = ratios(rows, "both_ms", "soft")
        lines.append([f"{cell}, {least} steps or more", str(len(found)), _range(found),
                      f"{statistics.median(found):.2f}"])  # fmt: skip
    return table(["layer, float32", "cases", "ours without noise over torch's", "median"], lines, numbers=1)


def accelerated_on_gpu(root: Path) -> str:
    """The same on a GPU, for the drawn cases for which the rule selects the kernels, and for those that it leaves."""
    drawn = drawn_rows(root, "h200-grid")
    lines = []
    for cell in _CELLS:
        rows = [row for row in drawn if row.case.cell == cell]
        chosen = [row for row in rows if uses_kernels_on_gpu(row.case)]
        left = [row for row in rows if row not in chosen]
        faster = sum(
            max(r for column in ("both_ms", "graph_ms") for r in ratios([row], column, "soft")) < 1 for row in left
        )
        cells = [_range(ratios(chosen, column, "soft")) for column in ("both_ms", "graph_ms", "inference_ms")]
        lines.append([cell, str(len(chosen)), *cells, str(len(left)), str(faster)])
    header = ["layer", "drawn cases on our kernels", "called from Python", "as a graph", "inference",
              "cases left to torch", "of these faster on ours"]  # fmt: skip
    return table(header, lines, numbers=1)


def uses_kernels_on_gpu(case: Case) -> bool:
    """Whether the rule of `noisyact.recurrent.routing` selects the Triton kernels for a case, on an H200."""
    kind = {"RNN": "rnn_tanh"}.get(case.cell, case.cell.lower())
    sizes = case.steps, case.batch, case.hidden, case.dtype == "tf32", H200_PROCESSORS, bool(case.proj_size)
    return why_torch_on_gpu(kind, case.torch_dtype, *sizes) is None


def resets(root: Path, name: str) -> str:
    """The cost of a mask of resets: forward + backward with it and without, on a GPU as a CUDA graph too."""
    lines = []
    for row in record(root, name)["rows"]:
        times = [f"{row[column]:.2f}" for column in ("plain_ms", "resets_ms", "ratio")]
        if row.get("graph_ratio") is not None:
            times += [f"{row[column]:.2f}" for column in ("plain_graph_ms", "resets_graph_ms", "graph_ratio")]
        lines.append([row["layer"], ", ".join(map(str, row["shape"])), *times])
    header = ["layer", "T, B, H", "without resets, ms", "with resets, ms", "ratio"]
    return table([*header, "as a graph, ms", "with resets, ms", "ratio"][: len(lines[0])], lines, numbers=2)


def caption(root: Path) -> str:
    """What the README's figure of speed shows, and how far it holds."""
    tuned = record(root, "h200-recurrent")["rows"]
    ranges = {name: _range([row[name] for row in tuned]) for name in ("both_ratio", "graph_ratio")}
    drawn = drawn_rows(root, "h200-grid")
    eager, graphs = ratios(drawn, "both_ms"), ratios(drawn, "graph_ms")
    (slower, worst), (slower_graphs, worst_graph) = _slower(eager), _slower(graphs)
    on_cpu = drawn_rows(root, "cpu-grid")
    means = {cell: ratios([row for row in on_cpu if row.case.cell == cell], "both_ms") for cell in _CELLS}
    said = ", ".join(f"{cell} {_mean(values)}" for cell, values in means.items())
    (where, tuned_when), (_, drawn_when) = (
        scope(root, name).split("; ") for name in ("h200-recurrent", "h200-grid")
    )  # fmt: skip
    return (
        "Time with half-normal noise over that of torch's layer without noise, forward + backward "
        "([all measurements](docs/speed.md)):\n\n"
        f"- **GPU**, {len(tuned)} shapes and dtypes that the kernels were tuned for: {ranges['both_ratio']} called "
        f"from Python, {ranges['graph_ratio']} as CUDA graphs.\n"
        f"- **GPU**, {len(drawn)} shapes drawn at random: geometric means {_mean(eager)} called from Python and "
        f"{_mean(graphs)} as CUDA graphs. {slower} and {slower_graphs} of them are more than {NOISE:.0%} slower than "
        f"torch's layer, the worst by factors of {worst:.1f} and {worst_graph:.1f} "
        f"({where}; {tuned_when}; {drawn_when}).\n"
        f"- **CPU**: {said}, geometric means over {len(on_cpu)} drawn shapes; {grid_slower(root, 'cpu-grid')} "
        f"({scope(root, 'cpu-grid')})."
    )


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"
