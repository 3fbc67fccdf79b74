"""Which path computes a recurrent layer, chosen by what can run, forced by name, and explained."""

from __future__ import annotations

import torch

from noisyact.ops import native

__all__ = ["BACKENDS", "backend_info", "choose"]

BACKENDS = ("auto", "reference", "cpu", "triton")


def check(backend: str) -> str:
    """The name, if it is one."""
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r}: allowed are {', '.join(map(repr, BACKENDS))}")
    return backend


def choose(backend: str, device: torch.device, dtype: torch.dtype, hard: bool, projection: bool) -> str:
    """ "cpu" or "reference" for a layer's or cell's input; a forced backend that cannot run raises."""
    if backend == "reference":
        return "reference"
    obstacle = _obstacle_cpu(device, dtype, hard, projection)
    if backend == "cpu" and obstacle is not None:
        raise RuntimeError(f"backend='cpu' cannot run this: {obstacle}")
    if backend == "triton":
        raise RuntimeError("backend='triton' cannot run this: this version has no GPU kernels for recurrent layers")
    return "reference" if obstacle is not None else "cpu"


def _obstacle_cpu(device: torch.device, dtype: torch.dtype, hard: bool, projection: bool) -> str | None:
    if not _kernels_present():
        return native.status()
    if device.type != "cpu":
        return f"the input is on {device}, the kernel runs on a CPU"
    if dtype == torch.float64:
        return "the kernel computes in float32, the input is float64"
    if not hard:
        return "hard=False: the kernel has the hard functions alone"
    if projection:
        return "proj_size > 0: the kernel has no projection"
    return None


@torch.compiler.assume_constant_result
def _kernels_present() -> bool:
    return native.library() is not None


def backend_info(module: torch.nn.Module | None = None) -> str:
    """Say which kernels this installation has and, for a recurrent layer or cell, which path it takes and why.

    >>> print(backend_info().splitlines()[0].split(":")[0])
    cpu
    """
    lines = [f"cpu: {native.status()}", "triton: no GPU kernels in this version; torch operations run on a GPU"]
    if module is not None:
        for name in ("backend", "hard"):
            if not hasattr(module, name):
                raise TypeError(f"backend_info takes a noisy recurrent layer or cell, not {type(module).__name__}")
        weight = next(module.parameters())
        projection = getattr(module, "proj_size", 0) > 0
        noise = module.noise
        if module.backend == "auto" and not module.hard and noise is None:
            lines.append(f"{type(module).__name__}: torch's own layer, which this equals")
        else:
            path = choose(str(module.backend), weight.device, weight.dtype, bool(module.hard), projection)
            why = _obstacle_cpu(weight.device, weight.dtype, bool(module.hard), projection)
            reason = "the C kernel" if path == "cpu" else "torch operations, a step at a time: "
            detail = "" if path == "cpu" else (why or "backend='reference'")
            lines.append(f"{type(module).__name__}: {reason}{detail}")
    return "\n".join(lines)
