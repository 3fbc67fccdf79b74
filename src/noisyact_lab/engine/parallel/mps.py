"""NVIDIA's Multi-Process Service: with it, several processes use a GPU concurrently instead of in turns.

Each of many runs is then a process with its own host thread. ``nvidia-cuda-mps-control -d`` starts the service. That is
the user's choice, since the processes are no longer isolated: an illegal access in one ends the others too. Their runs
resume when they are run again.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["MOST", "prepare", "serves"]

MOST = 16
"""Processes at once by default: as many were tried on an H200, and the service has queues for them."""


def serves() -> bool:
    """Whether the service runs: its control process then has a socket `control` in its pipe directory."""
    folder = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    try:
        mode = (folder / "control").stat().st_mode
    except OSError:
        return False
    return stat.S_ISSOCK(mode)


def prepare() -> None:
    """Call this before the processes start: the service has queues for 16 of them only if each takes few."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "2")
