"""Peak memory of a training step on a CPU, measured in a separate process."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["added_megabytes", "peak_megabytes"]

_CODE = """
import sys, torch, noisyact
from noisyact_lab.bench.memory import added_megabytes
name, steps, batch, hidden, layers, threads = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(threads)
make = getattr(noisyact, name, None) or getattr(torch.nn, name)
def step(layer, x):
    layer(x)[0].sum().backward()
step(make(8, 8), torch.randn(2, 2, 8, requires_grad=True))  # loads libraries and starts threads before the measurement
layer, x = make(hidden, hidden, layers), torch.randn(steps, batch, hidden, requires_grad=True)
print(added_megabytes(lambda: step(layer, x)))
"""


def added_megabytes(function: Callable[[], object]) -> float:
    """Return by how many MiB three calls of a function raise the peak memory of this process, on Linux."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak: imports use more memory than a small layer
    before = _peak()
    for _ in range(3):
        function()
    return _peak() - before


def _peak() -> float:
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return math.nan if found is None else int(found[1]) / 1024


def peak_megabytes(name: str, steps: int, batch: int, hidden: int, layers: int, threads: int) -> float:
    """Return the peak memory in MiB that three training steps of a layer of noisyact or torch.nn add to a process.

    Returns NaN on systems other than Linux, which do not report it.
    """
    if sys.platform != "linux":
        return math.nan
    arguments = [sys.executable, "-c", _CODE, name, *map(str, (steps, batch, hidden, layers, threads))]
    return float(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)
