"""What the GPU kernels share, in Triton: the noise of a counter, phi with its derivatives, programs that wait.

Triton is imported by the modules below and by nothing else, so that a program which never meets a GPU never loads it.
"""

from __future__ import annotations

import functools
import importlib.util
import os

import torch

__all__ = ["obstacle"]


@torch.compiler.assume_constant_result
@functools.cache
def obstacle(device: torch.device) -> str | None:
    """Why the Triton kernels cannot run on a device; None if they can."""
    if device.type != "cuda" or torch.version.cuda is None:
        return f"the input is on {device}, the kernels run on a CUDA device"
    if os.environ.get("NOISYACT_TRITON") == "0":
        return "the environment variable NOISYACT_TRITON is 0"
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return f"compute capability {torch.cuda.get_device_capability(device)} is below (8, 0)"
    return None
