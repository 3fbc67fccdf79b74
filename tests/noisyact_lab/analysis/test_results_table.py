"""Tables: intervals computed by hand, and no run is dropped silently."""

import dataclasses
import json

import pytest

from noisyact_lab.analysis.estimates import Estimate
from noisyact_lab.analysis.results_table import sweep_table_of, table_of
from noisyact_lab.analysis.statistics.intervals import Pooled
from noisyact_lab.engine.folder.files import write_json, write_lines
from noisyact_lab.engine.job import folder_of
from noisyact_lab.experiments.ptb_word import PTB_WORD
from noisyact_lab.experiments.unique import UNIQUE


def put(out, arm, seed, status=None, settings=None, **result):
    """A run's folder; without a status it is unfinished."""
    folder = folder_of(out, "unique", "smoke", arm, seed)
    expected = UNIQUE.effective(arm, "smoke", settings)
    write_json(folder / "config.json", {"settings": vars(expected)})
    if status is not None:
        write_json(folder / "result.json", {"status": status, "result": result})


def row(table, name):
    return next(row for row in table.rows if row.name == name)


def test_intervals_by_hand():
    # Mean 4, deviations -2, 0, 2: s = sqrt(8/2) = 2; t with 2 degrees of freedom 4.3027; 4.3027 * 2 / sqrt(3) = 4.9683.
    estimate = Estimate((2.0, 4.0, 6.0))
    assert estimate.mean == 4.0
    assert estimate.interval == pytest.approx((4 - 4.9683, 4 + 4.9683), abs=1e-4)
    # Two: s = sqrt(2), half = 12.706 * sqrt(2) / sqrt(2). The rules of agreement use it; it is not shown.
    assert Estimate((1.0, 3.0)).own_interval == pytest.approx((2 - 12.706, 2 + 12.706), abs=1e-3)
    assert Estimate((1.0, 3.0)).interval is None
    assert Estimate((1.0,)).own_interval is None
    # Pooled: t with 4 degrees of freedom 2.776; 2.776 * 2 / sqrt(2) = 3.926. Three seeds have their own.
    pooled = Pooled(2.0, freedom=4, p=0.5)
    assert Estimate((1.0, 3.0), pooled=pooled).interval == pytest.approx((2 - 3.9263, 2 + 3.9263), abs=1e-3)
    assert Estimate((2.0, 4.0, 6.0), pooled=pooled).interval == estimate.interval
    assert Estimate((1.0, 3.0), pooled=Pooled(2.0, freedom=4, p=0.01)).interval is None  # variances differ
    assert Estimate(()).mean is None


def test_numbers_in_words():
    assert str(Estimate((2.0, 4.0, 6.0))) == "4.0 ± 5.0"
    assert str(Estimate((5.0,))) == "5"
    assert str(Estimate((None, None))) == "not reached"
    assert str(Estimate((None, 1200.0, 1400.0))) == "1300 (2 of 3 reached)"
    assert str(Estimate(())) == "-"
    assert str(Estimate((5.0,), pooled=Pooled(1.0, freedom=4, p=0.5))) == "5.0 ± 2.8*"


def test_every_run_is_counted(tmp_path):
    put(tmp_path, "nan", 0, "finished", test_error=10.0, **{"updates_to_1%": None})
    put(tmp_path, "nan", 1, "finished", test_error=12.0, **{"updates_to_1%": 40.0})
    put(tmp_path, "nan", 2, "diverged", test_error=90.0)
    put(tmp_path, "nan", 3)
    folder_of(tmp_path, "unique", "smoke", "nan", 4).mkdir()
    put(tmp_path, "reference", 0, "finished", test_error=50.0)
    table = table_of(UNIQUE, tmp_path, "smoke")
    nan = row(table, "nan")
    assert (nan.finished, nan.diverged, nan.partial) == (2, 1, 2)
    assert nan.runs == "5 (1 diverged, 2 partial)"
    assert nan.numbers["test_error"].values == (10.0, 12.0)  # the diverged run's last number is excluded
    assert nan.numbers["updates_to_1%"].values == (None, 40.0)
    assert row(table, "hard").runs == "0"
    assert table.order().startswith("nan ~ reference; no number: hard, leak, curriculum,")
    text = str(table)
    for part in ("5 (1 diverged, 2 partial)", "31.12", "40 (1 of 2 reached)", UNIQUE.agreement):
        assert part in text
    again = json.loads(json.dumps(table.as_json(), allow_nan=False))
    assert again["rows"][3]["numbers"]["test_error"]["mean"] == 11.0
    assert again["rows"][3]["paper"] == 31.12
    assert again["rows"][3]["runs"] == 5


def test_numbers_of_the_paper_beside_its_headline(tmp_path):
    arms = tuple(
        dataclasses.replace(arm, papers={"updates_to_1%": 40.5}) if arm.name == "nan" else arm for arm in UNIQUE.arms
    )
    two = dataclasses.replace(UNIQUE, arms=arms)
    for arm in ("nan", "reference"):
        put(tmp_path, arm, 0, "finished", test_error=10.0, loss=0.25, **{"updates_to_1%": 60.0})
    table = table_of(two, tmp_path, "smoke", ["nan", "reference"])
    assert table.others == {"updates_to_1%": True, "loss": False}  # first what the paper has too
    header, nan, reference = (line.split() for line in str(table).splitlines()[3:6])
    assert header[-7:] == ["paper", "updates_to_1%", "paper", "loss", "what", "it", "is"]
    assert nan[2:] == ["10", "31.12", "60", "40.5", "0.25", "NAN"]
    assert reference[2:] == ["10", "33.28", "60", "-", "0.25", "LSTM"]
    assert [row["papers"] for row in table.as_json()["rows"]] == [{"updates_to_1%": 40.5}, {}]


