"""The figure of a trained mixture network: every unit's activation and derivative against its input, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from noisyact_lab.engine.folder import picture
from noisyact_lab.experiments.mixture.network import Units

__all__ = ["draw"]

_LABELS = {"phi": r"$\phi(x, \xi)$", "dphi": r"$\partial\phi(x, \xi)\, /\, \partial x$"}


def draw(layers: Sequence[Units], title: str) -> Figure:
    """A row for the activations and one for the derivatives, a column for each layer."""
    figure, axes = picture.grid(len(_LABELS), len(layers), sharey=True)
    count = layers[0].x.shape[1]
    colours = [picture.COLOURS[unit % len(picture.COLOURS)] for unit in range(count)]
    for row, (shown, label) in zip(axes, _LABELS.items(), strict=True):
        for layer, (ax, units) in enumerate(zip(row, layers, strict=True)):
            for unit, colour in enumerate(colours):
                x, y = units.x[:, unit].cpu(), getattr(units, shown)[:, unit].cpu()
                # Thousands of points are pixels in an SVG too, or it would be megabytes.
                ax.plot(x, y, ".", color=colour, markersize=3, alpha=0.7, rasterized=True)
            ax.set_title(f"{title}, layer {layer + 1}", fontsize=10)
        row[0].set_ylabel(label)
    for ax in axes[-1]:
        ax.set_xlabel("$x$")
    handles = [Line2D([], [], marker="o", linestyle="", color=c, label=f"unit {i + 1}") for i, c in enumerate(colours)]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 8), frameon=False, fontsize=9)
    return figure
