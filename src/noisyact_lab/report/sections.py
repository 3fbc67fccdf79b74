"""Reader of run folders for the report: tables, curves, endings, samples, pictures and commentary.

No folder is trusted and no run is dropped silently: a note reports every file that cannot be read or does not fit.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from noisyact_lab.analysis.estimates import Row
from noisyact_lab.analysis.noise_records import Units, lines_of_noise
from noisyact_lab.analysis.results_table import Table, sweep_table_of, table_of
from noisyact_lab.analysis.sweeps import Sweep, sweeps_of
from noisyact_lab.engine.experiment import PRESETS, Experiment, experiment_names, load_experiment
from noisyact_lab.engine.folder.files import is_finite, read_json, read_lines
from noisyact_lab.report.pictures import KINDS, embedded, own_width

__all__ = ["ArmRuns", "Picture", "Run", "Samples", "Section", "sections", "strangers"]

_STATUSES = ("finished", "diverged", "partial")
_MOST_ROWS = 40
"""The maximum number of rows shown of a table of samples, which may have thousands."""

NOISE = "noise of "
"""The names of columns about noise begin with this; then come the nonlinearity, a colon, and the number's name."""
_NOISE_NAMES = {"saturated": "share saturated", "sigma": "mean sigma", "p": "mean |p|"}

Column = list[float | None]
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Run:
    """One run. `ending` explains `status` in words; `curve` has the evaluations by column, `update` among them."""

    seed: str
    status: str
    ending: str
    seconds: float | None
    device: str
    curve: dict[str, Column]
    commit: str = ""
    """The commit of the code, where it was recorded."""


@dataclasses.dataclass(frozen=True)
class Samples:
    """A table of text, such as sentences and the model's translations. `left_out` counts the rows not shown."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture as a data URL, which needs no file and cannot run scripts."""

    name: str
    source: str
    width: float = 0.0
    """Its own width in pixels, where it says one: a picture that is much wider than a page is not made smaller."""


@dataclasses.dataclass(frozen=True)
class ArmRuns:
    """An arm: its row in the table, its runs, and the samples and pictures of the run with seed `shown_seed`."""

    row: Row
    runs: tuple[Run, ...]
    shown_seed: str
    samples: tuple[Samples, ...]
    pictures: tuple[Picture, ...]


@dataclasses.dataclass(frozen=True)
class Section:
    """All runs of one experiment and preset, or of a sweep of one of its arms."""

    experiment: Experiment
    preset: str
    swept: str
    """The name of the sweep, or an empty string if this is none."""
    table: Table
    arms: tuple[ArmRuns, ...]
    commentary: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def metrics(self) -> list[str]:
        """The names of all recorded metrics, starting with the experiment's headline metric."""
        names = {name for arm in self.arms for run in arm.runs for name in run.curve} - {"update"}
        plain = (name for name in names if not name.startswith(NOISE))
        return sorted(plain, key=lambda name: (name != self.experiment.metric, name))

    @property
    def noise(self) -> dict[str, list[str]]:
        """The names of the columns about noise, by nonlinearity: share saturated, sigma, |p|."""
        names = dict.fromkeys(name for arm in self.arms for run in arm.runs for name in run.curve)
        found: dict[str, list[str]] = {}
        for name in names:
            if name.startswith(NOISE):
                found.setdefault(name.removeprefix(NOISE).partition(": ")[0], []).append(name)
        return found

    @property
    def count(self) -> dict[str, int]:
        """The number of runs with each status."""
        return {status: sum(getattr(arm.row, status) for arm in self.arms) for status in _STATUSES}


def sections(out: Path) -> list[Section]:
    """Return a section for every experiment and preset with runs in `out`, each followed by its sweeps."""
    found, sweeps = [], sweeps_of(out)
    for name in experiment_names():
        for preset in reversed(PRESETS):  # the largest and most informative preset comes first
            if any(out.glob(f"{name}/{preset}/*/seed-*")):
                found.append(_section_of(load_experiment(name), preset, out))
            found += [_swept(sweep) for sweep in sweeps if (sweep.experiment, sweep.preset) == (name, preset)]
    return found


