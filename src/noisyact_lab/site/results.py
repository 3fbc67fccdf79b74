"""Results of the experiments in Markdown: tables, differences, gains and findings, all computed from the records."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from pathlib import Path
from typing import Any

from noisyact_lab.analysis.comparisons import compare, kinds
from noisyact_lab.analysis.effects import Effect, effects_of
from noisyact_lab.analysis.estimates import Estimate
from noisyact_lab.analysis.findings import findings, limits, plateau_tests
from noisyact_lab.analysis.results_table import Table, table_of
from noisyact_lab.analysis.update_costs import COST
from noisyact_lab.engine.choice import chosen
from noisyact_lab.engine.experiment import Comparison, load_experiment
from noisyact_lab.engine.folder.files import read_json
from noisyact_lab.site.markdown import table

__all__ = [
    "TASKS", "Task", "about", "arms", "compared", "difference", "effects", "finding", "gains", "gates", "memory_ppo",
    "noise", "number", "saturated_start",
]  # fmt: skip

PRESET = "paper"


@functools.cache
def _table(results: Path, experiment: str, sweep: str = "", preset: str = PRESET) -> Table:
    return table_of(load_experiment(experiment), results / "sweep" / sweep if sweep else results, preset)


def arms(root: Path, experiment: str, sweep: str = "") -> str:
    """Each arm beside the paper: the headline, and the other numbers that the paper has too.

    Args:
        root: of the repository.
        experiment: its name.
        sweep: the folder of `results/sweep` with runs at another setting, if not those at the paper's.
    """
    found = _table(root / "results", experiment, sweep)
    rows = [row for row in found.rows if row.finished]
    papers = any(row.paper is not None for row in rows) and not sweep
    others = [] if sweep else [name for name, in_paper in found.others.items() if in_paper]
    metric, unit = found.metric.replace("_", " "), found.experiment.unit
    header = ["arm", *(["paper"] if papers else []), metric if unit in ("", metric) else f"{metric} ({unit})"]
    for name in others:
        header += ["paper", name]
    lines = []
    for row in rows:
        line = [row.title, *([_paper(row.paper)] if papers else []), str(row.numbers.get(found.metric, Estimate(())))]
        for name in others:
            line += [_paper(row.papers.get(name)), str(row.numbers.get(name, Estimate(())))]
        lines.append([*line, row.runs])
    return table([*(name.replace("_", " ") for name in header), "seeds"], lines, numbers=1)


def _paper(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def about(root: Path, experiment: str) -> str:
    """What the experiment reproduces, and what was to count as agreement."""
    found = load_experiment(experiment)
    return (
        f"Reproduces {found.reproduces}. Stated before any run: {found.agreement} "
        f"The runs are in `results/{experiment}`."
    )


def gates(root: Path, experiment: str, preset: str = PRESET) -> str:
    """Ways to train hard gates: the score, what rounding costs, the values of the gates and the cost of an update.

    The cost is left out where the preset is not the paper's: those runs are done on any machine, beside other work.
    """
    found = _table(root / "results", experiment, preset=preset)
    rows = [row for row in found.rows if row.finished]
    if not rows:
        return "No run is recorded yet."
    rates, score = chosen(found.experiment, root / "results", preset), found.metric
    columns = {
        score: score, "rounded": f"rounded_{score}", "gap": "rounding_gap", "exact, %": "exact_gates",
        "dead, %": "dead_units", **({"update cost": COST} if preset == PRESET else {}),
    }  # fmt: skip
    lines = []
    for row in rows:
        rate = f"{rates[row.name]:g}" if row.name in rates else ""
        numbers = [str(row.numbers.get(name, Estimate(()))) for name in columns.values()]
        lines.append([row.title, rate, *numbers, row.runs])
    header = ["gates", "rate", *columns, "seeds"]
    return table([name.replace("_", " ") for name in header], lines, numbers=1)


def compared(root: Path, experiment: str, preset: str = PRESET) -> str:
    """The comparisons that the experiment declares, with Holm's correction, and the notes of its table."""
    found = _table(root / "results", experiment, preset=preset)
    parts = []
    for kind in kinds(found.comparisons, found.metric):
        cells = [[column(each).replace("_", " ") for column in kind.columns.values()] for each in kind.rows]
        parts += [f"{kind.said.replace('_', ' ')}.", "", table(list(kind.columns), cells, numbers=1), ""]
    parts += [f"- {note.replace('_', ' ')}." for note in found.notes]
    return "\n".join(parts)


_PARTS_OF_LSTM = {"gates": ("i", "f", "o"), "candidates": ("g",), "tanh of c": ("c",)}


def noise(root: Path, experiment: str) -> str:
    """What the noisy arms of an LSTM recorded of their noise at the end of training.

    The share of activations that had noise or the mean of noise, sigma, and abs(p) are averaged over runs. A range is
    over the gates of a kind and the layers.
    """
    lines = []
    for row in _table(root / "results", experiment).rows:
        units = {unit: numbers for unit, numbers in row.noise.items() if "drawn" in numbers}
        if not units:
            continue
        parts = [[n for unit, n in units.items() if unit.endswith(ends)] for ends in _PARTS_OF_LSTM.values()]
        shares = [_range([100 * numbers["drawn"] for numbers in part], "%") for part in parts]
        sigmas = [_range([numbers["sigma"] for numbers in part]) for part in parts]
        p = _range([numbers["p"] for numbers in parts[1]])
        lines.append([row.title, *shares, *sigmas, p, str(row.finished)])
    header = ["arm", *(f"noisy {name}" for name in _PARTS_OF_LSTM), *(f"sigma, {name}" for name in _PARTS_OF_LSTM)]
    return table([*header, "abs(p), candidates", "seeds"], lines, numbers=1)


