"""Learning curves for the report: the mean over an arm's finished runs with its 95% interval, and each run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from noisyact_lab.analysis.statistics.intervals import LEAST_SEEDS, mean_interval
from noisyact_lab.report.sections import Column, Run, Section

__all__ = ["alike_later", "curves_of", "mean_of"]

_MOST_POINTS = 300
"""The maximum number of points in a line. More would not be visible on a screen."""


def curves_of(section: Section) -> dict[str, Any]:
    """Return the curves of a section as JSON data for the page. Arms without an evaluation are left out.

    Of the numbers about noise there are only means, because there are many of them.
    """
    metrics, noise = section.metrics, section.noise
    arms = [
        {
            "index": index, "name": arm.row.name, "title": arm.row.title,
            "mean": {
                metric: _thinned(mean_of(arm.runs, metric, carried=metric == section.experiment.ending_metric))
                for metric in itertools.chain(metrics, *noise.values())
            },
            "runs": [_of_run(run, metrics) for run in arm.runs], "banded": arm.row.finished >= LEAST_SEEDS,
        }
        for index, arm in enumerate(section.arms)
        if any(run.curve for run in arm.runs)
    ]  # fmt: skip
    return {
        "metrics": metrics, "noise": noise, "headline": section.experiment.metric, "arms": arms,
        "logX": alike_later([arm["mean"][metrics[0]] for arm in arms]) if metrics else False,
    }  # fmt: skip


def alike_later(lines: Sequence[dict[str, Column]]) -> bool:
    """Return whether the arms differ only in the first third of the axis, so that it is better logarithmic.

    They differ where the lowest and the highest mean are further apart than a tenth of the largest such distance.

    >>> x = list(range(1, 10))
    >>> alike_later([{"x": x, "y": [9, 5, 1, 1, 1, 1, 1, 1, 1]}, {"x": x, "y": [9, 9, 5, 1, 1, 1, 1, 1, 1]}])
    True
    >>> alike_later([{"x": x, "y": [9, 8, 7, 6, 5, 4, 3, 2, 1]}, {"x": x, "y": [9, 9, 8, 8, 7, 7, 6, 6, 5]}])
    False
    """
    spread: dict[float, list[float]] = {}
    for line in lines:
        for x, y in zip(line["x"], line["y"], strict=True):
            if x is not None and y is not None:
                spread.setdefault(x, []).append(y)
    distance = {x: max(values) - min(values) for x, values in spread.items() if len(values) > 1}
    largest = max(distance.values(), default=0.0)
    differing = [x for x, between in distance.items() if between > largest / 10]
    return bool(differing) and min(distance) > 0 and max(differing) <= max(distance) / 3


def mean_of(runs: Sequence[Run], metric: str, *, carried: bool = False) -> dict[str, Column]:
    """Return the mean over finished runs and the ends of its 95% interval, at each update that all of them have.

    Fewer than three runs have no interval. If `carried`, a run that ended before others keeps its last value.

    >>> columns = [{"update": [1, 2], "loss": [3.0, 1.0]}, {"update": [1, 2, 3], "loss": [5.0, 1.0, 1.0]}]
    >>> mean_of([Run("0", "finished", "", None, "cpu", of_run) for of_run in columns], "loss")
    {'x': [1, 2], 'y': [4.0, 1.0], 'low': [None, None], 'high': [None, None]}
    >>> runs = [Run("0", "finished", "", None, "cpu", of_run) for of_run in columns]
    >>> mean_of(runs, "loss", carried=True)["x"]
    [1, 2, 3]
    """
    finished = [dict(zip(*_line(run, metric), strict=True)) for run in runs if run.status == "finished"]
    if carried:
        every = sorted(set[float]().union(*finished))
        finished = [{**{x: line[max(line)] for x in every if x > max(line)}, **line} for line in finished if line]
    shared = sorted(set.intersection(*(set(line) for line in finished))) if finished else []
    ends = [mean_interval([line[update] for line in finished]) for update in shared]
    if len(finished) < LEAST_SEEDS:  # Student's t for two is so wide that its interval says nothing
        ends = [(mean, None, None) for mean, _, _ in ends]
    y, low, high = ([_rounded(end[i]) for end in ends] for i in range(3))
    return {"x": [*shared], "y": y, "low": low, "high": high}


def _of_run(run: Run, metrics: Sequence[str]) -> dict[str, Any]:
    lines = {}
    for metric in metrics:
        x, y = _line(run, metric)
        lines[metric] = _thinned({"x": [*x], "y": [_rounded(value) for value in y]})
    return {"seed": run.seed, "status": run.status, "ending": run.ending, "lines": lines}


def _line(run: Run, metric: str) -> tuple[list[float], list[float]]:
    """Return the updates at which the metric has a value, and these values."""
    both = zip(run.curve.get("update", []), run.curve.get(metric, []), strict=False)
    known = [(x, y) for x, y in both if x is not None and y is not None]
    return [x for x, _ in known], [y for _, y in known]


def _rounded(value: float | None) -> float | None:
    """Round to five digits, to keep a page with many curves small. Returns None for an infinite result."""
    return None if value is None or math.isinf(rounded := float(f"{value:.5g}")) else rounded


def _thinned(columns: dict[str, Column]) -> dict[str, Column]:
    """Keep at most about `_MOST_POINTS` equally spaced points, including the first and the last."""
    count = len(columns["x"])
    step = -(-count // _MOST_POINTS)
    if step <= 1:
        return columns
    kept = sorted({*range(0, count, step), count - 1})
    return {name: [column[i] for i in kept] for name, column in columns.items()}
