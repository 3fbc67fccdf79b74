"""Figures of trained mixture networks: every unit's activation and derivative against its input, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from noisyact_lab.engine.folder import checkpoint, picture
from noisyact_lab.engine.folder.files import read_json
from noisyact_lab.engine.job import folder_of
from noisyact_lab.experiments.mixture.mixture import MIXTURE, Mixture, Settings

__all__ = ["draw", "draw_runs", "trained"]

_Shown = Literal["phi", "dphi"]
_LABELS = {"phi": r"$\phi(x, \xi)$", "dphi": r"$\partial\phi(x, \xi)\, /\, \partial x$"}
_POINTS = 300
_SEED = 7
"""Of the noise: the same run gives the same figure."""


def trained(folder: Path) -> Mixture:
    """The run kept in a folder, as its last checkpoint has it."""
    config = read_json(folder / "config.json", dict)
    if config.get("experiment") != MIXTURE.name:
        raise ValueError(f"{folder} has a run of {config.get('experiment')!r}, not of {MIXTURE.name!r}")
    with torch.random.fork_rng(devices=[]):  # a checkpoint sets torch's generator, which belongs to the caller
        task = Mixture(Settings(**config["settings"]), config["seed"], torch.device("cpu"))
        if checkpoint.load_last(folder / "checkpoints", task) == 0:
            raise FileNotFoundError(f"{folder} has no checkpoint to draw")
    return task


def draw(task: Mixture) -> Figure:
    """Activation and derivative of every unit against its input, a column for each layer, noise as in training."""
    return _draw([(task, "phi"), (task, "dphi")])


def draw_runs(out: Path, preset: str, seed: int) -> dict[str, Figure]:
    """The figures of the runs kept under `out`, by name: one for each arm that has a checkpoint, and the paper's two.

    Those set tanh against noisy tanh: `mixture-activations` (half-normal noise) and `mixture-derivatives` (normal).
    """
    folders = {arm.name: folder_of(out, MIXTURE.name, preset, arm.name, seed) for arm in MIXTURE.arms}
    runs = {name: trained(folder) for name, folder in folders.items() if any(folder.glob("checkpoints/[0-9]*"))}
    figures = {f"mixture-{name}": draw(task) for name, task in runs.items()}
    if {"tanh", "nah"} <= runs.keys():
        figures["mixture-activations"] = _draw([(runs["tanh"], "phi"), (runs["nah"], "phi")])
    if {"tanh", "nan"} <= runs.keys():
        figures["mixture-derivatives"] = _draw([(runs["tanh"], "dphi"), (runs["nan"], "dphi")])
    return figures


def _draw(rows: list[tuple[Mixture, _Shown]]) -> Figure:
    """A row of axes for each task and what is shown of it."""
    settings = rows[0][0].settings
    figure, axes = picture.grid(len(rows), settings.layers, sharey=True)
    colours = [picture.COLOURS[unit % len(picture.COLOURS)] for unit in range(settings.units)]
    for row, (task, shown) in zip(axes, rows, strict=True):
        for layer, (ax, units) in enumerate(zip(row, task.model.units(task.test[0][:_POINTS], _SEED), strict=True)):
            for unit, colour in enumerate(colours):
                x, y = units.x[:, unit].cpu(), getattr(units, shown)[:, unit].cpu()
                # Thousands of points are pixels in an SVG too, or it would be megabytes.
                ax.plot(x, y, ".", color=colour, markersize=3, alpha=0.7, rasterized=True)
            ax.set_title(f"{_name(task.settings)}, layer {layer + 1}", fontsize=10)
        row[0].set_ylabel(_LABELS[shown])
    for ax in axes[-1]:
        ax.set_xlabel("$x$")
    handles = [Line2D([], [], marker="o", linestyle="", color=c, label=f"unit {i + 1}") for i, c in enumerate(colours)]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 8), frameon=False, fontsize=9)
    return figure


def _name(settings: Settings) -> str:
    if settings.activation in ("tanh", "hard"):
        return {"tanh": "tanh", "hard": "hard tanh"}[settings.activation]
    return rf"{settings.activation.upper()} ($\alpha = {settings.alpha:g}$, $c = {settings.c:g}$)"
