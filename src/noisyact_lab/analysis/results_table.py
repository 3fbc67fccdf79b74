"""An experiment's table, from the folders of its runs: each arm's numbers over seeds beside the paper's.

Runs that diverged or are not finished have no part in a mean and are counted beside it. A number that a run did not
reach (None in its result) is shown as not reached. An experiment whose arms all end well is compared on the way, at the
update where one of them is as far as the paper's.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from noisyact.text_table import text_table, wrapped
from noisyact_lab.analysis.intervals import interval
from noisyact_lab.analysis.throughput import Throughput, throughput_of
from noisyact_lab.engine.experiment import Arm, Experiment
from noisyact_lab.engine.folder.files import is_finite, read_json, read_lines

__all__ = ["Estimate", "Row", "Table", "sweep_table_of", "table_of"]

_VAST = 1e9
"""From here on numbers are written with an exponent."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number over seeds: None for each that did not reach it.

    >>> str(Estimate((1.0, 2.0, 3.0))), str(Estimate((7.0,))), str(Estimate((7.0, None)))
    ('2.0 ± 2.5', '7', '7 (1 of 2 reached)')
    >>> str(Estimate((1e-3, 1e-3)))
    '0.001 ± 0'
    """

    values: tuple[float | None, ...]

    @property
    def reached(self) -> list[float]:
        """The numbers there are."""
        return [value for value in self.values if value is not None]

    @property
    def mean(self) -> float | None:
        """The mean over the runs that reached it."""
        return interval(self.reached)[0]

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the mean, by Student's t; one run has none."""
        _, low, high = interval(self.reached)
        return None if low is None or high is None else (low, high)

    def __str__(self) -> str:
        if not self.values:
            return "-"
        if self.mean is None:
            return "not reached"
        text = _short(self.mean) if self.interval is None else _with_error(self.mean, self.interval)
        reached = len(self.reached)
        return text if reached == len(self.values) else f"{text} ({reached} of {len(self.values)} reached)"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"mean": self.mean, "interval": self.interval, "values": list(self.values)}


