"""Benchmark of the parts of a small run: an update and its host overhead, an evaluation, a checkpoint."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from noisyact.text_table import text_table

__all__ = ["CASES", "Row", "measure", "table"]

CASES = [("unique", "reference"), ("unique", "nan-annealed"), ("mnist", "nah"), ("mixture", "nan")]
"""The experiments and arms that are measured, with the preset `paper`."""
_WARM, _COUNTED = 20, 100
"""Warm-up and measured updates in each turn. In a run, all of them come before the first evaluation."""


@dataclasses.dataclass(frozen=True)
class Row:
    """The medians over the turns for one arm, in microseconds or milliseconds."""

    experiment: str
    arm: str
    host_us: float
    """Host time of an update with a CUDA graph. The device may still be busy at its end."""
    update_us: float
    """Time of an update with a CUDA graph until the device has finished."""
    plain_host_us: float
    """Host time of an update without a CUDA graph."""
    plain_us: float
    """Time of an update without a CUDA graph until the device has finished."""
    evaluation_ms: float
    checkpoint_ms: float


def measure(turns: int, device: str) -> Iterator[Row | Exception]:
    """Measure a row for each case, or yield its error. Updates with and without a CUDA graph alternate."""
    for experiment, arm in CASES:
        try:
            yield _row(experiment, arm, turns, torch.device(device))
        except (OSError, ValueError) as error:  # such as missing data
            yield ValueError(f"{experiment} {arm}: {error}")


def table(rows: list[Row], width: int | None = None) -> str:
    """Format the rows as a text table, in lines of at most `width` where one is given."""
    header = ["run", "update", "host time", "without graph", "host time", "evaluation", "checkpoint"]
    return text_table(header, [
        [f"{row.experiment} {row.arm}", *(f"{us:.0f} us" for us in (
            row.update_us, row.host_us, row.plain_us, row.plain_host_us
        )), f"{row.evaluation_ms:.1f} ms", f"{row.checkpoint_ms:.1f} ms"]
        for row in rows
    ], width, kept=(2, 4))  # fmt: skip


def _row(name: str, arm: str, turns: int, device: torch.device) -> Row:
    from noisyact_lab.engine.experiment import load_experiment
    from noisyact_lab.engine.folder import checkpoint

    experiment = load_experiment(name)
    graph, plain = (experiment.start(experiment.effective(arm, "paper"), 0, device) for _ in range(2))
    plain.step = plain._step  # pyright: ignore[reportAttributeAccessIssue]
    found: list[list[float]] = [[] for _ in range(6)]
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns):
            seconds = (
                *_updates(graph, device), *_updates(plain, device), _timed(lambda: graph.evaluate(0), device),
                _timed(lambda at=turn: checkpoint.save(Path(folder), at, graph), device),
            )  # fmt: skip
            for spent, of_turn in zip(found, seconds, strict=True):
                spent.append(of_turn)
    host, total, plain_host, plain_total, evaluation, saving = map(statistics.median, found)
    each = 1e6 / _COUNTED
    return Row(
        name, arm, host * each, total * each, plain_host * each, plain_total * each, evaluation * 1e3, saving * 1e3
    )


def _updates(task: Any, device: torch.device) -> tuple[float, float]:
    """Return the seconds that the measured updates take until the host, and until the device, has finished."""
    for index in range(_WARM):
        task.update(index)
    _wait(device)
    start = time.perf_counter()
    for index in range(_WARM, _WARM + _COUNTED):
        task.update(index)
    host = time.perf_counter() - start
    _wait(device)
    return host, time.perf_counter() - start


def _timed(function: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    function()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
