"""Learning curves of recurrent PPO: a figure and a table of what memory_ppo.py recorded.

The figure has a row for each kind of cell and a panel for each environment: the mean over seeds, and a band from the
worst to the best seed. It carries the checksum of the records. The table has means and standard deviations over
seeds. Steps per second are of CPU time in one thread.

Run: python examples/memory_ppo_curves.py DIR FILE.png
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from noisyact.text_table import text_table
from noisyact_lab.engine.folder.files import read_json

HEADER = ("environment", "layer", "seeds", "last return", "evaluation", "rollout", "update", "both")
CELLS = ("lstm", "gru")
Runs = dict[str, dict[str, list[dict[str, Any]]]]


def records_in(folder: Path) -> Runs:
    """The records of a folder by environment and arm."""
    runs: Runs = {}
    for path in sorted(folder.glob("*.json")):
        record = read_json(path, dict)
        records = runs.setdefault(record["settings"]["environment"], {}).setdefault(record["arm"], [])
        if records and settings_but_seed(record) != settings_but_seed(records[0]):
            raise ValueError(f"{path} has other settings than the same layer's first record")
        records.append(record)
    if not runs:
        raise ValueError(f"{folder} has no records: run memory_ppo.py with --out {folder} first")
    return runs


def settings_but_seed(record: dict[str, Any]) -> dict[str, Any]:
    """What the runs of one curve must have in common."""
    return {name: value for name, value in record["settings"].items() if name != "seed"}


def checksum(runs: Runs) -> str:
    """A checksum of the records, by which a test knows that a figure is theirs."""
    return hashlib.sha256(json.dumps(runs, sort_keys=True).encode()).hexdigest()


def spread(values: list[float], digits: int = 3) -> str:
    """Mean and standard deviation; of one value the value."""
    deviation = f" ± {statistics.stdev(values):,.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):,.{digits}f}{deviation}"


def table_of(runs: Runs) -> str:
    """A row for each arm: returns at the end of training and in evaluation mode, and steps per second."""
    rows = []
    for environment, arms in runs.items():
        for arm, records in arms.items():
            curves = [[value for value in record["curve"]["return"] if value is not None] for record in records]
            last = [curve[-1] if curve else math.nan for curve in curves]
            evaluation = [record["evaluation"]["return"] for record in records]
            speeds = [[r["steps_per_second"][part] for r in records] for part in ("rollout", "update", "both")]
            rows.append([environment, arm, str(len(records)), spread(last), spread(evaluation),
                         *(spread(speed, 0) for speed in speeds)])  # fmt: skip
    return text_table(HEADER, rows)


def draw(runs: Runs, picture: Path) -> None:
    """Draw a row of panels for each kind of cell, with a panel for each environment."""
    cells = [cell for cell in CELLS if any(cell in arm for arms in runs.values() for arm in arms)]
    size = 5.5 * len(runs), 3.4 * len(cells) + 0.6
    figure, panels = plt.subplots(len(cells), len(runs), figsize=size, layout="constrained", squeeze=False,
                                  sharex="col", sharey="col")  # fmt: skip
    for row, cell in zip(panels, cells, strict=True):
        for panel, (environment, arms) in zip(row, runs.items(), strict=True):
            for arm, records in arms.items():
                if cell in arm:
                    draw_curve(panel, arm, records)
            panel.set(title=f"{environment}, {cell.upper()}", ylabel="return of an episode")
            panel.grid(alpha=0.3)
            panel.spines[["top", "right"]].set_visible(False)
            if panel.get_legend_handles_labels()[0]:
                panel.legend(frameon=False, loc="lower right")
    for panel in panels[-1]:
        panel.set_xlabel("environment steps")
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=130, metadata={"Record": checksum(runs)})


def draw_curve(panel: Axes, arm: str, records: list[dict[str, Any]]) -> None:
    """Draw the mean of an arm's seeds and the band from the worst to the best."""
    steps = records[0]["curve"]["steps"]
    curves = zip(*(record["curve"]["return"] for record in records), strict=True)
    points = [[value for value in point if value is not None] or [math.nan] for point in curves]
    (line,) = panel.plot(steps, [statistics.fmean(point) for point in points], label=arm, linewidth=2)
    worst, best = [min(point) for point in points], [max(point) for point in points]
    panel.fill_between(steps, worst, best, color=line.get_color(), alpha=0.15, linewidth=0)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Draw the learning curves that memory_ppo.py recorded.")
    parser.add_argument("folder", type=Path, help="folder of the records")
    parser.add_argument("picture", type=Path, help="the figure to write")
    options = parser.parse_args(arguments)
    try:
        runs = records_in(options.folder)
        draw(runs, options.picture)
    except (ValueError, OSError) as error:
        sys.exit(f"memory_ppo_curves.py: {error}")
    print(table_of(runs))


if __name__ == "__main__":
    main()
