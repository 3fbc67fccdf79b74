"""NVIDIA's Multi-Process Service: where it runs, processes use a GPU at the same time and not one after the other.

Runs of a grid are then processes of their own, each with a host thread that launches for it alone. Started by
``nvidia-cuda-mps-control -d``; whether to is the user's choice, since all processes of the GPU share its fate: one that
makes an illegal access ends the others too. Their runs go on when the grid is run again.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["MOST", "prepare", "serves"]

MOST = 16
"""Processes at once by default: that many were tried on an H200, and the service has queues for them."""


def serves() -> bool:
    """Whether the service can be reached: its control process has a socket, `control`, in what it calls its pipes."""
    folder = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    try:
        mode = (folder / "control").stat().st_mode
    except OSError:
        return False
    return stat.S_ISSOCK(mode)


def prepare() -> None:
    """To be called before the processes start: the service has queues for 16 of them only if each takes few."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "2")
