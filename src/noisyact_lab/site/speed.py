"""Speed in Markdown: tables from the records of the benchmarks."""

from __future__ import annotations

import functools
import statistics
from pathlib import Path
from typing import Any

from noisyact_lab.bench.grid.cases import Case
from noisyact_lab.bench.grid.measure import COLUMNS, Row
from noisyact_lab.bench.grid.summary import NOISE, geometric_mean, ratio
from noisyact_lab.engine.folder.files import read_json
from noisyact_lab.site.markdown import table

__all__ = [
    "accelerated", "activations", "attention", "grid_means", "grid_rows", "grid_slower", "record", "recurrent", "scope",
    "search",
]  # fmt: skip

_COLUMNS = {"both_ms": "forward + backward", "inference_ms": "inference", "memory_mib": "peak memory"}


@functools.cache
def record(root: Path, name: str) -> dict[str, Any]:
    """A record of `benchmarks/`."""
    return read_json(root / "benchmarks" / f"{name}.json", dict)


def scope(root: Path, name: str) -> str:
    """Where and when a record was made: device, versions, date and commit. Records without a commit are old."""
    setting = record(root, name)["setting"]
    commit = f", commit `{setting['commit'][:7]}`" if "commit" in setting else ", an earlier version"
    device = setting["device"].replace(", 1 threads", ", 1 thread")
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
def grid_rows(root: Path) -> tuple[Row, ...]:
    """The rows of the CPU grid, fixed ones first."""
    return tuple(Row(Case(**row["case"]), **{k: v for k, v in row.items() if k != "case"})
                 for row in record(root, "cpu-grid")["rows"])  # fmt: skip


def grid_means(root: Path) -> str:
    """Geometric means of the drawn cases: ours with noise over torch's, and over our kernels without noise."""
    drawn = [row for row in grid_rows(root) if not row.case.fixed]
    groups = {"all": drawn} | {
        cell: [row for row in drawn if row.case.cell == cell] for cell in ("LSTM", "GRU", "RNN")
    }  # fmt: skip
    lines = []
    for theirs, said in (("torch", "torch's layer"), ("soft", "our kernels without noise")):
        for name, rows in groups.items():
            found = [[r for row in rows if (r := ratio(row, column, "noisy", theirs)) is not None]
                     for column in _COLUMNS]  # fmt: skip
            means = [f"{geometric_mean(values):.2f}" if values else "" for values in found]
            lines.append([f"noisy layer over {said}", name, str(len(rows)), *means])
    return table(["ratio", "cells", "cases", *_COLUMNS.values()], lines, numbers=2)


def grid_slower(root: Path) -> str:
    """How many drawn cases are slower than torch's, and by how much at most."""
    drawn = [row for row in grid_rows(root) if not row.case.fixed]
    found = [r for row in drawn if (r := ratio(row, "both_ms")) is not None]
    slower = [value for value in found if value > 1 + NOISE]
    return (
        f"{len(slower)} of the {len(found)} drawn cases are more than {NOISE:.0%} slower than torch's layer "
        f"forward + backward, the worst by a factor of {max(found):.1f}"
    )


def grid_options(root: Path) -> str:
    """The fixed rows of the grid: options and dtypes at one size."""
    lines = []
    for row in grid_rows(root):
        if row.case.fixed:
            cells = [ratio(row, column) for column in COLUMNS if column in _COLUMNS]
            lines.append([row.case.name, *("" if value is None else f"{value:.2f}" for value in cells)])
    return table(["case", *_COLUMNS.values()], lines, numbers=1)


def accelerated(root: Path) -> str:
    """The kernels without noise over torch's layers, for what `accelerate` replaces on a CPU: range and median."""
    lines = []
    for cell, least in (("GRU", 4), ("RNN", 12)):
        rows = [row for row in grid_rows(root) if row.case.cell == cell and row.case.dtype == "float32"
                and row.case.steps >= least]  # fmt: skip
        found = [r for row in rows if (r := ratio(row, "both_ms", "soft")) is not None]
        lines.append([f"{cell}, {least} steps or more", str(len(found)), _range(found),
                      f"{statistics.median(found):.2f}"])  # fmt: skip
    return table(["layer, float32", "cases", "ours without noise over torch's", "median"], lines, numbers=1)


def caption(root: Path) -> str:
    """What the README's figure of speed shows, and how far it holds."""
    gpu = record(root, "h200-recurrent")["rows"]
    ratios = {name: [row[name] for row in gpu] for name in ("both_ratio", "graph_ratio")}
    drawn = [row for row in grid_rows(root) if not row.case.fixed]
    means = {
        cell: geometric_mean([r for row in drawn if row.case.cell == cell and (r := ratio(row, "both_ms")) is not None])
        for cell in ("LSTM", "GRU", "RNN")
    }
    said = ", ".join(f"{cell} {mean:.2f}" for cell, mean in means.items())
    return (
        "Time with half-normal noise over that of torch's layer without noise, forward + backward "
        "([all measurements](docs/speed.md)):\n\n"
        f"- **GPU**: {_range(ratios['both_ratio'])} called from Python and {_range(ratios['graph_ratio'])} as CUDA "
        f"graphs, at {len(gpu)} recorded shapes and dtypes ({scope(root, 'h200-recurrent')}).\n"
        f"- **CPU**: {said}, geometric means over {len(drawn)} drawn shapes; {grid_slower(root)} "
        f"({scope(root, 'cpu-grid')})."
    )


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"
