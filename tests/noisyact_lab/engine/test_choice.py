"""The choice of a setting on validation: from records made by hand, and by the command."""

import dataclasses
import json

import pytest
from commands import noisyact

from noisyact_lab.analysis.results_table import table_of
from noisyact_lab.engine import choice
from noisyact_lab.engine.experiment import UnknownName, experiment_names, load_experiment, names_in
from noisyact_lab.engine.folder.files import Damaged, read_json, write_json
from noisyact_lab.experiments.estimators.unique import ESTIMATORS_UNIQUE as UNIQUE

TINY = {"updates": 8, "evaluate_every": 4, "hidden": 6, "mlp": 6, "test_sequences": 40, "batch": 4, "length": 6}
SET = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
RATES = [5e-4, 1e-3, 2e-3, 4e-3]
METRIC = "mean_valid_error"


def put(jobs, scores, **others):
    """Write the records of finished runs by hand: None for one that diverged, ... for one that is not finished."""
    for job, score in zip(jobs, scores, strict=True):
        if score is ...:
            continue
        status = "diverged" if score is None else "finished"
        write_json(job.folder / "config.json", job.config())
        write_json(job.folder / "result.json", {**job.config(), "status": status, "result": {METRIC: score, **others}})


def jobs_of(out, *arms, changes=None):
    return choice.choice_jobs(UNIQUE, arms, "smoke", out, "cpu", changes)


def chosen(out, scores, **others):
    jobs = jobs_of(out, "hard")
    put(jobs["hard"], scores, **others)
    return choice.choose(UNIQUE, jobs, "smoke", out)["hard"]


def test_every_arm_is_tried_with_the_same_values_and_a_seed_of_its_own(tmp_path):
    assert choice.values_tried(UNIQUE, "smoke") == RATES
    assert choice.values_tried(UNIQUE, "smoke", {"learning_rate": "0.1"}) == [0.025, 0.05, 0.1, 0.2]
    jobs = jobs_of(tmp_path, *(arm.name for arm in UNIQUE.arms), changes={"hidden": "6"})
    assert {tuple(job.settings.learning_rate for job in of_arm) for of_arm in jobs.values()} == {tuple(RATES)}
    assert all(job.seed == 1000 and not job.settings.test for of_arm in jobs.values() for job in of_arm)
    assert all(job.settings.hidden == 6 for of_arm in jobs.values() for job in of_arm)
    folders = [job.folder for of_arm in jobs.values() for job in of_arm]
    assert len(set(folders)) == len(folders) == 4 * 14
    assert folders[0] == tmp_path / "choice/learning_rate=0.0005/estimators-unique/smoke/reference/seed-1000"
    for name in filter(lambda name: load_experiment(name).choice, experiment_names()):
        assert not any("learning_rate" in arm.settings for arm in load_experiment(name).arms)


def test_the_lowest_score_is_chosen_and_recorded_with_all_others(tmp_path):
    assert chosen(tmp_path, [9.0, 7.5, 8.0, 60.0]) == 1e-3
    assert read_json(tmp_path / "estimators-unique" / "smoke" / "choice.json") == {
        "setting": "learning_rate", "metric": METRIC, "seed": 1000, "values": RATES,
        "arms": {"hard": {"chosen": 1e-3, "scores": [9.0, 7.5, 8.0, 60.0]}},
    }  # fmt: skip
    assert choice.chosen(UNIQUE, tmp_path, "smoke") == {"hard": 1e-3}
    assert choice.chosen(UNIQUE, tmp_path, "short") == {}


@pytest.mark.parametrize(
    ("scores", "right"),
    [
        ([8.0, 7.0, 7.0, 7.0], 1e-3),  # of equal ones the smallest
        ([8.0, 7.0, 7.0, 6.0], 4e-3),
        ([None, 9.0, None, 9.5], 1e-3),  # what diverged loses
        ([None, None, None, None], 5e-4),
        ([0.0, 0.0, None, 1.0], 5e-4),
    ],
)
def test_ties_and_diverged_runs(scores, right, tmp_path):
    assert chosen(tmp_path, scores) == right


def test_test_numbers_have_no_part_in_it(tmp_path):
    jobs = jobs_of(tmp_path, "hard")
    for job, score, misleading in zip(jobs["hard"], [3.0, 1.0, 2.0, 4.0], [1.0, 9.0, 9.0, 0.0], strict=True):
        put([job], [score], test_error=misleading, rounded_test_error=misleading)
    assert choice.choose(UNIQUE, jobs, "smoke", tmp_path) == {"hard": 1e-3}


def test_an_incomplete_grid_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"learning_rate for hard lacks the runs with 0\.001, 0\.004; repeat"):
        chosen(tmp_path, [9.0, ..., 7.0, ...])
    assert not (tmp_path / "estimators-unique").exists()
    assert chosen(tmp_path, [..., 8.0, ..., 9.0]) == 2e-3


