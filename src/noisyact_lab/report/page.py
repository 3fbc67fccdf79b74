"""Writer of the report: one HTML page with tables, curves, samples, pictures and a playground. It needs no network.

Content of a run's folder enters the page as text, data or an image, never as markup. The page's content security policy
allows only the page's own script, by its hash, so malicious names and texts in a folder cannot run code.
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
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import jinja2

import noisyact
from noisyact_lab.analysis import agreement, comparisons
from noisyact_lab.analysis.comparisons import Compared
from noisyact_lab.analysis.effects import SATURATED_START, Effect, effects_of, saturated_start
from noisyact_lab.analysis.estimates import Estimate
from noisyact_lab.analysis.findings import findings, limits, plateau_tests
from noisyact_lab.analysis.statistics.intervals import missing
from noisyact_lab.analysis.sweeps import section_id
from noisyact_lab.report.curves import curves_of
from noisyact_lab.report.downloads import effects_csv, runs_csv
from noisyact_lab.report.forest import forest
from noisyact_lab.report.pictures import embedded
from noisyact_lab.report.sections import Picture, Section, sections, strangers

__all__ = ["drawn_figures", "write"]

_SCRIPTS = ("phi.js", "scale.js", "chart.js", "curves.js", "playground.js", "page.js")


def write(out: Path, to: Path, figures: Sequence[dict[str, str]] = ()) -> Path:
    """Write the report of all runs in `out` and return the path of the page.

    Args:
        out: the folder that contains the runs.
        to: the file to write.
        figures: the `caption` and the `source`, a data URL, of each figure.
    """
    from noisyact_lab.engine.folder.files import write_text

    if said := missing():
        raise ValueError(said)
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
        finding=_finding(effects_of(out), plateau_tests(out)),
        start=_saturated_start(out),
        strangers=strangers(out),
        version=noisyact.__version__,
        date=datetime.date.today().isoformat(),
        runs=sum(sum(section.count.values()) for section in found),
        repository=_repository(),
    )
    write_text(to, page)
    return to


def drawn_figures() -> list[dict[str, str]]:
    """Draw the paper's figures that need no training, and return the caption and the data URL of each."""
    from noisyact_lab.report.figures import FIGURES, draw_all

    drawn = []
    with tempfile.TemporaryDirectory() as folder:
        for path in draw_all(Path(folder)):
            if path.suffix == ".svg":
                # A hundredth of a point is finer than any screen, and rounding to it makes the picture a third smaller.
                # Numbers below 1 are not rounded, because the scales of glyphs are among them.
                text = re.sub(r"\b([1-9]\d*\.\d\d)\d+", r"\1", path.read_text(encoding="utf-8"))
                path.write_text(text, encoding="utf-8")
                caption = (FIGURES[path.stem].__doc__ or path.stem).splitlines()[0]
                drawn.append({"caption": caption, "source": embedded(path)})
    return drawn


def _finding(effects: Sequence[Effect], on_plateau: Sequence[Compared]) -> dict[str, Any] | None:
    """Return the template's variables for what all experiments say together; None if they have nothing to compare."""
    if not effects:
        return None
    return {
        "said": findings(effects, on_plateau),
        "limits": limits(effects),
        "figure": forest(effects, page=""),
        "narrow": forest(effects, page="", narrow=True),
        "csv": effects_csv(effects),
    }


def _saturated_start(out: Path) -> dict[str, list[float]] | None:
    """Return the test errors by arm of the example that starts saturated, if its record is there."""
    path = out / SATURATED_START
    return {name: arm["test_error"] for name, arm in saturated_start(path).items()} if path.exists() else None


def _shown(section: Section) -> dict[str, Any]:
    """Return the template's variables for a section: its records and the comparison with the paper."""
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
    pictures: dict[str, list[tuple[Any, Picture]]] = {}
    for arm, runs in zip(arms, section.arms, strict=True):
        for picture in runs.pictures:
            pictures.setdefault(picture.name, []).append((arm, picture))
    pairs = agreement.pairs(table)
    return {
        "id": section_id(experiment.name, section.preset, section.swept),
        "title": _title(section), "section": section, "swept": section.swept, "csv": runs_csv(section),
        "parent": section_id(experiment.name, section.preset),
        "experiment": experiment, "preset": section.preset, "arms": arms, "others": table.others, "pairs": pairs,
        "summary": agreement.summary(pairs), "order": table.order(), "pictures": pictures, "span": span,
        "samples": [arm for arm in arms if arm["samples"]], "count": section.count,
        "papers": any(arm.row.paper is not None for arm in section.arms),
        "comparisons": comparisons.kinds(table.comparisons, table.metric),
    }  # fmt: skip


def _title(section: Section) -> str:
    if section.table.swept:
        return f"{section.experiment.name}: sweep of {section.table.swept}"
    return f"{section.experiment.name} with {section.swept}" if section.swept else section.experiment.title


def _repository() -> str:
    """Return the address of the repository that the installed package states, or an empty string if it states none."""
    try:
        stated = metadata.metadata("noisyact").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return ""
    addresses = {name.lower(): address for name, _, address in (line.partition(", ") for line in stated)}
    address = next((addresses[name] for name in ("repository", "source", "homepage") if name in addresses), "")
    return address.rstrip("/") if address.startswith("https://") else ""


def _span(estimates: Sequence[Estimate], papers: Sequence[float | None]) -> tuple[float, float] | None:
    """Return the range of all values, with a margin. Intervals are ignored, because they can be very wide."""
    values = [value for estimate in estimates for value in estimate.reached] + [p for p in papers if p is not None]
    if not values:
        return None
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.5
    low, high = low - margin, high + margin
    return (low, high) if 0 < high - low < math.inf else None  # huge numbers overflow or differ by less than rounding


def _place(ours: Estimate, paper: float | None, span: tuple[float, float] | None) -> dict[str, Any]:
    """Return the positions of a row's marks in percent of the plot's width."""

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
    """Format a number with four significant digits, or with all digits before the decimal point.

    >>> _number(31.12345), _number(123456.7), _number(None)
    ('31.12', '123,457', '-')
    """
    if value is None:
        return "-"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def _part(name: str) -> str:
    return (resources.files("noisyact_lab.report") / "assets" / name).read_text(encoding="utf-8")


def _as_data(value: Any) -> str:
    """Return JSON that is safe in a script element: without `<`, no tag can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