@dataclasses.dataclass(frozen=True)
class Row:
    """An arm: how many runs of each kind, and its numbers over the finished ones."""

    name: str
    title: str
    paper: float | None
    finished: int
    diverged: int
    partial: int
    numbers: dict[str, Estimate]
    papers: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The paper's numbers beside its headline, by name."""

    @property
    def runs(self) -> str:
        """The counts in words."""
        others = [f"{n} {what}" for n, what in ((self.diverged, "diverged"), (self.partial, "partial")) if n]
        total = self.finished + self.diverged + self.partial
        return f"{total} ({', '.join(others)})" if others else str(total)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        counts = {"finished": self.finished, "diverged": self.diverged, "partial": self.partial}
        numbers = {name: estimate.as_json() for name, estimate in self.numbers.items()}
        return {
            "arm": self.name, "title": self.title, "paper": self.paper, "papers": dict(self.papers),
            "runs": sum(counts.values()), **counts, "numbers": numbers,
        }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of one experiment and preset."""

    experiment: Experiment
    preset: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    metric: str
    """The number that the arms are compared by: the experiment's, or that at an update."""
    throughput: tuple[Throughput, ...] = ()

    swept: str = ""
    """The arm, where the rows are its runs at several settings."""

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """The table and what is to be said of it, in lines of at most `width` where one is given."""
        metric = self.metric
        header = ["setting" if self.swept else "arm", "runs", f"{metric} ({self.experiment.unit})", "paper"]
        for name, in_paper in self.others.items():
            header += [name, "paper"] if in_paper else [name]
        lines = [
            [row.name, row.runs, str(row.numbers.get(metric, Estimate(()))), _of_paper(row.paper), *self._cells(row)]
            for row in self.rows
        ]
        if not self.swept:  # a setting needs no words, and the arm's are those of another setting
            header += ["what it is"]
            lines = [[*line, row.title] for line, row in zip(lines, self.rows, strict=True)]
        said = [
            f"Agreement: {self.experiment.agreement}",
            f"Measured order of {metric} (< where the 95% intervals are apart, else ~): {self.order()}",
            *(f"Speed: {speed}" for speed in self.throughput),
            *(f"Note: {note}" for note in self.notes),
        ]
        title = f"{self.experiment.title}, preset {self.preset}" + (f": sweep of {self.swept}" if self.swept else "")
        paper = f"The paper: {self.experiment.reproduces}. Ours: mean over seeds ± half the 95% interval (Student t)."
        kept = [i for i, name in enumerate(header) if name == "paper"]
        table = text_table(header, lines, width, kept)
        notes = [wrapped(text, width, "  ") for text in said]
        return "\n".join([wrapped(title, width), wrapped(paper, width), "", table, "", *notes])

    def order(self) -> str:
        """The arms from the lowest number up: `<` where the intervals are apart, `~` where that cannot be said."""
        known = [(row, e) for row in self.rows if (e := row.numbers.get(self.metric)) and e.reached]
        known.sort(key=lambda pair: pair[1].mean or 0.0)
        if not known:
            return "no finished run yet"
        text = known[0][0].name
        for (_, below), (row, above) in itertools.pairwise(known):
            apart = below.interval and above.interval and below.interval[1] < above.interval[0]
            text += f" {'<' if apart else '~'} {row.name}"
        missing = [row.name for row in self.rows if row not in [known_row for known_row, _ in known]]
        return text + (f"; no number: {', '.join(missing)}" if missing else "")

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "experiment": self.experiment.name, "preset": self.preset, "swept": self.swept, "metric": self.metric,
            "unit": self.experiment.unit, "rows": [row.as_json() for row in self.rows], "order": self.order(),
            "agreement": self.experiment.agreement, "notes": list(self.notes),
            "throughput": [speed.as_json() for speed in self.throughput],
        }  # fmt: skip

    def _cells(self, row: Row) -> Iterator[str]:
        """A row's numbers beside the headline, each with the paper's where it has such."""
        for name, in_paper in self.others.items():
            yield str(row.numbers.get(name, Estimate(())))
            if in_paper:
                yield _of_paper(row.papers.get(name))

    @property
    def others(self) -> dict[str, bool]:
        """The numbers beside the headline, those that the paper has too first, and whether it has them."""
        names = dict.fromkeys(name for row in self.rows for name in row.numbers if name != self.metric)
        in_paper = {name: any(name in row.papers for row in self.rows) for name in names}
        return dict(sorted(in_paper.items(), key=lambda pair: not pair[1]))


def table_of(experiment: Experiment, out: Path, preset: str, arms: Sequence[str] | None = None) -> Table:
    """The table of what is recorded under `out`; all arms, also those without a run, unless some are named."""
    chosen = experiment.arms if arms is None else [experiment.arm(name) for name in arms]
    notes: list[str] = []
    rows = [
        _row(arm, experiment.effective(arm.name, preset), out / experiment.name / preset / arm.name, notes)
        for arm in chosen
    ]
    metric = _compare_on_the_way(experiment, out / experiment.name / preset, rows, notes)
    folders = (path for arm in chosen for path in (out / experiment.name / preset / arm.name).glob("seed-*"))
    return Table(experiment, preset, tuple(rows), tuple(notes), metric, throughput_of(folders))


def sweep_table_of(experiment: Experiment, arm: str, preset: str, points: Sequence[tuple[str, Path]]) -> Table:
    """The table of one arm at several settings: the name of each, and the folder its runs are under."""
    notes: list[str] = []
    swept = experiment.arm(arm).name
    rows = [_row(Arm(name, name, {}), None, out / experiment.name / preset / arm, notes) for name, out in points]
    folders = (path for _, out in points for path in (out / experiment.name / preset / arm).glob("seed-*"))
    return Table(experiment, preset, tuple(rows), tuple(notes), experiment.metric, throughput_of(folders), swept)


