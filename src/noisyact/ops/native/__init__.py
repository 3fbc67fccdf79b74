"""The CPU kernels of this installation: an optional shared library of plain C, loaded on first use."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # must precede loading the library, whose OpenMP calls bind to torch's OpenMP

from noisyact.ops.native.build import LIBRARIES, levels, library_path

__all__ = ["CPU", "function", "library", "loaded", "runs", "status"]

CPU = torch.device("cpu")
"""Where the memory of a C kernel is. Without it torch allocates on its default device, which a user may have set."""


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    if os.environ.get("NOISYACT_NATIVE", "1") == "0":
        return None, "switched off by NOISYACT_NATIVE=0"
    chosen = os.environ.get("NOISYACT_LIBRARIES")
    folder = Path(chosen) if chosen else LIBRARIES
    present = [level for level in levels() if library_path(level, folder).exists()]
    if not present:
        why = f"no library in NOISYACT_LIBRARIES={chosen}" if chosen else "not compiled when the package was installed"
        return None, f"{why}{'' if chosen else ' (no C compiler then)'}; torch operations are used"
    fitting = [level for level in present if runs(level)]
    if not fitting:
        return None, f"no library fits this processor (compiled: {', '.join(present)}); torch operations are used"
    failures = []
    for level in fitting:
        try:
            found = ctypes.CDLL(str(library_path(level, folder)))
            getattr(found, _A_FUNCTION)
        except (OSError, AttributeError) as error:
            failures.append(f"the library for {level} does not load: {error}")
        else:
            return found, "; ".join([f"compiled C kernels for {level}", *failures])
    return None, f"{failures[0]}; torch operations are used"


_A_FUNCTION = "noisyact_matmul"  # which a foreign library does not have


def runs(level: str) -> bool:
    """Whether this processor supports the instruction set."""
    if platform.system() != "Linux":
        known = {"AVX512": ("x86-64-v4", "x86-64-v3"), "AVX2": ("x86-64-v3",)}
        return level in ("x86-64", "generic", *known.get(torch.backends.cpu.get_cpu_capability(), ()))
    needed = {
        "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
        "x86-64-v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    }.get(level, set())
    return needed <= _processor_flags()


@functools.cache
def _processor_flags() -> frozenset[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()


def library() -> ctypes.CDLL | None:
    """The loaded library; None if there is none."""
    return _load()[0]


def loaded() -> ctypes.CDLL:
    """The loaded library. Raises a RuntimeError with the reason if there is none."""
    found = library()
    if found is None:
        raise RuntimeError(f"there are no C kernels: {status()}")
    return found


def status() -> str:
    """A description of the CPU kernels in use, or the reason why there are none."""
    return _load()[1]


@functools.cache
def function(name: str, addresses: int) -> Any:
    """A function of the library. It takes addresses or 64-bit numbers, and then the number of threads."""
    found = getattr(loaded(), name)
    found.argtypes = [ctypes.c_void_p] * addresses + [ctypes.c_int]
    return found


threads: Callable[[], int] = torch.get_num_threads
"""The number of threads that a kernel may use: torch's number, but 1 in a forked process.

GNU's OpenMP would wait forever for the parent's threads, which the child does not have. The results are bit-identical.
"""


def _note_fork() -> None:
    global threads
    threads = lambda: 1  # noqa: E731


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
