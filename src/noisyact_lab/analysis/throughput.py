"""Throughput of a device in runs per hour, computed from the times that finished runs recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from noisyact_lab.engine.folder.files import is_finite, read_json, read_lines

__all__ = ["Span", "Throughput", "busy", "spans_of", "throughput_of"]

Span = tuple[float, float]
"""Start and end of a period, in seconds."""


@dataclasses.dataclass(frozen=True)
class Throughput:
    """The finished runs of one kind of device and the time they took.

    >>> print(Throughput("NVIDIA H200", runs=45, seconds=900.0, seconds_of_runs=6300.0))
    180 runs an hour on NVIDIA H200 (45 runs, 7 at once)
    """

    device: str
    runs: int
    seconds: float
    """The seconds during which at least one run was active."""
    seconds_of_runs: float
    """The sum of the active seconds of all runs."""

    @property
    def runs_an_hour(self) -> float:
        """The number of runs that finish in an hour."""
        return 3600 * self.runs / self.seconds

    @property
    def at_once(self) -> float:
        """The average number of concurrent runs."""
        return self.seconds_of_runs / self.seconds

    def __str__(self) -> str:
        rate = f"{self.runs_an_hour:,.0f}" if self.runs_an_hour >= 100 else f"{self.runs_an_hour:.3g}"
        return f"{rate} runs an hour on {self.device} ({self.runs} runs, {self.at_once:.2g} at once)"

    def as_json(self) -> dict[str, Any]:
        """Return the throughput as a dictionary for JSON output."""
        return {
            "device": self.device, "runs": self.runs, "runs_an_hour": self.runs_an_hour, "at_once": self.at_once
        }  # fmt: skip


def throughput_of(folders: Iterable[Path]) -> tuple[Throughput, ...]:
    """Return the throughput of each kind of device, over the finished runs in these folders that recorded times."""
    spans: dict[str, list[Span]] = {}
    runs: dict[str, int] = {}
    for folder in folders:
        try:
            record, timing = read_json(folder / "result.json"), read_lines(folder / "timing.jsonl")
            count, name = record.get("devices", 1), record["signature"]["device"]
            if record["status"] != "finished" or not timing:
                continue
            if not all(is_finite(line[key]) for line in timing for key in ("at", "seconds")):
                continue
            device, at_work = str(name) if count == 1 else f"{count} x {name}", spans_of(timing)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # the results table has a note on files that cannot be read
        spans.setdefault(device, []).extend(at_work)
        runs[device] = runs.get(device, 0) + 1
    return tuple(
        Throughput(device, runs[device], busy(found), sum(end - start for start, end in found))
        for device, found in spans.items()
        if busy(found) > 0 and is_finite(sum(end - start for start, end in found))
    )


def busy(spans: Sequence[Span]) -> float:
    """Return the length of the union of the spans.

    >>> busy([(0.0, 2.0), (1.0, 3.0), (10.0, 11.0)])
    4.0
    """
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def spans_of(timing: Sequence[dict[str, float]]) -> list[Span]:
    """Return the periods in which a run was active: each ends at a line's time `at` and excludes interruptions.

    >>> spans_of([{"seconds": 5.0, "at": 105.0}, {"seconds": 7.0, "at": 300.0}])
    [(100.0, 105.0), (298.0, 300.0)]
    """
    before, spans = 0.0, []
    for line in timing:
        spans.append((line["at"] - (line["seconds"] - before), line["at"]))
        before = line["seconds"]
    return spans
