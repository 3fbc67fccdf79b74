"""The paper's figures that need no training, drawn with the library's functions.

The paper does not state their settings. The ones chosen here are in the titles and legends.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from noisyact import anneal, equations, functional
from noisyact.pairs import HARD_TANH
from noisyact.schemes import NAH, NAN, NANI
from noisyact_lab.engine.folder import picture

__all__ = [
    "FIGURES", "alphas", "annealing", "derivatives", "descent", "draw_all", "gaussian_noise", "objective",
    "smoothed",
]  # fmt: skip


def derivatives() -> Figure:
    """Derivatives of tanh, sigmoid and their hard versions, which are exactly 0 where a hard version saturates."""
    figure, [[ax]] = picture.grid(1, 1, 5.6, 3.6)
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "tanh": torch.tanh,
        "hard-tanh": functional.hard_tanh,
        "sigmoid": torch.sigmoid,
        "hard-sigmoid": functional.hard_sigmoid,
    }
    x = torch.linspace(-4, 4, 1601, dtype=torch.float64)
    for (name, f), colour in zip(functions.items(), picture.COLOURS, strict=False):
        ax.plot(x, _slope(f, x), colour, linestyle="-" if "hard" in name else "--", linewidth=2, label=name)
    ax.set(xlabel="$x$", ylabel="derivative", title="Derivatives of soft and hard saturating functions", xlim=(-4, 4))
    ax.legend(frameon=False)
    return figure


def _slope(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x).sum(), x)[0]


_STEPS = ((-1.0, -1.0, 4.0), (1.0, 4.5, 1.5), (0.5, -3.5, 0.5), (-0.5, -2.5, 0.5), (0.4, -0.5, 0.5), (-0.4, 0.75, 0.75))
"""Height, centre and half-width of each hard tanh in the objective: a valley with its minimum at 3, and two traps."""


def objective(x: Tensor, sigma: Tensor | float = 0.0, xi: Tensor | None = None) -> Tensor:
    """Evaluate a one-dimensional non-convex function: a sum of hard tanhs with the same noise at their inputs (NANI).

    So ``objective(x, sigma, xi) = f(x + sigma xi)``, and its mean over xi is f smoothed by a Gaussian of width sigma.
    f has local minima at -4 and -1 and its global minimum at 3. It is flat below -5 and above 6.

    >>> objective(torch.tensor([-4.0, -1.0, 3.0]))
    tensor([-0.2500, -1.0000, -2.0000])
    """
    total = torch.zeros_like(x)
    for height, centre, width in _STEPS:
        noisy = equations.phi((x - centre) / width, HARD_TANH, NANI(), sigma / width, 1.0, xi)
        total = total + height * noisy
    return total


def smoothed(x: Tensor, sigma: float, points: int = 401) -> Tensor:
    """Return the mean of :func:`objective` over xi, by quadrature with `points` quantiles of the standard normal."""
    xi = torch.special.ndtri((torch.arange(points, dtype=x.dtype) + 0.5) / points)
    return objective(*torch.broadcast_tensors(x[:, None], torch.tensor(sigma, dtype=x.dtype), xi)).mean(dim=1)


def annealing() -> Figure:
    """Noise smooths a non-convex objective, and as it is annealed the minimum moves to that of the objective."""
    figure, [[left, right]] = picture.grid(1, 2, 4.8, 3.8)
    x = torch.linspace(-8, 8, 801, dtype=torch.float64)
    for sigma, colour in zip((4.0, 2.0, 1.0, 0.0), (picture.ORANGE, picture.GREEN, picture.BLUE, "k"), strict=True):
        y = smoothed(x, sigma)
        left.plot(x, y, color=colour, linewidth=2, label=rf"$\sigma = {sigma:g}$")
        left.plot(x[y.argmin()], y.min(), "o", color=colour, markersize=8, markeredgecolor="white")
    left.set(xlabel="$x$", ylabel=r"$\mathrm{E}_\xi\, f(x + \sigma\xi)$", title="Less and less noise; dots: minima")
    left.legend(frameon=False, loc="upper center")

    steps = 1000
    right.plot(descent(0.0, 1, steps), color=picture.RED, linewidth=2, label="no noise")
    noisy = right.plot(descent(4.0, 5, steps), color=picture.BLUE, linewidth=1, alpha=0.7)
    noisy[0].set_label(r"noise annealed from $\sigma = 4$")
    right.axhline(3.0, color="k", linestyle=":", label=r"the minimum $x^\ast$")
    right.set(xlabel="update", ylabel="$x$", title="Gradient descent from $x = -6$", xlim=(0, steps))
    right.legend(frameon=False, loc="center right")
    return figure


def descent(start: float, runs: int, steps: int) -> Tensor:
    """Return the path x, [steps + 1, runs], of gradient descent on the objective from x = -6.

    Each step draws a new xi, and sigma falls linearly from `start` to 0.
    """
    schedule = anneal.linear(start, 0.0, steps)
    xi = functional.standard_normal(torch.tensor(1), (steps, runs)).double()
    path = [torch.full((runs,), -6.0, dtype=torch.float64)]
    for step in range(steps):
        sigma = schedule(step)
        path.append(path[-1] - 0.3 * _slope(lambda x, s=sigma, n=xi[step]: objective(x, s, n), path[-1]))
    return torch.stack(path)


def gaussian_noise() -> Figure:
    """Gaussian noise around the hard tanh h: its linearisation u, and Delta = h - u, which determines sigma."""
    figure, [[ax]] = picture.grid(1, 1, 5.8, 4.2)
    c, p, alpha = 2.0, 1.0, 1.0
    x = torch.linspace(-4, 4, 801, dtype=torch.float64)
    h, u = HARD_TANH.h(x), HARD_TANH.u(x)
    sigma = equations.sigma(equations.delta(h, u), p, c)
    for width, shade in ((2, 0.18), (1, 0.3)):
        ax.fill_between(x, h - width * sigma, h + width * sigma, color=picture.ORANGE, alpha=shade, linewidth=0)
    samples = torch.linspace(-4, 4, 400, dtype=torch.float64)
    xi = functional.standard_normal(torch.tensor(2), samples.shape).double()
    phi = equations.phi(samples, HARD_TANH, NAN(c=c, alpha=alpha), c, p, xi)
    ax.plot(samples, phi, ".", color=picture.RED, markersize=3, label=r"$\phi(x, \xi)$, samples", rasterized=True)
    ax.plot(x, u, "--", color=picture.BLUE, linewidth=1.5, label="$u(x)$")
    ax.plot(x, h, color=picture.GREEN, linewidth=3.5, label="$h(x)$")
    at = torch.tensor(2.6, dtype=torch.float64)
    tip, tail = (float(at), float(HARD_TANH.h(at))), (float(at), float(HARD_TANH.u(at)))
    ax.annotate("", tip, tail, arrowprops={"arrowstyle": "->", "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0})
    ax.text(float(at) + 0.12, 2.0, r"$\Delta = h - u$", va="center")
    ax.set(
        xlabel="$x$", xlim=(-4, 4), ylim=(-3, 3), title=rf"NAN, $c = {c:g}$, $p = {p:g}$; bands: 1 and 2 $\sigma(x)$"
    )
    ax.legend(frameon=False, loc="upper left")
    return figure


def alphas() -> Figure:
    """The noisy hard tanh for alpha below, equal to and above 1: samples, their expectation, and h."""
    schemes = {"normal (NAN)": NAN, "half-normal (NAH)": NAH}
    figure, axes = picture.grid(len(schemes), 3, 3.4, 2.9, sharey=True)
    c, p = 2.0, 1.0
    x = torch.linspace(-4, 4, 401, dtype=torch.float64)
    xi = functional.standard_normal(torch.tensor(3), x.shape).double()
    for row, (kind, scheme) in zip(axes, schemes.items(), strict=True):
        for ax, alpha in zip(row, (0.85, 1.0, 1.15), strict=True):
            noise = scheme(c=c, alpha=alpha)
            ax.plot(
                x, equations.phi(x, HARD_TANH, noise, c, p, xi), ".", color=picture.SKY, markersize=3, rasterized=True
            )
            ax.plot(x, HARD_TANH.h(x), color=picture.GREEN, linewidth=3.5)
            ax.plot(x, equations.phi(x, HARD_TANH, noise, c, p, None), "--", color=picture.BLACK, linewidth=1.3)
            ax.set_title(rf"$\alpha = {alpha:g}$, {kind}", fontsize=10)
            ax.set(xlim=(-4, 4), ylim=(-3, 3), xlabel="$x$" if row is axes[-1] else "")
        row[0].set_ylabel(r"$\phi(x, \xi)$")
    names = (r"samples $\phi(x, \xi)$", "$h(x)$", r"$\mathrm{E}_\xi\, \phi(x, \xi)$")
    figure.legend(
        axes[0][0].lines, names, loc="outside lower center", ncols=3, frameon=False, markerscale=3,
        title=rf"$c = {c:g}$, $p = {p:g}$",
    )  # fmt: skip
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "derivatives": derivatives,
    "annealing": annealing,
    "gaussian-noise": gaussian_noise,
    "alphas": alphas,
}
"""The function that draws each figure, by the name of the figure's file."""


def draw_all(folder: Path) -> list[Path]:
    """Write every figure as SVG and PNG, and return the paths of the files."""
    return [path for name, draw in FIGURES.items() for path in picture.save(draw(), folder, name)]
