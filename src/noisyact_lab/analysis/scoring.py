"""Scores that are added to the records of finished runs, from the samples the runs have kept.

A run may be done where the scorers are not installed: it keeps its captions or translations, and they are scored
elsewhere. The scores go into the run's `result.json` with a signature, and nothing else in it changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from noisyact_lab.engine.folder.files import Damaged, locked, read_json, write_json

__all__ = ["Scores", "put_scores", "runs_in", "sampled", "scored_before"]


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores in per cent by name, what gave them, and why one is missing.

    Args:
        values: the scores there are.
        signature: of the scorers and of what they were given.
        missing: why a score is missing; empty where none is.
    """

    values: dict[str, float]
    signature: dict[str, Any]
    missing: str = ""


def runs_in(folder: Path, experiment: str) -> list[Path]:
    """The folders of finished runs of an experiment at or below a folder, in order."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    found = []
    for path in sorted(folder.rglob("result.json")):
        record = read_json(path, dict)
        if record.get("experiment") == experiment and record.get("status") == "finished":
            found.append(path.parent)
    if not found:
        raise ValueError(f"{folder}: there is no finished run of {experiment!r} at or below it")
    return found


def sampled(run: Path, title: str, columns: int) -> list[list[str]]:
    """The rows of a table among the samples of a run; each begins with so many columns of text."""
    path = run / "samples.json"
    tables = [table for table in read_json(path, list) if isinstance(table, dict)] if path.exists() else []
    rows = next((table.get("rows") for table in tables if table.get("title") == title), None)
    if rows is None:
        raise ValueError(f"{run}: its samples.json has no table {title!r}")
    if not isinstance(rows, list) or not all(_is_text(row, columns) for row in rows):
        raise Damaged(path, f"{title!r} is no table of {columns} columns of text")
    return rows


def _is_text(row: Any, columns: int) -> bool:
    return isinstance(row, list) and len(row) >= columns and all(isinstance(cell, str) for cell in row[:columns])


def scored_before(run: Path, names: Sequence[str]) -> Scores | None:
    """The scores of these names that a run has while its samples are gone, as in records kept small; else None."""
    record = _record(run)
    if "scored" not in record or (run / "samples.json").exists():
        return None
    values = {name: record["result"][name] for name in names if name in record["result"]}
    return Scores(values, record["scored"], "runs without their samples.json keep the scores they had")


def _record(run: Path) -> dict[str, Any]:
    record = read_json(run / "result.json", dict)
    if not isinstance(record.get("result"), dict):
        raise Damaged(run / "result.json", "it has no result")
    return record


def put_scores(run: Path, scores: Scores, names: Sequence[str]) -> None:
    """Put scores into the record of a run, in the place of all there are of these names."""
    with locked(run):
        record = _record(run)
        others = {name: value for name, value in record["result"].items() if name not in names}
        record["result"], record["scored"] = {**others, **scores.values}, scores.signature
        write_json(run / "result.json", record)
