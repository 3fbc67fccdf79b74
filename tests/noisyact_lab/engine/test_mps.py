"""NVIDIA's Multi-Process Service is found by its socket, and decides how a grid shares a GPU."""

import os
import socket

import pytest

from noisyact_lab.engine.job import Job
from noisyact_lab.engine.many_runs import run_all
from noisyact_lab.engine.parallel import mps, processes, streams


@pytest.fixture
def pipes(tmp_path, monkeypatch):
    """Where it has its socket; relative, since the names of sockets are short."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    return tmp_path


def serve() -> None:
    with socket.socket(socket.AF_UNIX) as control:
        control.bind("control")


def test_it_serves_where_its_control_process_has_a_socket(pipes):
    """It says so when it starts: "Starting control daemon using socket /tmp/nvidia-mps/control"."""
    assert not mps.serves()
    (pipes / "control").write_text("a file, not a socket")
    assert not mps.serves()
    (pipes / "control").unlink()
    serve()
    assert mps.serves()


@pytest.mark.parametrize("served", [False, True])
def test_runs_on_a_gpu_are_processes_where_it_serves_and_streams_elsewhere(pipes, monkeypatch, served):
    if served:
        serve()
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    asked = []
    monkeypatch.setattr("noisyact_lab.engine.run.torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(processes, "run_all", lambda jobs, at_once, watch: asked.append(("processes", at_once)) or [])
    monkeypatch.setattr(streams, "run_all", lambda jobs, at_once, watch: asked.append(("streams", at_once)) or [])
    run_all([Job("unique", "nan", "smoke", 0, pipes, "cuda")], 5)
    assert asked == [("processes" if served else "streams", 5)]
    assert os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == ("2" if served else None)
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
