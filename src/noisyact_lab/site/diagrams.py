"""Diagrams of how noise frees a saturated unit and of how the programs of a GPU layer work together."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from noisyact import equations
from noisyact.pairs import HARD_TANH
from noisyact.schemes import NAH
from noisyact_lab.engine.folder import picture

__all__ = ["barrier", "gradient_paths"]


def gradient_paths() -> Figure:
    """The slope of NAH's expectation along each of the paper's three paths, for three values of alpha."""
    alphas = (0.85, 1.0, 1.15)
    figure, [axes] = picture.grid(1, len(alphas), 3.4, 2.9, sharey=True)
    c, p = 2.0, 1.0
    x = torch.linspace(-4, 4, 801, dtype=torch.float64)
    lines = (("linear", "through u (the leak)", picture.BLUE, "-"), ("nonlinear", "through h", picture.GREEN, "-"),
             ("stochastic", "through sigma (the noise)", picture.RED, "--"))  # fmt: skip
    for ax, alpha in zip(axes, alphas, strict=True):
        paths = equations.path_derivatives(x, HARD_TANH, NAH(c=c, alpha=alpha), c, p, None)
        for name, label, colour, style in lines:
            ax.plot(x, getattr(paths, name), style, color=colour, linewidth=2, label=label)
        ax.set(title=rf"$\alpha = {alpha:g}$", xlabel="$x$", xlim=(-4, 4))
        ax.axhline(0.0, color=picture.GREY, linewidth=0.8)
    axes[0].set_ylabel("part of the slope")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False,
                  title=rf"NAH, $\xi$ replaced by its mean; $c = {c:g}$, $p = {p:g}$")  # fmt: skip
    return figure


def barrier() -> Figure:
    """Three programs of one launch over three steps: independent work, a counter, the wait, and the product."""
    figure, [[ax]] = picture.grid(1, 1, 9.0, 3.4)
    parts = (("input, noise", 1.1, picture.SKY), ("wait", 0.0, picture.GREY), ("product with h", 1.5, picture.ORANGE),
             ("cell", 0.6, picture.GREEN), ("store h, count", 0.4, picture.RED))  # fmt: skip
    late = ((0.0, 0.35, 0.1), (0.25, 0.0, 0.3), (0.1, 0.2, 0.0))  # how much longer each program takes at each step
    ready, free = 0.0, [0.0, 0.0, 0.0]
    for step in range(3):
        ends = []
        for program in range(3):
            at = free[program]
            for name, width, colour in parts:
                if name == "wait":
                    width = max(0.0, ready - at)
                elif name == "product with h":
                    width += late[step][program]
                ax.add_patch(Rectangle((at, 2 - program - 0.35), width, 0.7, facecolor=colour, edgecolor="white"))
                at += width
            free[program] = at
            ends.append(at)
        ready = max(ends)
        ax.axvline(ready, color="black", linewidth=1, linestyle=":")
        ax.text(ready, 2.62, f"all have h of step {step + 1}", ha="right", fontsize=8)
    ax.set(xlim=(0, max(free) + 0.1), ylim=(-0.6, 2.85), xlabel="time", xticks=[])
    ax.set_yticks([2, 1, 0], ["program 1", "program 2", "program 3"])
    handles = [Rectangle((0, 0), 1, 1, facecolor=colour) for _, _, colour in parts]
    figure.legend(handles, [name for name, *_ in parts], loc="outside lower center", ncols=5, frameon=False)
    return figure
