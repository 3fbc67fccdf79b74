"""A job: one description of a run, and the names that runs of earlier versions have on the disk."""

import dataclasses
import pickle

import pytest

from noisyact_lab.engine import experiment, job
from noisyact_lab.engine.folder.files import read_json, read_lines
from noisyact_lab.engine.job import Job
from noisyact_lab.engine.run import run

TINY = {"updates": 12, "evaluate_every": 2, "test_sequences": 40, "hidden": 4, "batch": 4, "length": 6}


def test_a_job_is_the_same_in_another_process(tmp_path):
    one = Job("unique", "nan", "smoke", 3, tmp_path, "cpu", TINY, True, ("tensorboard",))
    assert one.settings.hidden == 4
    two = pickle.loads(pickle.dumps(one))
    assert two == one
    assert "settings" not in vars(two)  # it is computed there
    assert two.config() == one.config()
    assert dataclasses.replace(one, changes={}).settings.hidden != 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.seed = 4


def test_everything_is_resolved_once(tmp_path, monkeypatch):
    asked = []

    def counted(module, name, original):
        monkeypatch.setattr(module, name, lambda *args: asked.append(name) or original(*args))

    counted(job, "load_experiment", job.load_experiment)
    counted(job, "resolve", job.resolve)
    counted(experiment.Experiment, "effective", experiment.Experiment.effective)
    todo = Job("unique", "nan", "smoke", 0, tmp_path, "cpu", TINY)
    todo.check()
    run(todo)
    assert sorted(asked) == ["effective", "load_experiment", "resolve"]


def test_the_names_on_the_disk(tmp_path):
    """Runs of earlier versions have these names: with others they could not be resumed, or their results not read."""
    todo = Job("unique", "nan-annealed", "smoke", 0, tmp_path, "cpu", TINY)
    run(todo)
    config = read_json(todo.folder / "config.json")
    assert list(config) == ["experiment", "arm", "preset", "seed", "device", "settings"]
    assert list(todo.config(devices=2)) == ["experiment", "arm", "preset", "seed", "device", "devices", "settings"]
    record = read_json(todo.folder / "result.json")
    assert list(record) == [*config, "status", "updates", "result", "signature"]
    assert {"noisyact", "source_sha256", "commit", "device", "threads"} <= record["signature"].keys()
    state = read_json(todo.folder / "checkpoints" / "000000012" / "state.json")
    assert list(state) == ["update", "memory", "task", "records", "sha256"]
    assert [name for name, _ in state["task"]["pairs"]][:4] == ["modules", "optimizers", "generators", "torch"]
    assert list(state["records"]) == ["bytes", "sha256"]
    assert list(read_lines(todo.folder / "timing.jsonl")[0]) == ["update", "seconds", "at"]
    found = {path.relative_to(todo.folder).as_posix() for path in todo.folder.rglob("*") if path.is_file()}
    records = {"config.json", "metrics.jsonl", "timing.jsonl", "noise.jsonl", "result.json"}
    files = ("state.json", "tensors.safetensors")
    assert found == records | {f"checkpoints/{update:09d}/{file}" for update in (10, 12) for file in files}
