"""An experiment's table, from the folders of its runs: each arm's numbers over seeds beside the paper's.

Runs that diverged or are not finished have no part in a mean and are counted beside it. A number that a run did not
reach (None in its result) is shown as not reached. An experiment whose arms all end well is compared on the way, at the
update where one of them is as far as the paper's. An arm with fewer than three seeds has an interval only if the
variance may be pooled over the arms.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from noisyact.text_table import text_table, wrapped
from noisyact_lab.analysis.comparisons import Compared, as_text, compare
from noisyact_lab.analysis.estimates import Estimate, Row, short
from noisyact_lab.analysis.noise_records import HARDLY, Units, lines_of_noise, mean_of_last, said_of_last
from noisyact_lab.analysis.statistics.intervals import LEAST_SEEDS, mean_interval, missing, pooled_deviation
from noisyact_lab.analysis.throughput import Throughput, throughput_of
from noisyact_lab.analysis.update_costs import add_costs
from noisyact_lab.engine.choice import chosen, values_tried
from noisyact_lab.engine.experiment import Arm, Experiment
from noisyact_lab.engine.folder.files import is_finite, read_json, read_lines

__all__ = ["Table", "sweep_table_of", "table_of"]


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
    comparisons: tuple[Compared, ...] = ()
    """The experiment's comparisons of the arms that have a row."""
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
        ours = [str(row.numbers.get(metric, Estimate(()))) for row in self.rows]
        lines = [
            [row.marked_name, row.runs, number, _of_paper(row.paper), *self._cells(row)]
            for row, number in zip(self.rows, ours, strict=True)
        ]
        if not self.swept:  # a setting needs no words, and the arm's are those of another setting
            header += ["what it is"]
            lines = [[*line, row.title] for line, row in zip(lines, self.rows, strict=True)]
        said = [
            f"Agreement: {self.experiment.agreement}",
            f"Measured order of {metric} (< where the arms' own 95% intervals are apart, else ~): {self.order()}",
            *(f"Speed: {speed}" for speed in self.throughput),
            *(f"Note: {note}" for note in self.notes),
        ]
        title = f"{self.experiment.title}, preset {self.preset}" + (f": sweep of {self.swept}" if self.swept else "")
        paper = f"The paper: {self.experiment.reproduces}. Ours: mean over seeds ± half the 95% interval (Student t)."
        kept = [i for i, name in enumerate(header) if name == "paper"]
        table = text_table(header, lines, width, kept)
        notes = [wrapped(text, width, "  ") for text in said]
        compared = as_text(self.comparisons, metric, width)
        return "\n".join([wrapped(title, width), wrapped(paper, width), "", table, "", *compared, *notes])

    def order(self) -> str:
        """The arms from the lowest number up: `<` where their own intervals are apart, `~` where that is not so.

        An arm with fewer than three runs is apart from none: two that happen to agree have an interval of width 0.
        """
        known = [(row, e) for row in self.rows if (e := row.numbers.get(self.metric)) and e.reached]
        known.sort(key=lambda pair: pair[1].mean or 0.0)
        if not known:
            return "no finished run yet"
        text = known[0][0].name
        for (_, below), (row, above) in itertools.pairwise(known):
            text += f" {'<' if _apart(below, above) else '~'} {row.name}"
        missing = [row.name for row in self.rows if row not in [known_row for known_row, _ in known]]
        return text + (f"; no number: {', '.join(missing)}" if missing else "")

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "experiment": self.experiment.name, "preset": self.preset, "swept": self.swept, "metric": self.metric,
            "unit": self.experiment.unit, "rows": [row.as_json() for row in self.rows], "order": self.order(),
            "agreement": self.experiment.agreement, "notes": list(self.notes),
            "comparisons": [compared.as_json() for compared in self.comparisons],
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


def _apart(below: Estimate, above: Estimate) -> bool:
    """Whether the arms' own intervals, each of three runs or more, do not overlap."""
    if min(len(below.reached), len(above.reached)) < LEAST_SEEDS or not (below.own_interval and above.own_interval):
        return False
    return below.own_interval[1] < above.own_interval[0]


