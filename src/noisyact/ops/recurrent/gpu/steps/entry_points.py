"""The addresses of functions of the CUDA libraries that torch has loaded, for C code that is compiled without CUDA."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from pathlib import Path

__all__ = ["launch", "multiply"]


@functools.cache
def multiply() -> int | None:
    """The address of cublasGemmEx in the cuBLAS that torch uses; None if it is not found."""
    with contextlib.suppress(OSError, AttributeError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.rpartition(" ")[2]
            if Path(path).name.startswith("libcublas.so"):
                return _address(ctypes.CDLL(path).cublasGemmEx)
    return None


@functools.cache
def launch() -> int | None:
    """The address of cuLaunchKernel in the driver; None if it is not found."""
    with contextlib.suppress(OSError, AttributeError):
        return _address(ctypes.CDLL("libcuda.so.1").cuLaunchKernel)
    return None


def _address(function: object) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value  # pyright: ignore[reportArgumentType]
