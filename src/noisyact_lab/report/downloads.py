"""The numbers of the page as CSV files inside of it: data URLs, which need no script and no network."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from noisyact_lab.analysis.effects import Effect
from noisyact_lab.report.sections import Section

__all__ = ["csv_url", "effects_csv", "runs_csv"]

Cell = str | float | None


def csv_url(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A table as the data URL of a CSV file.

    Text that a spreadsheet would take for a formula gets a quote before it: names of folders are not trusted.

    >>> csv_url(["arm", "error"], [["nan", 0.5], ["=1+1", None]])
    'data:text/csv;charset=utf-8,arm%2Cerror%0D%0Anan%2C0.5%0D%0A%27%3D1%2B1%2C%0D%0A'
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows([[_safe(cell) for cell in row] for row in rows])
    return f"data:text/csv;charset=utf-8,{quote(text.getvalue())}"


def runs_csv(section: Section) -> str:
    """Every run of a section: its arm, seed, ending and commit, and all its numbers in full."""
    names = list(dict.fromkeys(name for arm in section.arms for name in arm.row.numbers))
    rows = [
        [
            arm.row.name, arm.row.title, run.seed, run.status, run.commit,
            *(_value(arm.row.numbers, name, run.seed) for name in names),
        ]
        for arm in section.arms
        for run in arm.runs
    ]  # fmt: skip
    return csv_url(["arm", "title", "seed", "status", "commit", *names], rows)


def effects_csv(effects: Sequence[Effect]) -> str:
    """All effects with every field."""
    names = [field.name for field in dataclasses.fields(Effect) if field.name != "interval"]
    return csv_url(names, [[getattr(effect, name) for name in names] for effect in effects])


def _value(numbers: dict, name: str, seed: str) -> float | None:
    return numbers[name].by_seed.get(seed) if name in numbers else None


def _safe(cell: Cell) -> Cell:
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell
