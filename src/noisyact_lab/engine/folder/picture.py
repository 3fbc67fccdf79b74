"""Pictures: made without a window, saved as SVG and PNG, the same bytes for the same picture."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisyact_lab.engine.folder.files import write_bytes, write_text

__all__ = ["BLACK", "BLUE", "COLOURS", "GREEN", "GREY", "ORANGE", "PURPLE", "RED", "SKY", "grid", "save"]

# Okabe and Ito's colours, which readers of every colour vision tell apart.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#888888"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, BLACK, GREY)


def grid(
    rows: int, columns: int, width: float = 3.2, height: float = 2.6, *, sharey: bool = False
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with rows of axes, each of that size in inches.

    >>> figure, axes = grid(2, 3)
    >>> len(axes), len(axes[0])
    (2, 3)
    """
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey="row" if sharey else False)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, [list(row) for row in axes]


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as SVG and PNG, each whole or not at all. Returns the two paths."""
    vector, pixels = folder / f"{name}.svg", folder / f"{name}.png"
    # Names inside an SVG are random and a date is added, unless told otherwise.
    with matplotlib.rc_context({"svg.hashsalt": "noisyact"}):
        write_text(vector, _rendered(figure, "svg", {"Date": None}).decode())
    write_bytes(pixels, _rendered(figure, "png", {"Software": None}))
    return [vector, pixels]


def _rendered(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()
