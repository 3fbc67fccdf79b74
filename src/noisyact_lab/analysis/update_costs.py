"""The time of an update relative to that of one arm, computed from the times that runs recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from noisyact_lab.analysis.estimates import Estimate, Row
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

    Runs are compared with the run of the same seed, if the kind of device, the versions and the code are the same.

    Args:
        folder: of the experiment and preset.
        rows: of the table.
        against: the name of the other arm.
        notes: of the table; what the number means is added.
    """
    base = _costs(folder / against)
    found = {row.name: _ratios(_costs(folder / row.name), base) for row in rows}
    for row in rows:
        if ratios := found[row.name]:
            row.numbers[COST] = Estimate(tuple(ratios.values()), tuple(ratios))
    if any(found.values()):
        notes.append(
            f"{COST} is the time of an update, with its share of the evaluations, relative to {against} with the same "
            "seed. Runs that share a device slow each other down, so this is a rough number"
        )


def _ratios(mine: dict[str, tuple[float, Any]], base: dict[str, tuple[float, Any]]) -> dict[str, float]:
    return {
        seed: seconds / base[seed][0] for seed, (seconds, where) in mine.items() if seed in base
        and base[seed][1] == where
    }  # fmt: skip


def _costs(folder: Path) -> dict[str, tuple[float, Any]]:
    """The seconds per update of each finished run and where they were measured, by seed; else it has no part in it."""
    found = {}
    for path in sorted(folder.glob("seed-*")):
        try:
            record = read_json(path / "result.json", dict)
            seconds = seconds_per_update(read_lines(path / TIMING))
            signature = record["signature"]
            where = [signature[name] for name in ("device", "threads", "torch", "commit")]
            if record["status"] == "finished" and seconds is not None:
                found[path.name.removeprefix("seed-")] = seconds, where
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # the table has a note on files that cannot be read
    return found
