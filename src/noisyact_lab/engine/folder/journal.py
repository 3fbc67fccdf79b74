"""The records that a run appends to: `metrics.jsonl`, one line an evaluation, and `timing.jsonl`, when it was made.

A checkpoint keeps the length and the checksum of the evaluations before it. So a run that is resumed notices lines that
were lost, doubled or changed while it was stopped. Lines behind them were appended before a kill, and are recorded
again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from noisyact_lab.engine.folder.files import (
    Damaged,
    append_line,
    lines_of,
    read_bytes,
    read_lines,
    text_of,
    write_lines,
)
from noisyact_lab.engine.intervals import is_finite

__all__ = ["FILES", "METRICS", "TIMING", "append", "recorded", "rewrite", "seal"]

METRICS, TIMING = FILES = "metrics.jsonl", "timing.jsonl"

Lines = list[dict[str, Any]]


def append(folder: Path, evaluation: dict[str, float], when: dict[str, Any]) -> None:
    """Append an evaluation and its time."""
    append_line(folder / METRICS, evaluation)
    append_line(folder / TIMING, when)


def rewrite(folder: Path, evaluations: Lines, timing: Lines) -> None:
    """Replace both records."""
    write_lines(folder / METRICS, evaluations)
    write_lines(folder / TIMING, timing)


def seal(evaluations: Lines) -> dict[str, Any]:
    """What a checkpoint keeps of the evaluations before it: the length of their lines in bytes, and their checksum.

    >>> seal([{"update": 4, "loss": 0.5}])["bytes"]
    27
    """
    text = text_of(evaluations).encode()
    return {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}


def recorded(folder: Path, update: int, sealed: dict[str, Any] | None) -> tuple[Lines, Lines]:
    """The evaluations and times that a checkpoint knows of.

    Args:
        folder: of the run.
        update: of the checkpoint.
        sealed: what :func:`seal` gave; None for a checkpoint of a version that kept no such thing.

    Raises: Damaged, which names the record, where it is not as the checkpoint left it.
    """
    path = folder / METRICS
    content = read_bytes(path) if path.exists() else b""
    if sealed is None:
        evaluations = _up_to(update, path, lines_of(path, content))
        if not evaluations or evaluations[-1]["update"] != update:
            raise Damaged(path, f"it has no line for update {update}, which there is a checkpoint of")
    else:
        try:
            length, checksum = int(sealed["bytes"]), sealed["sha256"]
        except (KeyError, TypeError, ValueError):
            path = folder / "checkpoints" / f"{update:09d}"
            raise Damaged(path, "what it knows of the records is no checksum") from None
        known = content[:length]
        if len(known) < length:
            raise Damaged(path, f"it has {len(content):,} bytes, and at update {update} there were {length:,}")
        if hashlib.sha256(known).hexdigest() != checksum:
            raise Damaged(path, f"its lines up to update {update} are not those that were recorded")
        evaluations = lines_of(path, known)
    timing = _up_to(update, folder / TIMING, read_lines(folder / TIMING))
    if sealed is not None and [line["update"] for line in timing] != [line["update"] for line in evaluations]:
        raise Damaged(folder / TIMING, f"up to update {update} it has not one line for each evaluation")
    if not all(is_finite(line.get("seconds")) for line in timing):
        raise Damaged(folder / TIMING, "a line has no seconds")
    return evaluations, timing


def _up_to(update: int, path: Path, lines: list[Any]) -> Lines:
    for number, line in enumerate(lines, start=1):
        if not isinstance(line, dict) or not is_finite(line.get("update")):
            raise Damaged(path, f"line {number} has no update")
    return [line for line in lines if line["update"] <= update]
