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
from noisyact.estimators import Estimator, Gate, SaturatingSigmoid
from noisyact.schemes import Scheme

__all__ = ["check", "constants_of", "obstacle", "on"]

_CODES = {
    ("nah", "centred"): 5, ("nah", "mean"): 6, ("nan", "mean"): 7, ("nani", "mean"): 8, ("nanil", "mean"): 9,
    ("nanis", "mean"): 10,
}  # fmt: skip
_NO_NOISE = -1  # NONE of phi.py; importing it would import Triton


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


def constants_of(scheme: Scheme | None, drawn: bool) -> tuple[int, float, bool]:
    """SCHEME, LEAK and CLIP of phi.py.

    A scheme with another ``draw`` has another code. Without drawn noise all gates have the sigmoid of z, which is what
    the code of normal noise computes for an epsilon of 0.

    >>> from noisyact.schemes import NAH, NAN
    >>> constants_of(NAH(alpha=1.0), True), constants_of(NAH(alpha=1.0, draw="mean"), True), constants_of(None, True)
    ((1, 0.0, False), (6, 0.0, False), (-1, 0.0, False))
    """
    if scheme is None:
        return _NO_NOISE, 0.0, False
    if isinstance(scheme, Gate):
        return scheme.code if drawn else SaturatingSigmoid.code, scheme.stretched, scheme.rounds
    if isinstance(scheme, Estimator):
        return scheme.code, 0.0, scheme.rounds
    code = _CODES.get((scheme.name, getattr(scheme, "draw", "sample")), scheme.code)
    return code, scheme.leak, scheme.clips


def on(device: torch.device) -> Any:
    """A context manager that makes the device current. It does nothing if the device already is."""
    # torch.cuda.current_device also checks whether CUDA is initialised; here it is, because a tensor is on the device.
    here = device.type != "cuda" or torch._C._cuda_getDevice() == device.index
    return _HERE if here else torch.cuda.device(device)


_HERE = contextlib.nullcontext()


def check(like: Tensor, **wanted: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Raise a ValueError that names a tensor unless all have their shapes and are float32 on the device of `like`."""
    for name, (tensor, shape) in wanted.items():
        if tensor is None or (tensor.shape == shape and tensor.dtype is torch.float32 and tensor.device == like.device):
            continue
        raise ValueError(
            f"{name} must be of shape {shape} and torch.float32 on {like.device}, not of shape {tuple(tensor.shape)} "
            f"and {tensor.dtype} on {tensor.device}"
        )
