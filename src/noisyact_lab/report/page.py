"""The report: one page of HTML with tables, curves, samples, pictures and a playground, that needs no network.

Whatever comes from a run's folder goes into the page as text, as data or as an image, never as markup; and the page
allows no script but its own, by its hash. So a hostile name stays a name.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import math
import re
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

import noisyact
from noisyact_lab.analysis import agreement
from noisyact_lab.analysis.results_table import Estimate
from noisyact_lab.report.curves import curves_of
from noisyact_lab.report.records import Section, embedded, sections, strangers

__all__ = ["drawn_figures", "write"]

_SCRIPTS = ("phi.js", "scale.js", "chart.js", "curves.js", "playground.js", "page.js")


def write(out: Path, to: Path, figures: Sequence[dict[str, str]] = ()) -> Path:
    """Write the report of all runs below `out`.

    Args:
        out: where the runs are.
        to: the file to write.
        figures: of each its `caption` and its `source`, a data URL.
    """
    from noisyact_lab.engine.folder.files import write_text

    found = sections(out)
    script = "\n".join(_part(name) for name in _SCRIPTS)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = _number
    page = environment.from_string(_part("page.html.j2")).render(
        css=_part("page.css"),
        js=script,
        js_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        sections=[_shown(section) for section in found],
        data=_as_data([curves_of(section) for section in found]),
        figures=figures,
        strangers=strangers(out),
        version=noisyact.__version__,
        date=datetime.date.today().isoformat(),
        runs=sum(sum(section.count.values()) for section in found),
    )
    write_text(to, page)
    return to


def drawn_figures() -> list[dict[str, str]]:
    """The paper's figures that need no training, each with what it shows and its picture."""
    from noisyact_lab.report.figures import FIGURES, draw_all

    drawn = []
    with tempfile.TemporaryDirectory() as folder:
        for path in draw_all(Path(folder)):
            if path.suffix == ".svg":
                # A hundredth of a point is finer than any screen, and without the rest the picture is a third smaller.
                # Numbers below 1 stay: among them are the scales of letters.
                text = re.sub(r"\b([1-9]\d*\.\d\d)\d+", r"\1", path.read_text(encoding="utf-8"))
                path.write_text(text, encoding="utf-8")
                caption = (FIGURES[path.stem].__doc__ or path.stem).splitlines()[0]
                drawn.append({"caption": caption, "source": embedded(path)})
    return drawn


def _shown(section: Section) -> dict[str, Any]:
    """A section as the template has it: the records, and what is said about them."""
    table, experiment = section.table, section.experiment
    headline = [arm.row.numbers.get(table.metric, Estimate(())) for arm in section.arms]
    span = _span(headline, [arm.row.paper for arm in section.arms])
    arms = [
        {
            "index": index, "row": arm.row, "runs": arm.runs, "ours": ours, "seed": arm.shown_seed,
            "title": arm.row.title, "samples": arm.samples,
            "words": agreement.against_paper(ours, arm.row.paper), "place": _place(ours, arm.row.paper, span),
        }
        for index, (arm, ours) in enumerate(zip(section.arms, headline, strict=True))
    ]  # fmt: skip
    pictures: dict[str, list[tuple[Any, str]]] = {}
    for arm, runs in zip(arms, section.arms, strict=True):
        for picture in runs.pictures:
            pictures.setdefault(picture.name, []).append((arm, picture.source))
    pairs = agreement.pairs(table)
    return {
        "id": "-".join(filter(None, (experiment.name, section.preset, "sweep" * bool(section.swept), section.swept))),
        "title": experiment.title + (f": sweep of {section.swept}" if section.swept else ""), "section": section,
        "experiment": experiment, "preset": section.preset, "arms": arms, "others": table.others, "pairs": pairs,
        "summary": agreement.summary(pairs), "order": table.order(), "pictures": pictures, "span": span,
        "samples": [arm for arm in arms if arm["samples"]], "count": section.count,
        "papers": any(arm.row.paper is not None for arm in section.arms),
    }  # fmt: skip


def _span(estimates: Sequence[Estimate], papers: Sequence[float | None]) -> tuple[float, float] | None:
    """From the least to the greatest number there is; intervals, which can be vast, have no part in it."""
    values = [value for estimate in estimates for value in estimate.reached] + [p for p in papers if p is not None]
    if not values:
        return None
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.5
    low, high = low - margin, high + margin
    return (low, high) if 0 < high - low < math.inf else None  # vast numbers have no room beside each other


def _place(ours: Estimate, paper: float | None, span: tuple[float, float] | None) -> dict[str, Any]:
    """Where the marks of a row are, in per cent of its width."""

    if span is None:
        return {"mean": None, "values": [], "interval": None, "paper": None}

    def at(value: float) -> float:
        return round(100 * min(1.0, max(0.0, (value - span[0]) / (span[1] - span[0]))), 2)

    ends = ours.interval
    return {
        "mean": None if ours.mean is None else at(ours.mean), "values": [at(value) for value in ours.reached],
        "interval": None if ends is None else (at(ends[0]), round(at(ends[1]) - at(ends[0]), 2)),
        "paper": None if paper is None else at(paper),
    }  # fmt: skip


def _number(value: float | None) -> str:
    """Four digits, and all those before the point.

    >>> _number(31.12345), _number(123456.7), _number(None)
    ('31.12', '123,457', '-')
    """
    if value is None:
        return "-"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def _part(name: str) -> str:
    return (resources.files("noisyact_lab.report") / "assets" / name).read_text(encoding="utf-8")


def _as_data(value: Any) -> str:
    """JSON that can stand in a script element: no `<` ends it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
