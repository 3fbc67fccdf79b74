"""The map of a grid: units and batch on logarithmic axes, coloured by the ratio, one panel for each cell."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, NullLocator

from noisyact_lab.bench.grid.cases import BATCH, CELLS, UNITS
from noisyact_lab.bench.grid.measure import Row
from noisyact_lab.bench.grid.summary import NOISE, ratio
from noisyact_lab.engine.folder.files import write_bytes

__all__ = ["draw_map", "save_map"]

_MARKERS = {"tf32": "D", "float32": "o", "bfloat16": "s", "float16": "^"}


def draw_map(rows: Sequence[Row], title: str, column: str = "both_ms") -> Figure:
    """Draw the ratios of the noisy layers to torch's. Blue is faster than torch, red slower.

    The shape of a marker is the dtype. A ratio above 1 plus the measurement noise has a thick edge and its number, so
    that it can be read without colours.
    """
    shown = [(row, value) for row in rows if not row.case.fixed and (value := ratio(row, column)) is not None]
    cells = [cell for cell in CELLS if any(row.case.cell == cell for row, _ in shown)]
    if not cells:
        raise ValueError("a map needs at least one measured case that was drawn")
    norm = TwoSlopeNorm(1.0, vmin=0.0, vmax=2.0)
    figure = Figure(figsize=(3.4 * len(cells) + 1.4, 4.2), layout="constrained", facecolor="white")
    panels = figure.subplots(1, len(cells), squeeze=False, sharey=True)[0]
    points = None
    for panel, cell in zip(panels, cells, strict=True):
        for dtype, marker in _MARKERS.items():
            some = [(row.case, value) for row, value in shown if (row.case.cell, row.case.dtype) == (cell, dtype)]
            if not some:
                continue
            points = panel.scatter(
                [case.hidden for case, _ in some], [case.batch for case, _ in some], s=70, marker=marker,
                c=[value for _, value in some], cmap="RdBu_r", norm=norm, edgecolors="black", zorder=2,
                linewidths=[2.2 if value > 1.0 + NOISE else 0.6 for _, value in some],
            )  # fmt: skip
            for case, value in some:
                if value > 1.0 + NOISE:
                    place = {"xytext": (6, 5), "textcoords": "offset points"}
                    number = panel.annotate(f"{value:.2f}", (case.hidden, case.batch), fontsize=8, zorder=3, **place)
                    number.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
        _scale(panel, cell)
    panels[0].set_ylabel("batch")
    assert points is not None
    bar = figure.colorbar(points, ax=list(panels), label="time of ours with noise / torch's", extend="max")
    bar.set_ticks([0, 0.25, 0.5, 0.75, 1, 1.5, 2])
    dtypes = [dtype for dtype in _MARKERS if any(row.case.dtype == dtype for row, _ in shown)]
    handles = [
        Line2D([], [], linestyle="", marker=_MARKERS[dtype], color="white", markeredgecolor="black", label=dtype)
        for dtype in dtypes
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle(title, fontsize=10)
    return figure


def _scale(panel, cell: str) -> None:
    panel.set(xscale="log", yscale="log", xlim=(UNITS[0] / 1.3, UNITS[1] * 1.3), ylim=(BATCH[0] / 1.5, BATCH[1] * 1.5))
    panel.set(title=cell, xlabel="units")
    for axis, ticks in ((panel.xaxis, (8, 32, 128, 512, 2048)), (panel.yaxis, (1, 4, 16, 64, 256, 1024))):
        axis.set_ticks(ticks)
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    panel.grid(color="0.9", zorder=0)
    panel.spines[["top", "right"]].set_visible(False)


def save_map(rows: Sequence[Row], path: Path, title: str) -> None:
    """Write the map whole or not at all, as PNG, SVG or PDF by the path's ending."""
    buffer = io.BytesIO()
    draw_map(rows, title).savefig(buffer, format=path.suffix[1:], dpi=150)
    write_bytes(path, buffer.getvalue())
