"""The addresses of functions of the CUDA libraries that torch has loaded, for code that is compiled without CUDA."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from pathlib import Path
from typing import Any

__all__ = ["cublas", "driver"]


@functools.cache
def cublas(name: str) -> int | None:
    """The address of a function of the cuBLAS that torch uses, such as cublasGemmEx; None if it is not found."""
    with contextlib.suppress(OSError, AttributeError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.rpartition(" ")[2]
            if Path(path).name.startswith("libcublas.so"):
                return _address(getattr(ctypes.CDLL(path), name))
    return None


@functools.cache
def driver(name: str) -> int | None:
    """The address of a function of the CUDA driver, such as cuLaunchKernel; None if it is not found."""
    with contextlib.suppress(OSError, AttributeError):
        return _address(getattr(ctypes.CDLL("libcuda.so.1"), name))
    return None


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value
