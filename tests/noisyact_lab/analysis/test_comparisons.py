"""An experiment's comparisons: the family each declares, what its table says of them, and what is missing."""

import dataclasses
import html
import json
import re
from pathlib import Path

import pytest
from scipy import stats

import noisyact_lab
from noisyact_lab.analysis.comparisons import compare
from noisyact_lab.analysis.estimates import Estimate, Row
from noisyact_lab.analysis.results_table import table_of
from noisyact_lab.analysis.statistics import intervals
from noisyact_lab.engine.experiment import Arm, Comparison, experiment_names, load_experiment
from noisyact_lab.engine.folder.files import write_json
from noisyact_lab.engine.job import folder_of
from noisyact_lab.experiments.unique import UNIQUE
from noisyact_lab.report import page

SOURCES = Path(noisyact_lab.__file__).parent
REFERENCE, HARD, NAN = [30.0, 31.0, 35.0, 33.0], [29.0, 32.0, 36.0, 33.5], [20.0, 22.0, 26.0, 25.0]


def row(name, values, metric="error", updates=None):
    seeds = tuple(str(seed) for seed in range(len(values)))
    return Row(name, name, None, len(values), 0, 0, {metric: Estimate(tuple(values), seeds)}, updates=updates or {})


def put(out, arm, values, **numbers):
    for seed, value in enumerate(values):
        folder = folder_of(out, "unique", "smoke", arm, seed)
        others = {name: many[seed] for name, many in numbers.items()}
        result = {"test_error": value, **others}
        write_json(folder / "config.json", {"settings": vars(UNIQUE.effective(arm, "smoke"))})
        write_json(folder / "result.json", {"status": "finished", "updates": 60, "result": result})


@pytest.mark.parametrize("name", experiment_names())
def test_families_name_arms_that_there_are_and_nothing_twice(name):
    experiment = load_experiment(name)
    family = experiment.family()
    assert len(set(family)) == len(family)
    most = 34 if name.startswith("estimators") else 27 if name == "ptb-word" else 16
    assert 4 <= len(family) <= most  # a large family leaves no comparison any power
    for comparison in family:
        assert experiment.arm(comparison.arm) != experiment.arm(comparison.against)
    compared = {(c.arm, c.against) for c in family}
    soft = "tanh" if name in ("mixture", "mnist") else "reference"
    assert any(against == soft for _, against in compared)
    if name == "ptb-word-zoneout":
        return  # about masks of the state, not about leak and noise
    assert any(against == "leak" for _, against in compared)
    assert name == "recall" or ("leak", "hard") in compared  # recall is about annealed noise alone


def test_default_family():
    arms = tuple(Arm(name, name, {}) for name in ("tanh", "hard", "curriculum", "nani-x", "reference-small"))
    family = dataclasses.replace(UNIQUE, arms=arms, comparisons=None).family()
    assert [(c.arm, c.against) for c in family] == [("hard", "tanh"), ("nani-x", "tanh"), ("nani-x", "hard")]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"against": "nan"}, "'nan' with itself"),
        ({"margin": 0.0}, "margin=0.0: must be above 0"),
        ({"margin": float("nan")}, "margin=nan"),
        ({"times": True}, "times need a metric"),
        ({"times": True, "metric": "updates", "margin": 1.0}, "have no margin"),
    ],
)
def test_wrong_comparisons(wrong, why):
    with pytest.raises(ValueError, match=why):
        Comparison(**({"arm": "nan", "against": "hard"} | wrong))


def test_numbers_are_those_of_the_tests_and_holm_is_over_all_kinds():
    family = (
        Comparison("nan", "reference"), Comparison("hard", "reference"), Comparison("hard", "reference", margin=2.0),
        Comparison("nan", "lost"),
    )  # fmt: skip
    rows = [row("reference", REFERENCE), row("hard", HARD), row("nan", NAN)]
    large, small, equal = compare(family, rows, "error")  # the arm `lost` has no row
    expected = [stats.ttest_rel(NAN, REFERENCE).pvalue, stats.ttest_rel(HARD, REFERENCE).pvalue]
    assert [large.p, small.p] == pytest.approx(expected)
    assert large.corrected == pytest.approx(3 * large.p)
    assert equal.corrected == pytest.approx(2 * equal.p)
    assert small.corrected == pytest.approx(small.p)
    assert equal.difference == small.difference
    assert (large.shown_difference, large.seeds) == ("-9.0 ± 1.3", "4")


def test_only_seeds_that_both_have():
    ours = Row("nan", "nan", None, 3, 0, 0, {"error": Estimate((1.0, None, 4.0, 2.5), ("1", "2", "3", "4"))})
    (found,) = compare([Comparison("nan", "hard")], [ours, row("hard", [9.0, 3.0, 9.0, 7.0])], "error")
    assert (found.difference.seeds, found.difference.mean) == (2, -2.5)  # seeds 1 and 3
    (none,) = compare([Comparison("nan", "hard")], [ours, row("hard", [9.0])], "error")
    assert (none.seeds, none.shown_difference, none.p, none.corrected) == ("0", "-", None, None)


