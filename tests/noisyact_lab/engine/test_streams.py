"""Several runs in one process: each has the result of a single run, whatever the others draw or however they end."""

import warnings

import pytest
import torch
from run_cases import kept

from noisyact_lab.analysis.results_table import table_of
from noisyact_lab.analysis.throughput import throughput_of
from noisyact_lab.engine.folder.files import locked, read_lines, write_json, write_lines
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.parallel import streams
from noisyact_lab.engine.run import run
from noisyact_lab.experiments.unique import UNIQUE

TINY = {"updates": 60, "evaluate_every": 20, "test_sequences": 40, "hidden": 4, "batch": 4, "length": 6}


def job(out, arm, seed, **more):
    return Job("unique", arm, "smoke", seed, out, "cpu", {**TINY, **more})


def test_runs_side_by_side_end_as_alone(tmp_path):
    jobs = [job(tmp_path, arm, seed) for arm in ("nan", "nah-annealed", "hard") for seed in (0, 1)]
    jobs.insert(1, job(tmp_path, "nan", 5, hidden=-1))
    jobs.insert(2, job(tmp_path, "nan", 6, learning_rate=1e30))
    seen = []
    before = torch.get_rng_state()
    outcomes = streams.run_all(jobs, 3, lambda job, event: seen.append((job, event.kind)))
    assert torch.equal(torch.get_rng_state(), before)
    assert [outcome.job for outcome in outcomes] == jobs
    assert outcomes[1].error == "ValueError: hidden_size must be greater than zero"
    assert outcomes[2].record["status"] == "diverged"
    assert [kind for job, kind in seen if job == jobs[1]] == ["failed"]
    order = [job for job, kind in seen if kind == "progress"]
    assert order.index(jobs[4]) < len(order) - 1 - order[::-1].index(jobs[3])  # they were at work at the same time
    for index in (0, 3, 4, 5, 6, 7):
        alone = Job("unique", jobs[index].arm, "smoke", jobs[index].seed, tmp_path / "alone", "cpu", TINY)
        run(alone)
        assert kept(alone.folder) == kept(jobs[index].folder)
        assert [kind for job, kind in seen if job == jobs[index]] == ["progress"] * 4 + ["ended"]


def test_interrupted_they_leave_their_folders_free(tmp_path):
    jobs = [job(tmp_path, "nan", seed) for seed in range(3)]
    whole = [Job("unique", "nan", "smoke", seed, tmp_path / "whole", "cpu", TINY) for seed in range(3)]

    def stop(job, event):
        if job.seed == 1 and event.done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        streams.run_all(jobs, 3, stop)
    for other in jobs:
        with locked(other.folder):
            pass
    assert all(outcome.record is not None for outcome in streams.run_all(jobs, 3))
    streams.run_all(whole, 1)
    assert [kept(a.folder) for a in jobs] == [kept(a.folder) for a in whole]


def test_warnings_are_told_of_the_run_that_gave_them(tmp_path):
    jobs = [job(tmp_path, "nan", seed) for seed in range(2)]
    streams.run_all(jobs[1:], 1)
    folder = jobs[1].folder
    (folder / "result.json").unlink()
    (folder / "checkpoints" / "000000060" / "tensors.safetensors").write_bytes(b"")
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        streams.run_all(jobs, 2, lambda job, event: seen.append((job.seed, event.text)) if event.text else None)
    assert len(seen) == 1
    assert seen[0][0] == 1
    assert "000000060 cannot be used" in seen[0][1]


def test_wrong_arguments(tmp_path):
    with pytest.raises(ValueError, match="at_once=0: must be at least 1"):
        streams.run_all([], 0)
    with pytest.raises(ValueError, match="two jobs have the same folder"):
        streams.run_all([job(tmp_path, "nan", 0)] * 2, 2)


def put(out, seed, spans, status="finished", device="cpu", **more):
    """A run that was at work from and to these times."""
    folder = folder_of(out, "unique", "smoke", "nan", seed)
    write_json(folder / "result.json", {"status": status, "result": {}, "signature": {"device": device}, **more})
    timing, seconds = [], 0.0
    for update, (start, end) in enumerate(spans):
        seconds += end - start
        timing.append({"update": update, "seconds": seconds, "at": end})
    write_lines(folder / "timing.jsonl", timing)
    return folder


def test_runs_an_hour_by_hand(tmp_path):
    folders = [
        # From 0 to 100 there is always a run, twice as many from 50 to 90; then nothing until 1000 to 1020.
        put(tmp_path, 0, [(0, 50), (50, 90)]),
        put(tmp_path, 1, [(50, 100), (1000, 1020)]),
        put(tmp_path, 2, [(0, 500)], status="diverged"),
        put(tmp_path, 3, [(0, 36)], device="H200", devices=2),
        tmp_path / "nothing",
    ]
    write_lines(put(tmp_path, 4, []) / "timing.jsonl", [{"update": 1, "seconds": 5.0}])  # of before there were times
    folders.append(folder_of(tmp_path, "unique", "smoke", "nan", 4))
    one, two = throughput_of(folders)
    assert (one.device, one.runs, one.seconds, one.seconds_of_runs) == ("cpu", 2, 120.0, 160.0)
    assert one.runs_an_hour == 60.0
    assert str(two) == "100 runs an hour on 2 x H200 (1 runs, 1 at once)"


def test_the_table_says_how_many_runs_an_hour(tmp_path):
    streams.run_all([job(tmp_path, "nan", seed) for seed in range(3)], 3)
    table = table_of(UNIQUE, tmp_path, "smoke")
    (speed,) = table.throughput
    assert speed.runs == 3
    assert 1.1 < speed.at_once <= 3.01
    assert f"Speed: {speed}" in str(table)
    assert table.as_json()["throughput"][0]["runs_an_hour"] == speed.runs_an_hour
    spans = [read_lines(folder_of(tmp_path, "unique", "smoke", "nan", seed) / "timing.jsonl") for seed in range(3)]
    assert speed.seconds <= max(lines[-1]["at"] for lines in spans) - min(
        lines[0]["at"] - lines[0]["seconds"] for lines in spans
    ) + 0.01  # fmt: skip