def test_arms_that_were_chosen_before_are_kept(tmp_path):
    jobs = jobs_of(tmp_path, "hard", "leak")
    for arm, scores in (("hard", [4.0, 3.0, 2.0, 1.0]), ("leak", [1.0, 2.0, 3.0, 4.0])):
        put(jobs[arm], scores)
        choice.choose(UNIQUE, {arm: jobs[arm]}, "smoke", tmp_path, force=True)
    assert choice.chosen(UNIQUE, tmp_path, "smoke") == {"hard": 4e-3, "leak": 5e-4}


def test_a_choice_among_other_values_is_not_mixed_with_this_one(tmp_path):
    chosen(tmp_path, [4.0, 3.0, 2.0, 1.0])
    path = tmp_path / "estimators-unique" / "smoke" / "choice.json"
    record = read_json(path)
    write_json(path, record | {"values": [0.1, 0.2, 0.3, 0.4]})
    with pytest.raises(ValueError, match=r"choice.json has another choice: .* use --force"):
        chosen(tmp_path, [4.0, 3.0, 2.0, 1.0])
    assert choice.choose(UNIQUE, jobs_of(tmp_path, "hard"), "smoke", tmp_path, force=True) == {"hard": 4e-3}
    assert read_json(path) == record
    for wrong in ([], {"arms": {}}, record | {"arms": {"hard": {"chosen": "fast"}}}):
        write_json(path, wrong)
        with pytest.raises(Damaged, match=r"choice.json"):
            choice.chosen(UNIQUE, tmp_path, "smoke")
        assert any("the choice of learning_rate cannot be read" in n for n in table_of(UNIQUE, tmp_path, "smoke").notes)


def test_what_cannot_be_chosen_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="--seeds 1001: seed 1000 of estimators-unique chooses its learning_rate"):
        choice.check_choice(UNIQUE, 1001, {})
    for name in ("learning_rate", "test"):
        with pytest.raises(ValueError, match=f"--set {name}=1: `reproduce` chooses learning_rate"):
            choice.check_choice(UNIQUE, 5, {name: "1"})
    choice.check_choice(UNIQUE, 1000, {"hidden": "6"})
    with pytest.raises(ValueError, match="unique-plateau chooses no setting"):
        choice.values_tried(load_experiment("unique-plateau"), "smoke")


def test_a_group_stands_for_its_experiments():
    assert names_in(["estimators"]) == ["estimators-word", "estimators-char", "estimators-unique"]
    assert all(name in experiment_names() for name in names_in(["estimators"]))
    with pytest.raises(UnknownName, match="experiment 'estimator' is unknown"):
        load_experiment(*names_in(["estimator"]))


def test_the_command_chooses_resumes_and_uses_what_it_chose(tmp_path):
    flags = ["--preset", "smoke", "--device", "cpu", "--jobs", "1", "--out", tmp_path, *SET]
    command = ["reproduce", "estimators-unique", "--arms", "slope-annealed", "--seeds", "1", "--json", *flags]
    lost = jobs_of(tmp_path, "slope-annealed")["slope-annealed"][2].folder / "result.json"
    done = json.loads(noisyact(*command).stdout)["tables"][0]
    tried = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert len(tried) == 4 + 1
    ((arm, made),) = read_json(tmp_path / "estimators-unique" / "smoke" / "choice.json")["arms"].items()
    of_arm = [read_json(job.folder / "result.json") for job in jobs_of(tmp_path, arm)[arm]]
    assert [record["result"][METRIC] for record in of_arm] == made["scores"]
    assert not any("test_error" in record["result"] for record in of_arm)
    record = read_json(tmp_path / "estimators-unique" / "smoke" / arm / "seed-0" / "result.json")
    assert record["settings"]["learning_rate"] == made["chosen"]
    assert {"test_error", "rounded_test_error", "rounding_gap"} <= record["result"].keys()
    assert any(note.startswith("learning_rate chosen from 0.0005, 0.001, 0.002, 0.004 by") for note in done["notes"])
    assert not any("learning_rate=" in note for note in done["notes"])  # the runs are as they should be
    lost.unlink()
    assert json.loads(noisyact(*command).stdout)["tables"][0]["rows"] == done["rows"]
    again = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert [path for path in tried if again[path] != tried[path]] == [lost]


def test_a_run_with_another_value_than_the_chosen_one_is_noted(tmp_path):
    chosen(tmp_path, [4.0, 3.0, 2.0, 1.0])
    for seed, rate in enumerate((4e-3, 2e-3)):
        folder = tmp_path / "estimators-unique" / "smoke" / "hard" / f"seed-{seed}"
        settings = dataclasses.asdict(UNIQUE.effective("hard", "smoke", {"learning_rate": rate}))
        write_json(folder / "config.json", {"settings": settings})
        write_json(folder / "result.json", {"status": "finished", "result": {"test_error": 1.0}})
    notes = table_of(UNIQUE, tmp_path, "smoke").notes
    assert "learning_rate is the smallest or largest that was tried of hard" in notes
    assert [note for note in notes if "not the preset's" in note] == [
        "hard seed-1: not the preset's learning_rate=0.002"
    ]
