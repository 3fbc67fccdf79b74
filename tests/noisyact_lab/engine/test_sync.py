"""A run's folder kept in two places: at every moment, the copy is a run that can be resumed."""

import os
import shutil
from pathlib import Path

import pytest

from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.ray.sync import Changes, Original, apply, contents
from noisyact_lab.engine.run import run

TINY = {"updates": 8, "evaluate_every": 2, "test_sequences": 40, "hidden": 4, "batch": 4, "length": 6}


def place(out) -> Path:
    return folder_of(out, "unique", "smoke", "nan", 0)


def train(out, progress=None):
    run(Job("unique", "nan", "smoke", 0, out, device="cpu", changes=TINY), progress=progress)


def files(folder: Path, *, without=()) -> dict[str, bytes]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in without]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def sent(tmp_path_factory) -> tuple[list[Changes], Path]:
    """All that is sent of a run, and the run."""
    out = tmp_path_factory.mktemp("original")
    place(out).mkdir(parents=True)
    original, changes = Original(place(out)), []
    train(out, lambda *_: changes.append(original.changes()))
    return [*changes, original.changes()], place(out)


def test_the_copy_is_the_original_after_all_was_sent(sent, tmp_path):
    changes, original = sent
    for change in changes:
        apply(tmp_path, change)
    assert files(tmp_path) == files(original)
    assert len(changes) == 6
    assert list(changes[-1].files) == ["result.json"]
    # Checkpoints come one at a time, and the oldest of three goes.
    assert [any(path.startswith("checkpoints") for path in change.files) for change in changes[1:5]] == [True] * 4
    assert {path.split("/")[1] for path in changes[3].gone} == {"000000002"}
    assert not Original(tmp_path).changes().files


def test_loggers_and_leftovers_stay_where_they_are(tmp_path):
    original = Original(tmp_path)
    for name in ("logs/loggers.json", ".metrics.jsonl.x", "checkpoints/.000000002.7/state.json", "config.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert original.changes() == Changes({"config.json": b"{}"})
    assert list(contents(tmp_path)) == ["config.json"]


def test_of_a_finished_run_checkpoints_are_not_sent(sent):
    assert set(contents(sent[1])) == {"config.json", "metrics.jsonl", "timing.jsonl", "noise.jsonl", "result.json"}


class Killed(BaseException):
    """At a file operation."""


def test_killed_while_it_is_written_the_copy_goes_on(sent, tmp_path, monkeypatch):
    """Killed at every third file operation: partial changes are dropped, and the run resumes from the copy."""
    changes, original = sent
    expected = files(original, without=("timing.jsonl", "result.json"))
    kills = 0
    for last in range(1, 200, 3):
        copy = place(tmp_path / str(last))
        copy.mkdir(parents=True)
        with monkeypatch.context() as patch:
            count = iter(range(1, 10**6))
            for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "chmod"):
                patch.setattr(os, name, _dying(getattr(os, name), count, last))
            try:
                for change in changes:
                    apply(copy, change)
            except Killed:
                kills += 1
            else:
                break
        train(tmp_path / str(last))
        assert files(copy, without=("timing.jsonl", "result.json")) == expected, last
        shutil.rmtree(copy)
    assert kills > 15


def _dying(operation, count, last):
    def counted(*args, **kwargs):
        if next(count) >= last:  # and nothing after it, in no clean-up either
            raise Killed
        return operation(*args, **kwargs)

    return counted
