"""One run over several devices: two processes on a CPU, in place of two GPUs."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from noisyact_lab.engine.distributed import check_spreading, join, launch
from noisyact_lab.engine.folder.files import read_json, read_lines
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.run import run
from noisyact_lab.engine.task import SINGLE_PROCESS, ProcessGroup
from noisyact_lab.experiments.mixture.mixture import MIXTURE
from noisyact_lab.experiments.unique import UNIQUE, Settings, Unique

pytest.importorskip("lightning")
pytestmark = pytest.mark.long


class ThreeProcesses(ProcessGroup):
    """The part of a group of three processes that a task uses before any communication."""

    rank, size = 1, 3


def test_two_processes(tmp_path):
    """Gradients, noise, record, resuming and errors; see distributed_runs.py."""
    script = Path(__file__).parents[2] / "support" / "lab" / "distributed_runs.py"
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def started(out: Path, updates: int, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """The command line, at work on a small run; one thread a process, whatever the number of processes here."""
    changes = {"updates": updates, "evaluate_every": 20, "test_sequences": 40, "hidden": 4, "batch": 4, "length": 6}
    flags = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    command = [
        sys.executable, "-m", "noisyact_lab", "run", "unique", "--arm", "nan", "--preset", "smoke", "--device", "cpu",
        "--out", str(out), *arguments, *flags,
    ]  # fmt: skip
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


def test_a_process_that_fails_ends_all_and_two_machines_do_what_two_devices_do(tmp_path):
    """One test, because the record of the devices up to the failure is compared with that of the machines."""
    devices = folder_of(tmp_path / "devices", "unique", "smoke", "nan", 0)
    _fails_after_two_evaluations(tmp_path / "devices", devices / "metrics.jsonl")
    machines = folder_of(tmp_path / "machine-0", "unique", "smoke", "nan", 0)
    _two_machines(tmp_path)
    assert [line["update"] for line in read_lines(machines / "metrics.jsonl")] == [20, 40]
    assert (devices / "metrics.jsonl").read_bytes().startswith((machines / "metrics.jsonl").read_bytes())
    config, on_devices = (read_json(folder / "config.json") for folder in (machines, devices))
    on_devices["settings"]["updates"] = 40
    assert config == on_devices
    assert read_json(machines / "result.json")["status"] == "finished"
    assert not (tmp_path / "machine-1").exists()


def _fails_after_two_evaluations(out: Path, metrics: Path) -> None:
    parent = started(out, 100_000, "--devices", "2")
    end = time.monotonic() + 60
    while len(read_lines(metrics)) < 2:
        assert time.monotonic() < end
        assert parent.poll() is None, parent.communicate()
        time.sleep(0.02)
    os.kill(_rank_one_of(parent.pid), signal.SIGKILL)
    said = parent.communicate(timeout=60)[1]  # ends when the last process that has the pipe does
    assert parent.returncode == 1
    assert "process 1 of 2 (counted from 0) failed with exit code -9; all were ended" in said


def _two_machines(out: Path) -> None:
    """Both machines are this one and get the same command. The process with rank 0 writes the record."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    commands = [
        started(out / f"machine-{rank}", 40, "--num-nodes", "2", NODE_RANK=str(rank), **where) for rank in (0, 1)
    ]
    try:
        for command in commands:
            said = command.communicate(timeout=60)
            assert command.returncode == 0, said
    finally:
        for command in commands:
            command.terminate()


def _rank_one_of(parent: int) -> int:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = (process / "stat").read_text().rsplit(")", 1)[1].split()[1] == str(parent)
            if ours and b"\0RANK=1\0" in (process / "environ").read_bytes():
                return int(process.name)
        except OSError:
            continue
    raise AssertionError("there is no rank 1")


def test_a_single_process_changes_nothing():
    x, loss = torch.arange(6.0).reshape(2, 3), torch.ones((), requires_grad=True)
    assert join(torch.device("cpu")) is SINGLE_PROCESS
    assert SINGLE_PROCESS.is_first
    assert SINGLE_PROCESS.share(x, dim=1) is SINGLE_PROCESS.all_gather(x, dim=1) is x
    assert SINGLE_PROCESS.mean(loss) is loss
    assert SINGLE_PROCESS.on_first(lambda: 3) == 3
    before = torch.get_rng_state()
    SINGLE_PROCESS.reseed(0, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_cannot_be_spread_is_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="mixture runs on one device only"):
        check_spreading(MIXTURE)
    check_spreading(UNIQUE)
    with pytest.raises(ValueError, match="mixture runs on one device only"):
        run(Job("mixture", "tanh", "smoke", 0, tmp_path, device="cpu"), group=ThreeProcesses())
    with pytest.raises(ValueError, match="batch=16: must be a multiple of the 3 devices"):
        Unique(Settings(batch=16, test_sequences=10), 0, torch.device("cpu")).spread(ThreeProcesses())
    for name in ("NODE_RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(ValueError, match=r"--num-nodes 2 needs the environment variables NODE_RANK, MASTER_ADDR$"):
        launch(1, 2, [])
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="--devices 4: torchrun started 4 processes, 2 of them on this machine"):
        join(torch.device("cpu"), devices=4)