def _swept(sweep: Sweep) -> Section:
    """Return the section of one arm at several settings, or of several arms at another setting than the preset's."""
    experiment = load_experiment(sweep.experiment)
    if not sweep.arm:
        plain = [dataclasses.replace(arm, paper=None, papers={}) for arm in experiment.arms]
        experiment = dataclasses.replace(experiment, arms=tuple(plain))  # the paper's numbers are of its settings
        return _section_of(experiment, sweep.preset, sweep.points[0][1], sweep.arms, sweep.name)
    table = sweep_table_of(experiment, sweep.arm, sweep.preset, sweep.points)
    folders = [folder / experiment.name / sweep.preset / sweep.arm for _, folder in sweep.points]
    return _section(experiment, sweep.preset, sweep.name, table, folders, ())


def strangers(out: Path) -> list[str]:
    """Return the run folders in `out` that belong to no known experiment, preset or arm. They are not shown."""
    known = {name: [arm.name for arm in load_experiment(name).arms] for name in experiment_names()}
    unknown = set()
    for path in out.glob("*/*/*/seed-*"):
        name, preset, arm = path.relative_to(out).parts[:3]
        if name != "sweep" and (preset not in PRESETS or arm not in known.get(name, ())):
            unknown.add(f"{name}/{preset}/{arm}")
    return sorted(unknown)


def _section_of(
    experiment: Experiment, preset: str, out: Path, arms: Sequence[str] | None = None, swept: str = ""
) -> Section:
    folder = out / experiment.name / preset
    notes: list[str] = []
    text = "" if swept else experiment.commentary.get(preset, "")
    if (folder / "commentary.txt").exists():
        text = _noted(notes, "", lambda: (folder / "commentary.txt").read_text(encoding="utf-8"), text)
    table = table_of(experiment, out, preset, arms)
    section = _section(experiment, preset, swept, table, [folder / row.name for row in table.rows], notes)
    paragraphs = (" ".join(paragraph.split()) for paragraph in text.replace("\r\n", "\n").split("\n\n"))
    return dataclasses.replace(section, commentary=tuple(filter(None, paragraphs)))


def _section(
    experiment: Experiment, preset: str, swept: str, table: Table, folders: Sequence[Path], notes: Sequence[str]
) -> Section:
    noted = [*table.notes, *notes]
    arms = tuple(_arm(row, folder, noted) for row, folder in zip(table.rows, folders, strict=True))
    return Section(experiment, preset, swept, table, arms, (), tuple(dict.fromkeys(noted)))


def _noted(notes: list[str], who: str, read: Callable[[], _T], otherwise: _T) -> _T:
    """Return the result of `read`. If it fails, add the error to the notes and return `otherwise`."""
    try:
        return read()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        notes.append(f"{who}{' ' if who else ''}{error if str(error) else type(error).__name__}")
        return otherwise


def _arm(row: Row, folder: Path, notes: list[str]) -> ArmRuns:
    folders = sorted(folder.glob("seed-*"), key=lambda path: (len(path.name), path.name))
    runs = tuple(_run(path, f"{row.name} {path.name}:", notes) for path in folders)
    # Finished runs are the most representative ones. An unfinished run is used only if no finished run has samples.
    order = sorted(zip(runs, folders, strict=True), key=lambda pair: pair[0].status != "finished")
    for run, path in order:
        who = f"{row.name} {path.name}:"
        samples, pictures = _samples(path / "samples.json", who, notes), _pictures(path / "pictures", who, notes)
        if samples or pictures:
            return ArmRuns(row, runs, run.seed, samples, pictures)
    return ArmRuns(row, runs, "", (), ())


def _run(folder: Path, who: str, notes: list[str]) -> Run:
    def known(name: str) -> dict[str, Any]:
        record = _noted(notes, who, lambda: read_json(folder / name), {}) if (folder / name).exists() else {}
        return record if isinstance(record, dict) else {}

    record, config = known("result.json"), known("config.json")
    status = record.get("status", "partial")
    status = status if status in _STATUSES else "partial"
    lines = _noted(notes, who, lambda: read_lines(folder / "metrics.jsonl"), [])
    timing = _noted(notes, who, lambda: read_lines(folder / "timing.jsonl"), [])
    noise = _noted([], who, lambda: _noise_columns(lines_of_noise(folder)), {})  # the table has a note if it is broken
    curve = _noted(notes, f"{who} metrics.jsonl:", lambda: _columns(_joined(lines, noise)), {})
    last = timing[-1] if timing and isinstance(timing[-1], dict) else {}
    ending = _noted(notes, who, lambda: _ending(status, curve, config, last), status)
    seconds, device = last.get("seconds"), config.get("device", "")
    signature = record.get("signature")
    commit = signature.get("commit") if isinstance(signature, dict) else None
    return Run(
        folder.name.removeprefix("seed-"), status, ending, seconds if is_finite(seconds) else None, str(device), curve,
        commit if isinstance(commit, str) and re.fullmatch(r"[0-9a-f]{7,64}\+?", commit) else "",
    )  # fmt: skip


