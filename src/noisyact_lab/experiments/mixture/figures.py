"""The figure of a trained mixture network: every unit's activation and derivative against its input, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from noisyact_lab.engine.folder import picture

__all__ = ["draw"]

_LABELS = (r"$\phi(x, \xi)$", r"$\partial\phi(x, \xi)\, /\, \partial x$")


def draw(layers: Sequence[tuple[Tensor, Tensor, Tensor]], title: str) -> Figure:
    """A row for the activations and one for the derivatives, a column for each layer.

    Args:
        layers: for each the inputs of its units, their activations and their derivatives, [points, units].
        title: of the network.
    """
    figure, axes = picture.grid(len(_LABELS), len(layers), sharey=True)
    colours = [picture.COLOURS[unit % len(picture.COLOURS)] for unit in range(layers[0][0].shape[1])]
    for shown, (row, label) in enumerate(zip(axes, _LABELS, strict=True), 1):
        for layer, (ax, units) in enumerate(zip(row, layers, strict=True)):
            for unit, colour in enumerate(colours):
                x, y = units[0][:, unit].cpu(), units[shown][:, unit].cpu()
                # Thousands of points are pixels in an SVG too, or it would be megabytes.
                ax.plot(x, y, ".", color=colour, markersize=3, alpha=0.7, rasterized=True)
            ax.set_title(f"{title}, layer {layer + 1}", fontsize=10)
        row[0].set_ylabel(label)
    for ax in axes[-1]:
        ax.set_xlabel("$x$")
    handles = [Line2D([], [], marker="o", linestyle="", color=c, label=f"unit {i + 1}") for i, c in enumerate(colours)]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 8), frameon=False, fontsize=9)
    return figure