def test_times_of_runs_that_never_got_there_are_censored_at_their_end():
    family = [Comparison("nan", "hard", "updates_to_1%", times=True)]
    ours = row("nan", [20.0, 40.0, 40.0], "updates_to_1%")
    theirs = row("hard", [60.0, None, None], "updates_to_1%", {"1": 80, "2": 80})
    (found,) = compare(family, [ours, theirs], "error")
    assert found.times[1].censored == (80.0, 80.0)
    assert found.survival.means == pytest.approx((100 / 3, 60 + 20 * 2 / 3))
    assert (found.reached, found.mean_times) == ("3 of 3, 1 of 3", "33.3, 73.3")
    assert found.p < 0.05
    unknown = row("hard", [60.0, None, None], "updates_to_1%")  # when the others ended was not recorded
    assert compare(family, [ours, unknown], "error")[0].p is None
    (few,) = compare(family, [row("nan", [20.0, 40.0], "updates_to_1%"), theirs], "error")
    assert (few.p, few.corrected, few.shown_p) == (None, None, "-")  # two runs are shown and not tested
    assert (few.reached, few.mean_times) == ("2 of 2, 1 of 3", "30, 73.3")


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_has_every_comparison(tmp_path, width):
    put(tmp_path, "reference", REFERENCE, **{"updates_to_1%": [60, 60, 60, None]})
    put(tmp_path, "hard", HARD)
    put(tmp_path, "nan", NAN)
    put(tmp_path, "nan-annealed", [20.0, 21.0], **{"updates_to_1%": [20, 40]})
    table = table_of(UNIQUE, tmp_path, "smoke")
    assert [compared.comparison for compared in table.comparisons] == list(UNIQUE.family())
    text = table.text(width)
    assert max(map(len, text.splitlines())) <= width
    tested = sum(compared.p is not None for compared in table.comparisons)
    assert f"p corrected for the {tested} comparisons" in " ".join(text.split())
    lines = [line.split() for line in text.splitlines()]
    p = stats.ttest_rel(NAN, REFERENCE).pvalue
    assert ["nan", "-", "reference", "4", "-9.0", "±", "1.3", "<0.001"] in [line[:8] for line in lines]
    assert p < 0.001
    assert ["leak", "-", "reference", "0", "-", "-", "-", "-"] in lines  # no run, and not left out
    assert "nan-annealed: fewer than 3 seeds" in text
    assert ["nan-annealed", "-", "reference,", "updates_to_1%", "2", "of", "2,", "3", "of", "4"] in [
        line[:10] for line in lines
    ]
    record = json.loads(json.dumps(table.as_json(), allow_nan=False))["comparisons"]
    found = next(each for each in record if (each["arm"], each["against"]) == ("nan", "reference"))
    assert found["p"] == pytest.approx(p)
    assert found["holm"] >= found["p"]
    assert (found["seeds"], found["difference"], found["test"]) == (4, -9.0, "difference")
    assert {each["test"] for each in record} == {"difference", "log-rank"}


def test_a_table_without_scipy_has_means_and_says_what_is_missing(tmp_path, monkeypatch):
    put(tmp_path, "reference", REFERENCE)
    put(tmp_path, "nan", NAN)
    monkeypatch.setattr(intervals.importlib.util, "find_spec", lambda name: None)
    table = table_of(UNIQUE, tmp_path, "smoke")
    assert "Note: intervals and comparisons need scipy, which is not installed: pip install" in str(table)
    assert [line.split()[:4] for line in str(table).splitlines() if line.startswith("nan - reference")] == [
        ["nan", "-", "reference", "4"]
    ]
    assert str(table.rows[0].numbers["test_error"]) == "32.2"


def test_the_page_has_them_too(tmp_path, monkeypatch):
    put(tmp_path, "reference", REFERENCE)
    put(tmp_path, "nan", NAN)
    text = html.unescape(page.write(tmp_path, tmp_path / "page.html").read_text())
    (found,) = (c for c in table_of(UNIQUE, tmp_path, "smoke").comparisons if c.name == "nan - reference")
    shown = [found.seeds, "-9.0 ± 1.3", "<0.001", "<0.001", found.effect, found.effect_interval]
    cells = "".join(f'<td class="num">{cell}</td>' for cell in shown)
    assert f'<tr><th scope="row">nan - reference</th>{cells}</tr>' in text
    monkeypatch.setattr(intervals.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="need scipy, which is not installed: pip install"):
        page.write(tmp_path, tmp_path / "page.html")


def test_training_imports_no_scipy():
    """A machine that trains need not have it."""
    rooms = ("data", "models", "gpu", "engine", "tasks", "experiments")
    for path in (path for room in rooms for path in (SOURCES / room).rglob("*.py")):
        assert not re.search(r"import scipy|from scipy|analysis\.(statistics|results_table|comp)", path.read_text()), (
            path
        )
