"""Runs on a Ray cluster: byte-identical to local runs, even if machines of the cluster are lost."""

import json
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from run_cases import kept

from noisyact_lab.engine.experiment import UnknownName
from noisyact_lab.engine.folder.files import read_json, read_lines
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.ray import runs
from noisyact_lab.engine.ray.sync import apply, contents
from noisyact_lab.engine.ray.worker import Worker
from noisyact_lab.engine.run import run

pytestmark = pytest.mark.usefixtures("one_thread")  # as in the workers
LONG = {"updates": "800", "evaluate_every": "5", "test_sequences": "40", "hidden": "4", "batch": "4", "length": "6"}
TINY = {**LONG, "updates": "12", "evaluate_every": "2"}


def done_here(out: Path, arm: str, seed: int, changes=LONG) -> Path:
    """The folder of the same run, done in this process."""
    run(Job("unique", arm, "smoke", seed, out, device="cpu", changes=changes))
    return folder_of(out, "unique", "smoke", arm, seed)


@pytest.fixture
def cluster(monkeypatch):
    """Two nodes with a core each; see ray_nodes.py. It has a token of its own, and leaves none in the user's home."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    script = Path(__file__).parents[2] / "support" / "lab" / "ray_nodes.py"
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.stdin.close()
        process.wait(60)


@pytest.mark.long
def test_a_lost_node_loses_nothing_and_ctrl_c_leaves_runs_that_go_on(tmp_path, cluster):
    """One cluster for both, since it takes some seconds to start."""
    address = cluster.stdout.readline().strip()
    out = tmp_path / "cluster"
    # A run that will fail: its folder has one with other settings.
    done_here(out, "nan", 3, {**TINY, "mlp": "3"})
    flags = ["--preset", "smoke", "--device", "cpu", "--engine", "ray", "--address", address, "--out", str(out)]
    flags += [word for name, value in LONG.items() for word in ("--set", f"{name}={value}")]

    def begin(arm, seeds, *more):
        command = ["reproduce", "unique", "--arms", arm, "--seeds", str(seeds), *flags, *more]
        return subprocess.Popen(
            [sys.executable, "-m", "noisyact_lab", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def folders(arm, seeds):
        return [folder_of(out, "unique", "smoke", arm, seed) for seed in range(seeds)]

    driver = begin("nan", 4, "--log", "tensorboard", "--json")
    _until(driver, lambda: all(len(read_lines(folder / "metrics.jsonl")) > 3 for folder in folders("nan", 2)))
    cluster.stdin.write("kill\n")
    cluster.stdin.flush()
    said, warned = driver.communicate(timeout=600)
    assert driver.returncode == 1, warned
    (failed,) = json.loads(said)["failed"]
    assert f"{folders('nan', 4)[3]} has a run with other settings" in failed["error"]
    assert warned.count("its worker was lost") == 1
    (lost_at,) = [int(line.split("it resumes from update ")[1]) for line in warned.splitlines() if "was lost" in line]
    assert lost_at > 0
    for seed, folder in enumerate(folders("nan", 3)):
        here = done_here(tmp_path / "here", "nan", seed)
        assert kept(folder) == kept(here)
        results = [{**read_json(f / "result.json"), "signature": None} for f in (folder, here)]
        assert results[0] == results[1]
        assert [line["update"] for line in read_lines(folder / "timing.jsonl")] == list(range(5, 801, 5))
        assert read_json(folder / "logs" / "loggers.json")["finished"] == ["tensorboard"]

    driver = begin("hard", 2)
    _until(driver, lambda: len(read_lines(folders("hard", 1)[0] / "metrics.jsonl")) > 3)
    driver.send_signal(signal.SIGINT)
    _, warned = driver.communicate(timeout=600)
    assert driver.returncode == 130, warned
    assert "To resume: noisyact reproduce unique --arms hard" in warned
    assert "Traceback" not in warned
    folder = folders("hard", 1)[0]
    done = len(read_lines(folder / "metrics.jsonl"))
    assert 3 < done < 160
    updates = []
    run(Job("unique", "hard", "smoke", 0, out, device="cpu", changes=LONG), progress=lambda at, *_: updates.append(at))
    assert updates[0] in (5 * done, 5 * (done - 1))  # the line may have been written, and its checkpoint not yet
    assert kept(folder) == kept(done_here(tmp_path / "here", "hard", 0))


def _until(process, happened, seconds=600.0):
    end = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_worker_goes_on_where_another_was_lost(tmp_path):
    """Without a cluster: a worker is lost after each of its messages, and another one finishes the run."""
    expected = kept(done_here(tmp_path / "here", "nan", 0, TINY))
    for heard in range(1, 8):
        job = Job("unique", "nan", "smoke", 0, tmp_path / str(heard), "cpu", TINY)
        job.folder.mkdir(parents=True)
        assert len(_hear(job, heard)) == heard
        events = _hear(job, 100)
        assert events[-1].kind == "ended"
        assert events[0].done == 2 * (heard - 1)
        assert kept(job.folder) == expected
        assert read_json(job.folder / "result.json") == events[-1].record
        # A finished run is sent without its checkpoints, and not done again.
        assert [event.kind for event in _hear(job, 100)] == ["ended"]
        assert kept(job.folder) == expected


def _hear(job, count):
    """Have a new worker do the job, and take in the first `count` messages."""
    worker, events = Worker(None), []
    doing = threading.Thread(target=worker.do, args=(job, contents(job.folder)))
    doing.start()
    while len(events) < count and not (events and events[-1].kind in ("ended", "failed")):
        for event, changes in worker.hear()[: count - len(events)]:
            apply(job.folder, changes)
            events.append(event)
    doing.join()
    return events


def test_a_worker_names_the_folder_of_the_run_not_its_own(tmp_path):
    done_here(tmp_path, "nan", 0, TINY)
    job = Job("unique", "nan", "smoke", 0, tmp_path, "cpu", {**TINY, "mlp": "3"})
    (event,) = _hear(job, 100)
    assert event.kind == "failed"
    assert event.text.startswith(f"ValueError: {job.folder} has a run with other settings (mlp is 64 there and 3 here)")


def test_the_device_is_that_of_the_cluster(tmp_path):
    def jobs(*devices):
        return [Job("unique", "nan", "smoke", seed, tmp_path, device) for seed, device in enumerate(devices)]

    assert runs._device(jobs("auto", "auto"), {"CPU": 4.0}) == "cpu"
    assert runs._device(jobs("auto", "cuda"), {"CPU": 4.0, "GPU": 2.0}) == "cuda"
    assert runs._device(jobs("cuda"), {"CPU": 4.0}) == "cuda"
    with pytest.raises(ValueError, match="one kind of device"):
        runs._device(jobs("auto", "cpu"), {"GPU": 1.0})
    with pytest.raises(UnknownName, match="device 'tpu' is unknown; allowed are auto, cpu, cuda"):
        runs.run_all(jobs("tpu"))
    with pytest.raises(ValueError, match="two jobs have the same folder"):
        runs.run_all(2 * jobs("cpu"))
    with pytest.raises(ValueError, match="at_once=0: must be at least 1"):
        runs.run_all(jobs("cpu"), 0)
