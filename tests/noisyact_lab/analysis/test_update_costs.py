"""The cost of an update, and the table of ways to train hard gates, from records made by hand."""

import dataclasses
import itertools

import pytest

from noisyact_lab.analysis.results_table import table_of
from noisyact_lab.analysis.update_costs import COST, seconds_per_update
from noisyact_lab.engine.folder.files import write_json, write_lines
from noisyact_lab.experiments.estimators.word import ESTIMATORS_WORD as WORD
from noisyact_lab.site import results

TIMES = itertools.count(10**9, 1000)
"""When runs that are done one at a time begin."""
HERE = {"device": "a CPU", "threads": 1, "torch": "2.13", "commit": "abc"}


def put(root, arm, seed, seconds, status="finished", at=None, **signature):
    """A run with evaluations at updates 10, 20 and 30 and 100 seconds of starting; on its own unless `at` says when."""
    folder = root / "results" / "estimators-word" / "smoke" / arm / f"seed-{seed}"
    settings = dataclasses.asdict(WORD.effective(arm, "smoke"))
    score = {"test_perplexity": 100.0 + seed, "rounded_test_perplexity": 104.0 + seed, "rounding_gap": 4.0}
    result = score | {"exact_gates": 12.5, "dead_units": 0.5}
    write_json(folder / "config.json", {"settings": settings})
    write_json(folder / "result.json", {"status": status, "result": result, "signature": HERE | signature})
    at = next(TIMES) if at is None else at
    lines = [{"update": 10 * i, "seconds": 100 + 10 * i * seconds} for i in (1, 2, 3)]
    write_lines(folder / "timing.jsonl", [{**line, "at": at + line["seconds"]} for line in lines])


def costs(root):
    return {row.name: row.numbers.get(COST) for row in table_of(WORD, root / "results", "smoke").rows}


def test_the_start_of_a_run_has_no_part_in_it():
    lines = [{"update": 10, "seconds": 9.0}, {"update": 20, "seconds": 10.0}, {"update": 30, "seconds": 13.0}]
    assert seconds_per_update(lines) == pytest.approx(0.2)
    for wrong in ([], lines[:1], [lines[0], lines[0]], lines[::-1], [*lines[:2], {"update": 30}]):
        assert seconds_per_update(wrong) is None


def test_runs_are_compared_with_that_of_the_same_seed_on_the_same_device(tmp_path):
    for seed, seconds in enumerate((1.0, 2.0, 4.0)):
        put(tmp_path, "hard", seed, seconds)
        put(tmp_path, "nah", seed, 1.5 * seconds)
    put(tmp_path, "leak", 0, 3.0)
    put(tmp_path, "leak", 1, 3.0, device="another")
    put(tmp_path, "leak", 2, 3.0, status="diverged")
    put(tmp_path, "leak", 3, 3.0)  # hard has no such seed
    put(tmp_path, "gumbel", 0, 3.0, commit="def")
    found = costs(tmp_path)
    assert found["hard"].by_seed == {"0": 1.0, "1": 1.0, "2": 1.0}
    assert found["nah"].by_seed == pytest.approx({"0": 1.5, "1": 1.5, "2": 1.5})
    assert found["leak"].by_seed == pytest.approx({"0": 3.0})
    assert found["gumbel"] is found["nan"] is None
    assert any(note.startswith("update_cost is the time of an update") for note in
               table_of(WORD, tmp_path / "results", "smoke").notes)  # fmt: skip


def test_runs_side_by_side_have_no_cost(tmp_path):
    for arm in ("hard", "leak", "nah"):
        put(tmp_path, arm, 0, 1.0)
    put(tmp_path, "hard", 1, 1.0, at=5e8)
    put(tmp_path, "nah", 1, 2.0, at=5e8 + 100)
    put(tmp_path, "leak", 1, 2.0)
    found = costs(tmp_path)
    assert {arm: cost.by_seed for arm, cost in found.items() if cost is not None} == {
        arm: {"0": 1.0} for arm in ("hard", "leak", "nah")
    }
    for arm in ("leak", "nah"):
        put(tmp_path, arm, 0, 1.0, at=7e8)
    assert costs(tmp_path)["leak"] is None
    put(tmp_path, "hard", 0, 1.0, at=7e8)
    notes = table_of(WORD, tmp_path / "results", "smoke").notes
    assert "update_cost needs runs of hard and of other arms that were done one at a time (--jobs 1)" in notes


def test_the_table_of_the_documentation(tmp_path):
    assert results.gates(tmp_path / "empty", "estimators-word") == "No run is recorded yet."
    for seed in range(3):
        put(tmp_path, "hard", seed, 1.0)
    choice = {"setting": "learning_rate", "metric": "valid_perplexity", "seed": 1000, "values": [1.0]}
    path = tmp_path / "results" / "estimators-word" / "smoke" / "choice.json"
    write_json(path, choice | {"arms": {"hard": {"chosen": 1.0, "scores": [9.0]}}})
    header, _, row = results.gates(tmp_path, "estimators-word", "smoke").splitlines()
    assert header == "| gates | rate | test perplexity | rounded | gap | exact, % | dead, % | seeds |"
    assert row == "| hard gates, no noise | 1 | 101.0 ± 2.5 | 105.0 ± 2.5 | 4 ± 0 | 12.5 ± 0 | 0.5 ± 0 | 3 |"
    runs = tmp_path / "results" / "estimators-word"
    (runs / "smoke").rename(runs / "paper")
    results._table.cache_clear()
    header, _, row = results.gates(tmp_path, "estimators-word").splitlines()
    assert header.endswith("| update cost | seeds |")
    assert row.endswith("| 1 ± 0 | 3 |")
