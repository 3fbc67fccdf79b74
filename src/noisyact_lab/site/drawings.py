"""Figures of the documentation, drawn when it is built: the paper's, those of speed, and how a GPU layer runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from noisyact_lab.bench.grid.map import draw_map
from noisyact_lab.engine.folder import picture
from noisyact_lab.engine.folder.files import read_bytes, write_text
from noisyact_lab.report.figures import FIGURES
from noisyact_lab.report.forest import forest
from noisyact_lab.site.diagrams import barrier, gradient_paths
from noisyact_lab.site.results import effects
from noisyact_lab.site.speed import drawn_rows, record
from noisyact_lab.site.speed_figure import draw_speed

__all__ = ["DRAWINGS", "draw_all"]


def _speed_map(name: str) -> Callable[[Path], Figure]:
    """The function that draws the map of a grid's record."""

    def draw(root: Path) -> Figure:
        setting = record(root, name)["setting"]
        device = "CPU, 1 thread" if name.startswith("cpu") else setting["device"]
        title = f"{device}, torch {setting['torch']}, {setting['date']}: drawn shapes, forward + backward"
        return draw_map(drawn_rows(root, name), title)

    return draw


def _without_records(draw: Callable[[], Figure]) -> Callable[[Path], Figure]:
    return lambda root: draw()


DRAWINGS: dict[str, Callable[[Path], Figure]] = {
    **{name: _without_records(draw) for name, draw in FIGURES.items()},
    "barrier": _without_records(barrier),
    "gradient-paths": _without_records(gradient_paths),
    "speed": draw_speed,
    "speed-map-cpu": _speed_map("cpu-grid"),
    "speed-map-h200": _speed_map("h200-grid"),
}
"""The function that draws each figure, by the name of its file."""


def draw_all(root: Path, folder: Path) -> None:
    """Draw every figure as SVG and PNG, unless the folder has them from the same code and records."""
    sources = [*sorted(root.glob("src/noisyact_lab/**/*.py")), *sorted(root.glob("benchmarks/*.json")),
               *sorted(root.glob("results/**/result.json"))]  # fmt: skip
    mark = hashlib.sha256(b"".join(read_bytes(path) for path in sources)).hexdigest()
    done = folder / "done"
    if done.exists() and done.read_text(encoding="utf-8") == mark:
        return
    folder.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        picture.save(draw(root), folder, name)
    write_text(folder / "forest.svg", forest(effects(root)))
    done.write_text(mark, encoding="utf-8")