def _compare_on_the_way(experiment: Experiment, folder: Path, rows: Sequence[Row], notes: list[str]) -> str:
    """Give each row its number at the update where the matched arm is as far as the paper's, and name that number."""
    matched = next((row for row in rows if row.name == experiment.matched), None)
    if matched is None or matched.paper is None or not matched.finished:
        return experiment.metric
    paper, curves = matched.paper, {row.name: _curves(folder / row.name, experiment.metric) for row in rows}
    means = {
        update: interval([curve[update] for curve in curves[matched.name]])[0] or 0.0
        for update in (curves[matched.name] or [{}])[0]
        if all(update in curve for curve in curves[matched.name])
    }
    if not means:
        return experiment.metric
    update = min(means, key=lambda update: abs(means[update] - paper))
    name = f"{experiment.metric} at update {update}"
    for row in rows:
        values = [curve[update] for curve in curves[row.name] if update in curve]
        if values:
            row.numbers[name] = Estimate(tuple(values))
    notes.append(
        f"compared at update {update}, where the mean of {matched.name} is {_short(means[update])}, nearest to the "
        f"paper's {paper:g}; in the end there is little left to compare"
    )
    return name


def _curves(folder: Path, metric: str) -> list[dict[int, float]]:
    """The number at every evaluation of each finished run; one that cannot be read has no part in it."""
    found = []
    for seed in sorted(folder.glob("seed-*")):
        try:
            if read_json(seed / "result.json")["status"] == "finished":
                lines = [line for line in read_lines(seed / "metrics.jsonl") if is_finite(line.get(metric))]
                found.append({int(line["update"]): float(line[metric]) for line in lines})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue
    return found


def _row(arm: Arm, expected: Any, folder: Path, notes: list[str]) -> Row:
    """Count and average the runs of a folder; `expected` are the settings they should have, if there are such."""
    counts = {"finished": 0, "diverged": 0, "partial": 0}
    results: list[dict[str, float | None]] = []
    changed: dict[str, list[str]] = {}
    for seed in sorted(folder.glob("seed-*"), key=lambda path: (len(path.name), path.name)):
        try:
            status, result = "partial", {}
            if (seed / "result.json").exists():
                record = read_json(seed / "result.json")
                status, result = record["status"], _checked(record["result"])
            if (seed / "config.json").exists():
                changes = _changes(read_json(seed / "config.json")["settings"], expected)
                changed.setdefault(changes, []).append(seed.name)
            counts[status] += 1
            if status == "finished":
                results.append(result)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            notes.append(f"{arm.name} {seed.name} cannot be read and counts as partial: {error}")
            counts["partial"] += 1
    notes.extend(f"{arm.name} {', '.join(seeds)}: not the preset's {what}" for what, seeds in changed.items() if what)
    names = dict.fromkeys(name for result in results for name in result)
    numbers = {name: Estimate(tuple(result.get(name) for result in results)) for name in names}
    return Row(arm.name, arm.title, arm.paper, **counts, numbers=numbers, papers=arm.papers)


def _checked(result: dict[str, Any]) -> dict[str, float | None]:
    for name, value in result.items():
        if value is not None and not is_finite(value):
            raise ValueError(f"its {name} is {repr(value)[:40]}, not a finite number")
    return result


def _changes(settings: dict[str, Any], expected: Any) -> str:
    """What a run's settings are that should be others."""
    if expected is None:
        return ""
    should = json.loads(json.dumps(dataclasses.asdict(expected)))
    return ", ".join(f"{name}={value}" for name, value in settings.items() if value != should.get(name))


def _with_error(mean: float, ends: tuple[float, float]) -> str:
    """The mean with half its interval: two digits of that, and as many places of the mean."""
    half = ends[1] / 2 - ends[0] / 2  # of vast numbers the whole may be more than a float can hold
    if half == 0:
        return f"{_short(mean)} ± 0"
    places = max(0, 1 - math.floor(math.log10(half)))
    if places > 6 or max(abs(mean), half) >= _VAST:
        return f"{_short(mean)} ± {_short(half)}"
    return f"{mean:.{places}f} ± {half:.{places}f}"


def _of_paper(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _short(value: float) -> str:
    """Three digits, and all those before the point where it is not a vast number."""
    return f"{value:.0f}" if 1000 <= abs(value) < _VAST else f"{value:.3g}"