def _range(values: list[float], unit: str = "") -> str:
    low, high = (f"{value:.2g}{unit}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def number(root: Path, experiment: str, arm: str, metric: str = "", sweep: str = "") -> str:
    """One number over seeds, such as ``108.0 ± 1.1``."""
    found = _table(root / "results", experiment, sweep)
    (row,) = (row for row in found.rows if row.name == arm)
    return str(row.numbers[metric or found.metric])


def difference(root: Path, experiment: str, arm: str, against: str, metric: str = "", sweep: str = "") -> str:
    """The difference of two arms paired by seed, such as ``-6.7 ± 1.1``."""
    found = _table(root / "results", experiment, sweep)
    (each,) = compare([Comparison(arm, against, metric)], found.rows, found.metric)
    return each.shown_difference


@dataclasses.dataclass(frozen=True)
class Task:
    """A row of the table of gains: a task, its noisy arm, and the reference."""

    task: str
    experiment: str
    noisy: str
    metric: str = ""
    lower: bool = True
    """Whether a lower number is better."""
    reference: str = "reference"


TASKS = (
    Task("Penn Treebank, words: perplexity", "ptb-word", "nan"),
    Task("the same, medium LSTM with dropout", "ptb-word-medium", "nan"),
    Task("Penn Treebank, characters: bits", "ptb-char", "nan"),
    Task("Learning to Execute: % right", "execute", "nah", lower=False),
    Task("Flickr8k captions: NLL", "caption", "nah"),
    Task("translation, 20,000 updates: BLEU", "translate", "nah", lower=False, reference="reference-small"),
)
"""The tasks whose arms are a test of noise at the output: reference, leak and noise in at least two seeds each."""


def gains(root: Path) -> str:
    """Six tasks: the noisy arm's gain in the paper and here, the gain of the leak alone, and what noise adds to it.

    A gain is a difference paired by seed with the sign that makes better positive.
    """
    lines = []
    for row in TASKS:
        found = _table(root / "results", row.experiment)
        papers = {each.name: each.paper for each in found.rows}
        noisy, plain = papers[row.noisy], papers[row.reference]
        paper = "" if noisy is None or plain is None else f"{_gain(noisy - plain, row.lower):+.2f}"
        pairs = ((row.noisy, row.reference), ("leak", row.reference), (row.noisy, "leak"))
        ours = [_signed(root, row, *pair) for pair in pairs]
        seeds = min(each.finished for each in found.rows if each.name in (row.noisy, row.reference, "leak"))
        lines.append([f"{row.task} ({row.noisy.upper()})", paper, *ours, str(seeds)])
    header = ["gain over soft functions", "paper", "noise and leak", "leak alone", "what noise adds", "seeds"]
    return table(header, lines, numbers=1)


def _gain(value: float, lower: bool) -> float:
    return -value if lower else value


def _signed(root: Path, row: Task, arm: str, against: str) -> str:
    """The gain of an arm: swapping the arms of a difference swaps its sign."""
    return difference(root, row.experiment, *((against, arm) if row.lower else (arm, against)), row.metric)


@functools.cache
def effects(root: Path) -> tuple[Effect, ...]:
    """The effects of leak, mean and randomness in all experiments."""
    return tuple(effects_of(root / "results"))


def finding(root: Path) -> str:
    """What the effects say, as a list of sentences, and their limits."""
    found, on_plateau = effects(root), plateau_tests(root / "results")
    return "\n".join([*(f"- {each.sentence}" for each in findings(found, on_plateau)), "", limits(found)])


def saturated_start(root: Path) -> str:
    """The table of `examples/saturated_start.py` from its record."""
    record = read_json(root / "results" / "saturated_start.json", dict)
    lines = []
    for arm in record["arms"]:
        errors = arm["test_error"]
        mean = sum(errors) / len(errors)
        scheme = "no noise" if arm["scheme"] is None else f"`{arm['scheme'].replace(',clip=False', '')}`"
        lines.append([arm["name"], scheme, f"{mean:.1f}%", ", ".join(f"{error:.1f}" for error in errors)])
    seeds, updates = len(record["arms"][0]["test_error"]), record["settings"]["updates"]
    header = [f"arm ({seeds} seeds, {updates:,} updates)", "scheme", "test error, mean", "each seed"]
    return table(header, lines, numbers=2)


def memory_ppo(root: Path) -> str:
    """The table of `examples/memory_ppo.py` from its records: mean and standard deviation over seeds."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in sorted((root / "results" / "memory-ppo").glob("*.json")):
        found = read_json(path, dict)
        runs.setdefault((found["settings"]["environment"], found["arm"]), []).append(found)
    lines = []
    for (environment, arm), found in runs.items():
        returns = [[run["curve"]["return"][-1] for run in found], [run["evaluation"]["return"] for run in found]]
        speeds = [[run["steps_per_second"][part] / 1000 for run in found] for part in ("rollout", "update", "both")]
        lines.append([environment, f"`{arm}`", str(len(found)), *(_spread(values, 2) for values in returns),
                      *(_spread(values, 1) for values in speeds)])  # fmt: skip
    header = ["environment", "layer", "seeds", "last return", "evaluation", "rollout", "update", "both"]
    return table(header, lines, numbers=2)


def _spread(values: list[float], digits: int) -> str:
    deviation = f" ± {statistics.stdev(values):,.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):,.{digits}f}{deviation}"
