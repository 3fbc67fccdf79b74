"""The figure of speed: times of noisy layers over those of torch's layers without noise, from two records."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisyact_lab.bench.grid.summary import geometric_mean, ratio
from noisyact_lab.engine.folder import picture
from noisyact_lab.engine.folder.files import read_bytes, write_bytes
from noisyact_lab.site.speed import grid_rows, record

__all__ = ["RECORDS", "checksum", "draw_speed", "save_speed_figure"]

RECORDS = ("h200-recurrent", "cpu-grid")


def checksum(root: Path) -> str:
    """The checksum of the records, which the picture carries."""
    contents = b"".join(read_bytes(root / "benchmarks" / f"{name}.json") for name in RECORDS)
    return hashlib.sha256(contents).hexdigest()


def draw_speed(root: Path) -> Figure:
    """On the left a bar for each GPU case, on the right the drawn CPU cases and their geometric means."""
    figure = Figure(figsize=(10, 4.6), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2, width_ratios=(1.75, 1))
    _draw_gpu(left, root)
    _draw_cpu(right, root)
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
    _finish(ax, f"{setting['device']}, torch {setting['torch']}, {setting['date']};\nsteps, batch, units, layers")
    ax.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
    ax.set_ylim(0, 1.3)


def _draw_cpu(ax: Axes, root: Path) -> None:
    drawn = [row for row in grid_rows(root) if not row.case.fixed]
    cells = ("LSTM", "GRU", "RNN")
    for at, cell in enumerate(cells):
        values = sorted(r for row in drawn if row.case.cell == cell and (r := ratio(row, "both_ms")) is not None)
        spread = [at + 0.5 * (i / max(1, len(values) - 1) - 0.5) for i in range(len(values))]
        mean = geometric_mean(values)
        ax.bar([at], [mean], 0.7, color=picture.BLUE, alpha=0.35, label="geometric mean" if at == 0 else None)
        ax.plot(spread, values, "o", color=picture.BLUE, markersize=4, label="a drawn shape" if at == 0 else None)
        ax.annotate(f"{mean:.2f}", (at, 0), (0, 4), textcoords="offset points", ha="center", fontsize=10)
    ax.set_xticks(range(len(cells)), cells)
    setting = record(root, "cpu-grid")["setting"]
    _finish(ax, f"CPU, 1 thread, torch {setting['torch'].split('+')[0]}, {setting['date']};\n{len(drawn)} drawn shapes")
    ax.legend(frameon=False, fontsize=8, loc="upper left")


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