def table_of(experiment: Experiment, out: Path, preset: str, arms: Sequence[str] | None = None) -> Table:
    """The table of what is recorded under `out`; all arms, also those without a run, unless some are named."""
    shown = experiment.arms if arms is None else [experiment.arm(name) for name in arms]
    notes: list[str] = []
    values = _chosen(experiment, out, preset, [arm.name for arm in shown], notes)
    rows = [
        _row(
            arm, experiment.effective(arm.name, preset, values.get(arm.name)),
            out / experiment.name / preset / arm.name, notes,
        )
        for arm in shown
    ]  # fmt: skip
    if experiment.cost_of:
        add_costs(out / experiment.name / preset, rows, experiment.cost_of, notes)
    metric = _compare_on_the_way(experiment, out / experiment.name / preset, rows, notes)
    _pool(rows, notes)
    _say_of_noise(rows, notes)
    folders = (path for arm in shown for path in (out / experiment.name / preset / arm.name).glob("seed-*"))
    compared = compare(experiment.family(), rows, metric)
    return Table(experiment, preset, tuple(rows), tuple(notes), metric, throughput_of(folders), compared)


def _chosen(
    experiment: Experiment, out: Path, preset: str, arms: Sequence[str], notes: list[str]
) -> dict[str, dict[str, float]]:
    """The setting that was chosen for each of these arms before its runs, and a note that has them."""
    choice = experiment.choice
    if choice is None:
        return {}
    try:
        values = chosen(experiment, out, preset)
    except (OSError, ValueError) as error:
        notes.append(f"the choice of {choice.setting} cannot be read: {error}")
        return {}
    found = {arm: {choice.setting: values[arm]} for arm in arms if arm in values}
    if found:
        tried = values_tried(experiment, preset)
        which = ", ".join(f"{arm} {value[choice.setting]:g}" for arm, value in found.items())
        notes.append(
            f"{choice.setting} chosen from {', '.join(f'{value:g}' for value in tried)} by the lowest {choice.metric} "
            f"of seed {choice.seed}: {which}"
        )
        if ends := [arm for arm, value in found.items() if value[choice.setting] in (tried[0], tried[-1])]:
            notes.append(f"{choice.setting} is the smallest or largest that was tried of {', '.join(ends)}")
    return found


def sweep_table_of(experiment: Experiment, arm: str, preset: str, points: Sequence[tuple[str, Path]]) -> Table:
    """The table of one arm at several settings: the name of each, and the folder its runs are under."""
    notes: list[str] = []
    swept = experiment.arm(arm).name
    rows = [_row(Arm(name, name, {}), None, out / experiment.name / preset / arm, notes) for name, out in points]
    _pool(rows, notes)
    _say_of_noise(rows, notes)
    folders = (path for _, out in points for path in (out / experiment.name / preset / arm).glob("seed-*"))
    return Table(experiment, preset, tuple(rows), tuple(notes), experiment.metric, throughput_of(folders), swept=swept)


def _say_of_noise(rows: Sequence[Row], notes: list[str]) -> None:
    """Name the arms that have noise and hardly ever drew it: they test nothing about noise."""
    few = [f"{row.name} ({said_of_last(row.noise)})" for row in rows if row.hardly_drawn]
    if few:
        notes.append(
            f"† noise was hardly ever drawn, at the end in less than {HARDLY:.0%} of the activations of every "
            f"nonlinearity: {'; '.join(few)}"
        )


def _pool(rows: Sequence[Row], notes: list[str]) -> None:
    """Give the estimates of few seeds the standard deviation pooled over the rows, and say so."""
    if said := missing():
        notes.append(said)
        return
    few = [row for row in rows if any(0 < len(e.reached) < LEAST_SEEDS for e in row.numbers.values())]
    for name in dict.fromkeys(name for row in few for name in row.numbers):
        pooled = pooled_deviation([row.numbers[name].reached for row in rows if name in row.numbers])
        for row in few:
            if name in row.numbers:
                row.numbers[name] = dataclasses.replace(row.numbers[name], pooled=pooled)
    if few:
        notes.append(
            f"{', '.join(row.name for row in few)}: fewer than {LEAST_SEEDS} seeds. ± with a * has the variance pooled "
            "over the arms and assumes that it is the same in all. A number has no interval where Bartlett's test "
            "rejects that (p < 0.05), or where there is too little to pool"
        )


