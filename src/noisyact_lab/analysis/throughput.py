"""How many runs an hour a device does, by the times that finished runs have recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from noisyact_lab.engine.folder.files import is_finite, read_json, read_lines

__all__ = ["Throughput", "busy", "throughput_of"]

Span = tuple[float, float]
"""From when to when, in seconds."""


@dataclasses.dataclass(frozen=True)
class Throughput:
    """What a kind of device did.

    >>> print(Throughput("NVIDIA H200", runs=45, seconds=900.0, seconds_of_runs=6300.0))
    180 runs an hour on NVIDIA H200 (45 runs, 7 at once)
    """

    device: str
    runs: int
    seconds: float
    """Seconds in which at least one run was at work."""
    seconds_of_runs: float
    """Seconds of all runs, added up."""

    @property
    def runs_an_hour(self) -> float:
        """Finished runs in an hour of work."""
        return 3600 * self.runs / self.seconds

    @property
    def at_once(self) -> float:
        """How many were at work at the same time, on average."""
        return self.seconds_of_runs / self.seconds

    def __str__(self) -> str:
        rate = f"{self.runs_an_hour:,.0f}" if self.runs_an_hour >= 100 else f"{self.runs_an_hour:.3g}"
        return f"{rate} runs an hour on {self.device} ({self.runs} runs, {self.at_once:.2g} at once)"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "device": self.device, "runs": self.runs, "runs_an_hour": self.runs_an_hour, "at_once": self.at_once
        }  # fmt: skip


def throughput_of(folders: Iterable[Path]) -> tuple[Throughput, ...]:
    """The throughput of each kind of device that finished runs were done on; runs without times do not count."""
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
            device, at_work = str(name) if count == 1 else f"{count} x {name}", _spans(timing)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # the table has a note on what cannot be read
        spans.setdefault(device, []).extend(at_work)
        runs[device] = runs.get(device, 0) + 1
    return tuple(
        Throughput(device, runs[device], busy(found), sum(end - start for start, end in found))
        for device, found in spans.items()
        if busy(found) > 0 and is_finite(sum(end - start for start, end in found))
    )


def busy(spans: Sequence[Span]) -> float:
    """How long at least one of the spans lasts.

    >>> busy([(0.0, 2.0), (1.0, 3.0), (10.0, 11.0)])
    4.0
    """
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _spans(timing: Sequence[dict[str, float]]) -> list[Span]:
    """When a run was at work: before each line, for the seconds since the line before; not while it was stopped.

    >>> _spans([{"seconds": 5.0, "at": 105.0}, {"seconds": 7.0, "at": 300.0}])
    [(100.0, 105.0), (298.0, 300.0)]
    """
    before, spans = 0.0, []
    for line in timing:
        spans.append((line["at"] - (line["seconds"] - before), line["at"]))
        before = line["seconds"]
    return spans