def test_order_says_where_intervals_are_apart(tmp_path):
    for seed in range(3):
        put(tmp_path, "nan", seed, "finished", test_error=30.0 + 0.01 * seed)
        put(tmp_path, "hard", seed, "finished", test_error=20.0 + 0.01 * seed)
        put(tmp_path, "leak", seed, "finished", test_error=20.0 + 0.02 * seed)
    assert table_of(UNIQUE, tmp_path, "smoke", ["nan", "hard", "leak"]).order() == "hard ~ leak < nan"
    for seed in range(2):  # two runs that agree have no spread, which tells nothing
        put(tmp_path, "curriculum", seed, "finished", test_error=40.0)
    assert table_of(UNIQUE, tmp_path, "smoke", ["nan", "curriculum"]).order() == "nan ~ curriculum"


def test_other_settings_and_broken_files_are_noted(tmp_path):
    put(tmp_path, "nan", 0, "finished", test_error=1.0)
    put(tmp_path, "nan", 1, "finished", {"hidden": 99}, test_error=1.0)
    put(tmp_path, "nan", 2, "finished", {"hidden": 99}, test_error=1.0)
    put(tmp_path, "leak", 0)
    (folder_of(tmp_path, "unique", "smoke", "leak", 0) / "result.json").write_text('{"sta')
    table = table_of(UNIQUE, tmp_path, "smoke")
    broken, changed = sorted(table.notes)
    assert broken.startswith("leak seed-0 cannot be read and counts as partial:")
    assert changed == "nan seed-1, seed-2: not the preset's hidden=99"
    assert row(table, "leak").partial == 1


def test_sweep_has_a_row_a_value(tmp_path):
    put(tmp_path / "a", "nan", 0, "finished", test_error=3.0)
    put(tmp_path / "b", "nan", 0, "finished", test_error=2.0)
    table = sweep_table_of(UNIQUE, "nan", "smoke", [("c=1", tmp_path / "a"), ("c=2", tmp_path / "b")])
    assert [str(row.numbers["test_error"]) for row in table.rows] == ["3", "2"]
    assert table.order() == "c=2 ~ c=1"


def test_sweep_rows_do_not_have_the_arms_setting(tmp_path):
    """The arm's title names the setting it has elsewhere: "sigma=0.01  NANI, sigma = 0.268"."""
    for value in ("0.01", "1"):
        folder = folder_of(tmp_path / f"sigma={value}", "ptb-word", "smoke", "nani", 0)
        write_json(folder / "result.json", {"status": "finished", "result": {"test_perplexity": 3.0}})
    assert "sigma" in PTB_WORD.arm("nani").title
    points = [(path.name, path) for path in sorted(tmp_path.iterdir())]
    table = sweep_table_of(PTB_WORD, "nani", "smoke", points)
    text = str(table)
    assert PTB_WORD.arm("nani").title not in text
    assert text.splitlines()[0].endswith("preset smoke: sweep of nani")
    rows = [line.split() for line in text.splitlines() if line.startswith("sigma")]
    assert rows == [["sigma=0.01", "1", "3", "-"], ["sigma=1", "1", "3", "-"]]
    assert table.comparisons == ()
    assert [row["title"] for row in table.as_json()["rows"]] == ["sigma=0.01", "sigma=1"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width, tmp_path):
    """Nine arms with long names, six numbers, notes: nothing is lost, and each row begins with its arm."""
    numbers = dict.fromkeys(("test_error", "test_error_at_10%", "test_error_at_25%", "updates_to_1%"), 123.456)
    for arm in UNIQUE.arms:
        for seed in range(2):
            put(tmp_path, arm.name, seed, "finished", {"hidden": 99}, **numbers, seconds=1.5 + seed)
    table = table_of(UNIQUE, tmp_path, "smoke")
    wide, narrow = str(table), table.text(width)
    assert max(map(len, wide.splitlines())) > 120
    assert max(map(len, narrow.splitlines())) <= width
    assert set(wide.split()) == set(narrow.split())
    for name in ("test_error_at_10%", "updates_to_1%", "seconds"):
        assert name in narrow
    above, said, _ = narrow.partition("Differences of")
    assert said
    blocks = above.split("\n\n")[1:-1]
    assert len(blocks) > 1
    for block in blocks:
        rows = [line.split()[0] for line in block.splitlines() if not line.startswith(" ")]
        assert rows == ["arm", *(arm.name for arm in UNIQUE.arms)]


def test_arms_are_compared_where_the_reference_is_as_far_as_the_papers(tmp_path):
    curves = {"reference": [{20: 80.0, 40: 30.0, 60: 0.0}, {20: 70.0, 40: 38.0, 60: 1.0}], "nan": [{20: 9.0, 40: 5.0}]}
    for arm, runs in curves.items():
        for seed, curve in enumerate(runs):
            put(tmp_path, arm, seed, "finished", test_error=0.0)
            lines = [{"update": update, "test_error": error} for update, error in curve.items()]
            write_lines(folder_of(tmp_path, "unique", "smoke", arm, seed) / "metrics.jsonl", lines)
    put(tmp_path, "nan", 1, "diverged", test_error=0.0)
    table = table_of(UNIQUE, tmp_path, "smoke")
    # The paper's reference has 33.28: the means are 75, 34 and 0.5.
    assert table.metric == "test_error at update 40"
    assert row(table, "reference").numbers[table.metric].values == (30.0, 38.0)
    assert row(table, "nan").numbers[table.metric].values == (5.0,)
    assert table.order().startswith("nan ~ reference")
    assert "compared at update 40" in str(table)
    assert table_of(UNIQUE, tmp_path, "short").metric == "test_error"  # no run, nothing to match
