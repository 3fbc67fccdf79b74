"""Runs that are killed and resumed, alone and many at once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from commands import SMOKE, noisyact
from run_cases import kept

from noisyact_lab.engine.folder import checkpoint
from noisyact_lab.engine.folder.files import locked, read_lines
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.parallel.processes import run_all
from noisyact_lab.engine.run import run
from noisyact_lab.experiments.unique import Settings, Unique

TINY = {"updates": 12, "evaluate_every": 2, "test_sequences": 40, "hidden": 4, "batch": 4, "length": 6}


def do(out, changes=None, progress=None, force=False):
    return run(Job("unique", "nan", "smoke", 0, out, "cpu", {**TINY, **(changes or {})}, force), progress)


def place(out) -> Path:
    return folder_of(out, "unique", "smoke", "nan", 0)


@pytest.mark.long
def test_killed_at_any_moment_ends_the_same(tmp_path):
    """Also at every kind of file operation of a save; see killed_runs.py."""
    script = Path(__file__).parents[2] / "support" / "lab" / "killed_runs.py"
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 20


@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_corrupt_checkpoint_is_named_and_the_one_before_used(tmp_path, file, damage):
    do(tmp_path / "whole")
    do(tmp_path / "hurt")
    folder = place(tmp_path / "hurt")
    (folder / "result.json").unlink()
    path = folder / "checkpoints" / "000000012" / file
    content = path.read_bytes()
    if damage == "flip":
        at = content.index(b'"update": 12') + 11 if file == "state.json" else len(content) // 2
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    elif damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.unlink()
    updates = []
    with pytest.warns(UserWarning, match=r"checkpoints/000000012 cannot be used"):
        do(tmp_path / "hurt", progress=lambda done, *_: updates.append(done))
    assert updates == [10, 12]
    assert kept(folder) == kept(place(tmp_path / "whole"))


def test_no_good_checkpoint_starts_anew(tmp_path):
    do(tmp_path / "whole")
    do(tmp_path / "hurt")
    folder = place(tmp_path / "hurt")
    (folder / "result.json").unlink()
    for path in folder.glob("checkpoints/*/state.json"):
        path.write_text("[]")
    with pytest.warns(UserWarning, match="cannot be used"):
        do(tmp_path / "hurt")
    assert kept(folder) == kept(place(tmp_path / "whole"))


def test_half_a_line_of_metrics_does_not_count(tmp_path):
    do(tmp_path / "whole")
    do(tmp_path / "cut")
    folder = place(tmp_path / "cut")
    (folder / "result.json").unlink()
    for name in ("metrics.jsonl", "timing.jsonl"):
        with (folder / name).open("a") as file:
            file.write('{"update": 14, "lo')
    do(tmp_path / "cut")
    assert kept(folder) == kept(place(tmp_path / "whole"))
    assert [line["update"] for line in read_lines(folder / "timing.jsonl")] == [2, 4, 6, 8, 10, 12]


def test_finished_is_not_done_again_unless_forced(tmp_path):
    first = do(tmp_path)
    stamp = (place(tmp_path) / "metrics.jsonl").stat().st_mtime_ns
    calls = []
    assert do(tmp_path, progress=lambda *now: calls.append(now)) == first
    assert not calls
    assert (place(tmp_path) / "metrics.jsonl").stat().st_mtime_ns == stamp
    assert do(tmp_path, progress=lambda *now: calls.append(now), force=True)["result"] == first["result"]
    assert calls[0][0] == 0
    with pytest.raises(ValueError, match=r"other settings \(hidden is 4 there and 5 here\); use --force"):
        do(tmp_path, {"hidden": 5})
    assert do(tmp_path, {"hidden": 5}, force=True)["settings"]["hidden"] == 5


def test_diverged_is_recorded_and_kept(tmp_path):
    record = do(tmp_path, {"learning_rate": 1e30})
    assert record["status"] == "diverged"
    assert do(tmp_path, {"learning_rate": 1e30}) == record
    assert "diverged" in read_lines(place(tmp_path) / "timing.jsonl")[-1]


def test_one_process_a_run(tmp_path):
    with locked(place(tmp_path)), pytest.raises(ValueError, match="another process is at work here"):
        do(tmp_path)
    do(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("updates", 0, "updates=0: must be at least 1"),
        ("evaluate_every", -1, "evaluate_every=-1: must be at least 1"),
        ("c", "nan", "c='nan': must be a finite number"),
        ("hidden", "2.5", "hidden='2.5': must be a whole number"),
        ("hard", "yes", "hard='yes': must be true or false"),
    ],
)
def test_bad_settings_are_named_and_leave_no_run(tmp_path, name, value, message):
    with pytest.raises(ValueError, match=message):
        do(tmp_path, {name: value})
    assert not (place(tmp_path) / "config.json").exists()


def test_leftovers_of_a_killed_save_go(tmp_path):
    task = Unique(Settings(test_sequences=10, hidden=4), 0, torch.device("cpu"))
    (tmp_path / ".000000001.99.abc").mkdir(parents=True)
    checkpoint.save(tmp_path, 2, task)
    assert [path.name for path in tmp_path.iterdir()] == ["000000002"]


def test_a_crash_is_reported_and_the_others_go_on(tmp_path):
    """One fails by an exception, one takes its process with it, and both are not the last."""
    jobs = [Job("unique", "nan", "smoke", seed, tmp_path, "cpu", TINY) for seed in range(4)]
    jobs[0] = Job("unique", "nan", "smoke", 0, tmp_path, "cpu", {**TINY, "hidden": -1})
    jobs[1] = Job("unique", "nan", "smoke", 1, tmp_path, "cpu", {**TINY, "updates": 10**6, "evaluate_every": 20})
    seen = []

    def watch(job, event):
        seen.append((job.seed, event.kind))
        if job.seed == 1 and event.kind == "progress" and event.done:
            _kill_process_at(job.folder)

    outcomes = run_all(jobs, 1, watch)
    assert [outcome.job for outcome in outcomes] == jobs
    assert outcomes[0].error == "ValueError: hidden_size must be greater than zero"
    assert outcomes[1].error == "its process ended with exit code -9"
    for outcome in outcomes[2:]:
        assert outcome.record is not None
        assert outcome.record["status"] == "finished"
        assert outcome.record["signature"]["threads"] == 1
    assert seen.count((1, "failed")) == 1
    assert (3, "ended") in seen


def _kill_process_at(folder: Path) -> None:
    """The process that has the run's folder open."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(handle.resolve() == folder for handle in (process / "fd").iterdir()):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            continue


