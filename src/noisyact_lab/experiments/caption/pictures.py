"""Where a captioning model looks: for each image a row with a map for each word of its caption."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib import image
from matplotlib.figure import Figure
from torch import Tensor

from noisyact_lab.engine.folder.picture import grid

__all__ = ["draw"]


def draw(rows: Sequence[tuple[str, Path | None, Sequence[str], Tensor]]) -> Figure:
    """Draw maps, bright where the model looks.

    Args:
        rows: for each image its name, its photo if it is to be had, the words of its caption, and the weights of its
            places at each word, [words, side^2].
    """
    columns = 1 + max(len(words) for _, _, words, _ in rows)
    figure, axes = grid(len(rows), 1, float(columns), 1.2)
    for (ax,), (name, photo, words, maps) in zip(axes, rows, strict=True):
        ax.set_axis_off()
        if photo is None:
            ax.text(0.5, 0.5, name.partition("_")[0], ha="center", va="center", fontsize=7)
        else:
            ax.imshow(_pixels(photo), extent=_square(0))
        side = round(maps.shape[1] ** 0.5)
        for column, (word, weights) in enumerate(zip(words, maps, strict=True), 1):
            ax.imshow(
                weights.reshape(side, side).tolist(), cmap="gray", vmin=0, extent=_square(column), interpolation="none"
            )
            ax.text(column + 0.5, 1.0, word, ha="center", va="bottom", fontsize=8)
        ax.set(xlim=(0, columns), ylim=(0, 1.2))
    if any(photo is not None for _, photo, _, _ in rows):
        figure.suptitle("The photos belong to their authors and are not to be published.", fontsize=8, wrap=True)
    return figure


def _square(column: int) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of a picture in its column, with a margin."""
    return column + 0.03, column + 0.97, 0.03, 0.97


def _pixels(photo: Path) -> Tensor:
    try:
        return torch.from_numpy(image.imread(photo).copy())
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{photo}: not a photo that can be read: {error}") from None
