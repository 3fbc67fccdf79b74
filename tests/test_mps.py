"""NVIDIA's Multi-Process Service is found by its pipe, and decides how a grid shares a GPU."""

import os

import pytest

from noisyact.experiments import grid, lanes, mps
from noisyact.experiments.grid import Job
from noisyact_cli import grid as cli_grid


@pytest.fixture
def pipes(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    return tmp_path


def test_it_serves_where_its_control_process_has_a_pipe(pipes):
    assert not mps.serves()
    (pipes / "control").write_text("a file, not a pipe")
    assert not mps.serves()
    (pipes / "control").unlink()
    os.mkfifo(pipes / "control")
    assert mps.serves()


@pytest.mark.parametrize("served", [False, True])
def test_runs_on_a_gpu_are_processes_where_it_serves_and_lanes_elsewhere(pipes, monkeypatch, served):
    if served:
        os.mkfifo(pipes / "control")
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    asked = []
    monkeypatch.setattr("noisyact.experiments.run.torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(grid, "run_all", lambda jobs, at_once, watch: asked.append(("processes", at_once)) or [])
    monkeypatch.setattr(lanes, "run_all", lambda jobs, at_once, watch: asked.append(("lanes", at_once)) or [])
    cli_grid.do([Job("unique", "nan", "smoke", 0, pipes, "cuda")], 5, "local", None)
    assert asked == [("processes" if served else "lanes", 5)]
    assert os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == ("2" if served else None)
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