def _compare_on_the_way(experiment: Experiment, folder: Path, rows: Sequence[Row], notes: list[str]) -> str:
    """Give each row its number at the update where the matched arm is as far as the paper's, and name that number."""
    matched = next((row for row in rows if row.name == experiment.matched), None)
    if matched is None or matched.paper is None or not matched.finished:
        return experiment.metric
    paper, curves = matched.paper, {row.name: _curves(folder / row.name, experiment.metric) for row in rows}
    means = {
        update: mean_interval([curve[update] for curve in curves[matched.name].values()])[0] or 0.0
        for update in next(iter(curves[matched.name].values()), {})
        if all(update in curve for curve in curves[matched.name].values())
    }
    if not means:
        return experiment.metric
    update = min(means, key=lambda update: abs(means[update] - paper))
    name = f"{experiment.metric} at update {update}"
    for row in rows:
        values = {seed: curve[update] for seed, curve in curves[row.name].items() if update in curve}
        if values:
            row.numbers[name] = Estimate(tuple(values.values()), tuple(values))
    notes.append(
        f"compared at update {update}, where the mean of {matched.name} is {short(means[update])}, nearest to the "
        f"paper's {paper:g}; in the end there is little left to compare"
    )
    return name


def _curves(folder: Path, metric: str) -> dict[str, dict[int, float]]:
    """The number at every evaluation of each finished run, by seed; one that cannot be read has no part in it."""
    found = {}
    for seed in sorted(folder.glob("seed-*")):
        try:
            if read_json(seed / "result.json")["status"] == "finished":
                lines = [line for line in read_lines(seed / "metrics.jsonl") if is_finite(line.get(metric))]
                found[_seed_of(seed)] = {int(line["update"]): float(line[metric]) for line in lines}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue
    return found


def _row(arm: Arm, expected: Any, folder: Path, notes: list[str]) -> Row:
    """Count and average the runs of a folder; `expected` are the settings they should have, if there are such."""
    counts = {"finished": 0, "diverged": 0, "partial": 0}
    results: dict[str, dict[str, float | None]] = {}
    updates: dict[str, int] = {}
    noise: list[Units] = []
    changed: dict[str, list[str]] = {}
    for seed in sorted(folder.glob("seed-*"), key=lambda path: (len(path.name), path.name)):
        try:
            status, result, record = "partial", {}, {}
            if (seed / "result.json").exists():
                record = read_json(seed / "result.json")
                status, result = record["status"], _checked(record["result"])
            if (seed / "config.json").exists():
                changes = _changes(read_json(seed / "config.json")["settings"], expected)
                changed.setdefault(changes, []).append(seed.name)
            counts[status] += 1
            if status == "finished":
                results[_seed_of(seed)] = result
                if is_finite(record.get("updates")):
                    updates[_seed_of(seed)] = int(record["updates"])
                noise.extend(_last_noise(seed, f"{arm.name} {seed.name}", notes))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            notes.append(f"{arm.name} {seed.name} cannot be read and counts as partial: {error}")
            counts["partial"] += 1
    notes.extend(f"{arm.name} {', '.join(seeds)}: not the preset's {what}" for what, seeds in changed.items() if what)
    names, seeds = dict.fromkeys(name for result in results.values() for name in result), tuple(results)
    numbers = {name: Estimate(tuple(result.get(name) for result in results.values()), seeds) for name in names}
    return Row(
        arm.name, arm.title, arm.paper, **counts, numbers=numbers, papers=arm.papers, updates=updates,
        noise=mean_of_last(noise),
    )  # fmt: skip


def _last_noise(folder: Path, who: str, notes: list[str]) -> list[Units]:
    """What a run last recorded of its noise, if it did; a file that cannot be read is noted, and the run counts."""
    try:
        return [units for _, units in lines_of_noise(folder)[-1:]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        notes.append(f"{who}: its noise.jsonl cannot be read: {error}")
        return []


def _seed_of(folder: Path) -> str:
    return folder.name.removeprefix("seed-")


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


def _of_paper(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
