"""The report: one page of HTML with tables, curves, figures and a playground, that needs no network.

Everything that comes from a run folder goes into the page as data, and from there as text: a hostile name stays a name.
"""

from __future__ import annotations

import datetime
import json
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

import noisyact
from noisyact.experiments import registry
from noisyact.experiments.files import read_json, read_lines, write_text
from noisyact.experiments.statistics import interval

__all__ = ["drawn_figures", "gather", "write"]

_SCRIPTS = ("phi.js", "chart.js", "page.js")


def write(out: Path, to: Path, figures: list[dict[str, str]] | None = None) -> Path:
    """Write the report of all runs below `out`.

    Args:
        out: where the runs are.
        to: the file to write.
        figures: of each its title and its SVG.
    """
    experiments = gather(out)
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_part("page.html.j2"))
    page = template.render(
        css=_part("page.css"),
        js="\n".join(_part(name) for name in _SCRIPTS),
        data=_as_data({"experiments": experiments}),
        figures=figures or [],
        version=noisyact.__version__,
        date=datetime.date.today().isoformat(),
        runs=sum(len(arm["runs"]) for experiment in experiments for arm in experiment["arms"]),
    )
    write_text(to, page)
    return to


def gather(out: Path) -> list[dict[str, Any]]:
    """Every experiment and preset that has runs below `out`, with its arms, their numbers and their curves."""
    found = []
    for name in registry.names():
        if not (out / name).is_dir():
            continue
        experiment = registry.load(name)
        for preset in sorted(path.name for path in (out / name).glob("*") if path.is_dir()):
            arms = [_arm(out / name / preset / arm.name, arm, experiment.metric) for arm in experiment.arms]
            if any(arm["runs"] for arm in arms):
                metrics = {key for arm in arms for run in arm["runs"] for point in run["curve"] for key in point}
                found.append({
                    "name": name, "title": experiment.title, "reproduces": experiment.reproduces, "preset": preset,
                    "agreement": experiment.agreement, "unit": experiment.unit, "arms": arms,
                    "metrics": sorted(metrics - {"update"}, key=lambda m: (m != experiment.metric, m)),
                })  # fmt: skip
    return found


def drawn_figures() -> list[dict[str, str]]:
    """The paper's figures that need no training, each with its title and its SVG."""
    from noisyact.experiments.figures import draw_all

    with tempfile.TemporaryDirectory() as folder:
        paths = [path for path in draw_all(Path(folder)) if path.suffix == ".svg"]
        return [
            {"title": path.stem.replace("-", " ").replace("_", " "), "svg": _element(path.read_text(encoding="utf-8"))}
            for path in paths
        ]


def _element(svg: str) -> str:
    """The svg element alone, without the declarations before it."""
    return svg[svg.index("<svg") :]


def _arm(folder: Path, arm: Any, metric: str) -> dict[str, Any]:
    runs = [_run(path) for path in sorted(folder.glob("seed-*"), key=lambda p: (len(p.name), p.name)) if path.is_dir()]
    values = [run["result"][metric] for run in runs if run["status"] == "finished"]
    mean, low, high = interval([value for value in values if value is not None])
    count = {status: sum(run["status"] == status for run in runs) for status in ("finished", "diverged", "partial")}
    return {
        "name": arm.name, "title": arm.title, "paper": arm.paper, "runs": runs, "mean": mean, "low": low, "high": high,
        **count,
    }  # fmt: skip


def _run(folder: Path) -> dict[str, Any]:
    curve = read_lines(folder / "metrics.jsonl")
    if not (folder / "result.json").exists():
        return {"seed": folder.name, "status": "partial", "result": {}, "curve": curve}
    record = read_json(folder / "result.json")
    return {"seed": folder.name, "status": record["status"], "result": record["result"], "curve": curve}


def _part(name: str) -> str:
    return (resources.files("noisyact.experiments") / "page" / name).read_text(encoding="utf-8")


def _as_data(value: Any) -> str:
    """JSON that can stand in a script element: no `<` ends it."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