def _ending(status: str, curve: dict[str, Column], config: dict[str, Any], last: dict[str, Any]) -> str:
    updates = curve.get("update") or [0]
    if status == "diverged":
        what = " and ".join(map(str, last.get("diverged", ["a number"])))
        return f"diverged at update {last.get('update', updates[-1])}: {what} stopped being finite"
    if status == "finished":
        return f"finished after {updates[-1]:,} updates"
    total = config.get("settings", {}).get("updates")
    return f"unfinished: recorded up to update {updates[-1]:,}" + (f" of {total:,}" if is_finite(total) else "")


def _noise_columns(lines: list[tuple[float, Units]]) -> dict[float, dict[str, float]]:
    """The numbers about noise at each update, by the name of their column.

    >>> _noise_columns([(20, {"lstm.l0.f": {"saturated": 0.5, "drawn": 0.5}})])
    {20: {'noise of lstm.l0.f: share saturated': 0.5}}
    """
    return {
        update: {
            f"{NOISE}{unit}: {shown}": numbers[name]
            for unit, numbers in units.items()
            for name, shown in _NOISE_NAMES.items()
            if name in numbers
        }
        for update, units in lines
    }


def _joined(lines: list[dict[str, Any]], noise: dict[float, dict[str, float]]) -> list[dict[str, Any]]:
    """Each evaluation with what was measured of the noise at its update."""
    return [line | noise.get(line.get("update", math.nan), {}) for line in lines] if noise else lines


def _columns(lines: list[dict[str, Any]]) -> dict[str, Column]:
    """Return the numbers in the lines as columns by name, with None where a line has no finite number.

    >>> _columns([{"update": 1, "loss": 2.0}, {"update": 2, "text": "no"}])
    {'update': [1, 2], 'loss': [2.0, None]}
    """
    lines = sorted((line for line in lines if is_finite(line.get("update"))), key=lambda line: line["update"])
    names = dict.fromkeys(name for line in lines for name, value in line.items() if is_finite(value))
    return {name: [line.get(name) if is_finite(line.get(name)) else None for line in lines] for name in names}


def _samples(path: Path, who: str, notes: list[str]) -> tuple[Samples, ...]:
    if not path.exists():
        return ()
    tables = _noted(notes, who, lambda: read_json(path), [])
    if not isinstance(tables, list):
        notes.append(f"{who} samples.json must be a list of tables")
        return ()
    read = (_noted(notes, f"{who} samples.json:", lambda t=table: _sampled(t), None) for table in tables)
    return tuple(samples for samples in read if samples is not None)


def _sampled(table: Any) -> Samples:
    if not isinstance(table, dict) or not {"title", "columns", "rows"} <= table.keys():
        raise ValueError("a table needs title, columns and rows")
    columns = tuple(map(str, table["columns"]))
    rows = [tuple("" if cell is None else str(cell) for cell in row) for row in table["rows"]]
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"a row has {len(row)} cells for {len(columns)} columns")
    return Samples(str(table["title"]), columns, tuple(rows[:_MOST_ROWS]), max(0, len(rows) - _MOST_ROWS))


def _pictures(folder: Path, who: str, notes: list[str]) -> tuple[Picture, ...]:
    paths = sorted(path for path in folder.glob("*") if path.suffix in KINDS and not path.name.startswith("."))
    once = {path.stem: path for path in paths}.values()  # if a picture exists as PNG and SVG, the SVG is used
    read = ((path, _noted(notes, f"{who} pictures:", lambda p=path: embedded(p), "")) for path in once)
    return tuple(
        Picture(path.stem.replace("-", " ").replace("_", " "), source, own_width(path))
        for path, source in read
        if source
    )
