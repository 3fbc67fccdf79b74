"""The common parts of the GPU kernels in Triton: noise from a counter, phi with its derivatives, barriers, launches.

Only the submodules and the kernels import Triton, so that a process that does not use a GPU never loads it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

from noisyact.compiling import constant
from noisyact.schemes import Scheme

__all__ = ["check", "code_of", "obstacle", "on"]

_CODES = {
    ("nah", "centred"): 5, ("nah", "mean"): 6, ("nan", "mean"): 7, ("nani", "mean"): 8, ("nanil", "mean"): 9,
    ("nanis", "mean"): 10,
}  # fmt: skip


@constant
def obstacle(device: torch.device) -> str | None:
    """The reason why the Triton kernels cannot run on a device; None if they can."""
    if device.type != "cuda" or torch.version.cuda is None:
        return f"the input is on {device}, and the kernels run on a CUDA device"
    return _obstacle(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _obstacle(index: int) -> str | None:
    if os.environ.get("NOISYACT_TRITON") == "0":
        return "the environment variable NOISYACT_TRITON is 0"
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    capability = torch.cuda.get_device_capability(index)
    return None if capability >= (8, 0) else f"compute capability {capability} is below (8, 0)"


def code_of(scheme: Scheme) -> int:
    """The integer that identifies a scheme in phi.py, where a scheme with another ``draw`` has another code.

    >>> from noisyact.schemes import NAH, NAN
    >>> code_of(NAH()), code_of(NAH(draw="mean")), code_of(NAN(draw="centred"))
    (1, 6, 0)
    """
    return _CODES.get((scheme.name, getattr(scheme, "draw", "sample")), scheme.code)


def on(device: torch.device) -> Any:
    """A context manager that makes the device current. It does nothing if the device already is."""
    # torch.cuda.current_device also checks whether CUDA is initialised; here it is, because a tensor is on the device.
    here = device.type != "cuda" or torch._C._cuda_getDevice() == device.index
    return contextlib.nullcontext() if here else torch.cuda.device(device)


def check(like: Tensor, **wanted: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Raise a ValueError that names a tensor unless all have their shapes and are float32 on the device of `like`."""
    for name, (tensor, shape) in wanted.items():
        if tensor is None or (tensor.shape == shape and tensor.dtype is torch.float32 and tensor.device == like.device):
            continue
        raise ValueError(
            f"{name} must be of shape {shape} and torch.float32 on {like.device}, not of shape {tuple(tensor.shape)} "
            f"and {tensor.dtype} on {tensor.device}"
        )