@pytest.mark.long
@pytest.mark.usefixtures("one_thread")  # as in the workers
def test_nothing_is_lost_with_the_parent(tmp_path):
    """A grid whose parent is killed leaves no process behind, and goes on when it is run again."""
    changes = {"updates": "300", "evaluate_every": "5", "test_sequences": "40"}
    flags = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    command = ["reproduce", "unique", "--arms", "nan", "--seeds", "2", *SMOKE, "--jobs", "2", "--json", *flags, "--out"]
    out = tmp_path / "killed"
    parent = subprocess.Popen(
        [sys.executable, "-m", "noisyact_lab", *command, out], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    folders = [folder_of(out, "unique", "smoke", "nan", seed) for seed in (0, 1)]
    _until(lambda: all(len(read_lines(folder / "metrics.jsonl")) > 3 for folder in folders))
    parent.kill()
    parent.communicate()  # ends when the last process that has the pipe does
    done = [len(read_lines(folder / "metrics.jsonl")) for folder in folders]
    assert max(done) < 60
    (table,) = json.loads(noisyact(*command, out).stdout)["tables"]
    assert table["rows"][0]["finished"] == 2
    run(Job("unique", "nan", "smoke", 1, tmp_path / "whole", device="cpu", changes=changes))
    assert kept(folders[1]) == kept(folder_of(tmp_path / "whole", "unique", "smoke", "nan", 1))


def _until(happened, seconds=60.0):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)
