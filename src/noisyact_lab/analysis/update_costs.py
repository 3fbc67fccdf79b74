"""The time of an update relative to that of one arm, computed from the times that runs recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from noisyact_lab.analysis.estimates import Estimate, Row
from noisyact_lab.analysis.throughput import Span, spans_of
from noisyact_lab.engine.folder.files import is_finite, read_json, read_lines
from noisyact_lab.engine.folder.records import TIMING

__all__ = ["COST", "add_costs", "seconds_per_update"]

COST = "update_cost"


def seconds_per_update(timing: Sequence[dict[str, Any]]) -> float | None:
    """The seconds of an update, with its share of the evaluations, from the lines of `timing.jsonl`.

    The time up to the first evaluation has no part in it: it has the start of the run, and on a GPU the recording of
    CUDA graphs. None if there are fewer than two evaluations.

    >>> seconds_per_update([{"update": 10, "seconds": 9.0}, {"update": 20, "seconds": 10.0}])
    0.1
    """
    if len(timing) < 2 or not all(is_finite(line.get(key)) for line in timing for key in ("update", "seconds")):
        return None
    updates = timing[-1]["update"] - timing[0]["update"]
    seconds = timing[-1]["seconds"] - timing[0]["seconds"]
    return seconds / updates if updates > 0 and seconds > 0 else None


def add_costs(folder: Path, rows: Sequence[Row], against: str, notes: list[str]) -> None:
    """Give each row the number `update_cost`: the ratio of its seconds per update to those of another arm.

    Runs are compared with the run of the same seed, if the kind of device, the versions and the code are the same. A
    run has no part in it if another run of the table was active at the same time: the two slowed each other down.

    Args:
        folder: of the experiment and preset.
        rows: of the table.
        against: the name of the other arm.
        notes: of the table; what the number means is added.
    """
    runs = [run for row in rows for path in sorted((folder / row.name).glob("seed-*")) for run in _run_in(path)]
    alone = {
        (run.arm, run.seed): run for run in runs if not any(run.overlaps(other) for other in runs if other is not run)
    }
    for row in rows:
        ratios = {
            seed: run.seconds / base.seconds
            for (arm, seed), run in alone.items()
            if arm == row.name and (base := alone.get((against, seed))) is not None and base.where == run.where
        }
        if ratios:
            row.numbers[COST] = Estimate(tuple(ratios.values()), tuple(ratios))
    if any(COST in row.numbers for row in rows):
        notes.append(
            f"{COST} is the time of an update, with its share of the evaluations, relative to {against} with the same "
            "seed, of runs that were done one at a time. It means nothing if others used the machine meanwhile"
        )
    elif runs:
        notes.append(f"{COST} needs runs of {against} and of other arms that were done one at a time (--jobs 1)")


@dataclasses.dataclass(frozen=True)
class _Run:
    arm: str
    seed: str
    seconds: float
    """Per update."""
    where: tuple[Any, ...]
    """What must be the same in runs that are compared."""
    spans: tuple[Span, ...]

    def overlaps(self, other: _Run) -> bool:
        """Whether both were active at the same time."""
        return any(a[0] < b[1] and b[0] < a[1] for a in self.spans for b in other.spans)


def _run_in(folder: Path) -> Iterator[_Run]:
    """The run of a folder; nothing if it did not finish or has no times."""
    try:
        record, timing = read_json(folder / "result.json", dict), read_lines(folder / TIMING)
        seconds, signature = seconds_per_update(timing), record["signature"]
        where = tuple(signature[name] for name in ("device", "threads", "torch", "commit"))
        spans = spans_of(timing)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # the table has a note on files that cannot be read
    if record["status"] == "finished" and seconds is not None:
        yield _Run(folder.parent.name, folder.name.removeprefix("seed-"), seconds, where, tuple(spans))
