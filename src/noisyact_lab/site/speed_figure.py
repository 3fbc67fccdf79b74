"""The figure of speed: times of noisy layers over those of torch's layers without noise, from three records."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisyact_lab.bench.grid.summary import geometric_mean
from noisyact_lab.engine.folder import picture
from noisyact_lab.engine.folder.files import read_bytes, write_bytes
from noisyact_lab.site.speed import drawn_rows, ratios, record

__all__ = ["RECORDS", "checksum", "draw_speed", "save_speed_figure"]

RECORDS = ("h200-recurrent", "h200-grid", "cpu-grid")


def checksum(root: Path) -> str:
    """The checksum of the records, which the picture carries."""
    contents = b"".join(read_bytes(root / "benchmarks" / f"{name}.json") for name in RECORDS)
    return hashlib.sha256(contents).hexdigest()


def draw_speed(root: Path) -> Figure:
    """On the left a bar for each tuned GPU case; then the drawn GPU and CPU cases and their geometric means."""
    figure = Figure(figsize=(12, 4.8), layout="constrained", facecolor="white")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.75, 1.15, 0.75))
    _draw_gpu(left, root)
    eager, graph = ("both_ms", picture.BLUE, "called from Python"), ("graph_ms", picture.RED, "as a CUDA graph")
    _draw_drawn(middle, root, "h200-grid", (eager, graph), record(root, "h200-grid")["setting"]["device"])
    _draw_drawn(right, root, "cpu-grid", (eager,), "CPU, 1 thread")
    right.sharey(middle)
    right.tick_params(labelleft=False)
    figure.suptitle(
        "Time of a noisy layer over torch's layer without noise, forward + backward (below 1: faster)", fontsize=11
    )
    return figure


def _draw_gpu(ax: Axes, root: Path) -> None:
    rows = [row for row in record(root, "h200-recurrent")["rows"] if row["dtype"] in ("float32", "bfloat16")]
    shapes = list(dict.fromkeys((tuple(row["shape"]), row["layer"]) for row in rows))
    bars = (("float32", "both_ratio", picture.BLUE, "float32, called from Python"),
            ("bfloat16", "both_ratio", picture.SKY, "bfloat16, called from Python"),
            ("float32", "graph_ratio", picture.RED, "float32, as a CUDA graph"),
            ("bfloat16", "graph_ratio", picture.ORANGE, "bfloat16, as a CUDA graph"))  # fmt: skip
    for i, (dtype, column, colour, label) in enumerate(bars):
        found = {(tuple(row["shape"]), row["layer"]): row[column] for row in rows if row["dtype"] == dtype}
        places = [at + (i - 1.5) * 0.2 for at, shape in enumerate(shapes) if shape in found]
        ax.bar(places, [found[shape] for shape in shapes if shape in found], 0.19, color=colour, label=label)
    ax.set_xticks(range(len(shapes)), [f"{layer}\n{s[0]}, {s[1]},\n{s[2]}, {s[3]}" for s, layer in shapes], fontsize=8)
    setting = record(root, "h200-recurrent")["setting"]
    when = f"{setting['device']}, torch {setting['torch']}, {setting['date']}"
    _finish(ax, f"{when};\ntuned shapes: steps, batch, units, layers")
    ax.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
    ax.set_ylim(0, 1.3)


def _draw_drawn(ax: Axes, root: Path, name: str, columns: tuple[tuple[str, str, str], ...], device: str) -> None:
    """A point for each drawn case and a line at the geometric mean, for each cell and column."""
    drawn, cells, width = drawn_rows(root, name), ("LSTM", "GRU", "RNN"), 0.84 / len(columns)
    for i, (column, colour, label) in enumerate(columns):
        for cell_at, cell in enumerate(cells):
            values = sorted(ratios([row for row in drawn if row.case.cell == cell], column))
            at, mean = cell_at + (i - (len(columns) - 1) / 2) * width, geometric_mean(values)
            spread = [at + 0.75 * width * (k / max(1, len(values) - 1) - 0.5) for k in range(len(values))]
            ax.plot(spread, values, "o", color=colour, markersize=3.5, alpha=0.7, label=None if cell_at else label)
            said = None if cell_at or i or len(columns) == 1 else "geometric mean"
            ax.plot([at - 0.45 * width, at + 0.45 * width], [mean, mean], color="black", linewidth=2, label=said)
            ax.annotate(f"{mean:.2f}", (at, 0.018), ha="center", fontsize=9, color=colour)
    ax.set_xticks(range(len(cells)), cells)
    _finish(ax, f"{device}, {record(root, name)['setting']['date']};\n{len(drawn)} shapes drawn at random")
    ax.set(yscale="log", ylim=(0.015, 12))
    ax.set_yticks([0.03, 0.1, 0.3, 1, 3], ["0.03", "0.1", "0.3", "1", "3"])
    ax.minorticks_off()
    ax.legend(frameon=False, fontsize=8, loc="upper left", ncols=2, columnspacing=1, handletextpad=0.5)


def _finish(ax: Axes, title: str) -> None:
    ax.axhline(1.0, color="black", linewidth=1, linestyle="--")
    ax.set_title(title, fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="0.92", zorder=0)
    ax.set_axisbelow(True)


def save_speed_figure(root: Path, path: Path) -> Path:
    """Write the figure as PNG with the checksum of its records."""
    buffer = io.BytesIO()
    draw_speed(root).savefig(buffer, format="png", dpi=110, metadata={"Software": None, "Record": checksum(root)})
    write_bytes(path, buffer.getvalue())
    return path
