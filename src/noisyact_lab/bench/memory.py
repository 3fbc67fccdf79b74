"""Peak memory of a training step, measured in a separate process for each layer."""

from __future__ import annotations

import math
import subprocess
import sys

__all__ = ["peak_megabytes"]

_CODE = """
import pathlib, re, sys, torch, noisyact
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) / 1024
def forget_peak():
    pathlib.Path("/proc/self/clear_refs").write_text("5")
name, steps, batch, hidden, layers, threads = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(threads)
make = getattr(noisyact, name, None) or getattr(torch.nn, name)
def step(layer, x):
    layer(x)[0].sum().backward()
step(make(8, 8), torch.randn(2, 2, 8, requires_grad=True))  # loads libraries and starts threads before the measurement
layer, x = make(hidden, hidden, layers), torch.randn(steps, batch, hidden, requires_grad=True)
forget_peak()  # imports use more memory than a small layer
before = peak()
for _ in range(3):
    step(layer, x)
print(peak() - before)
"""


def peak_megabytes(name: str, steps: int, batch: int, hidden: int, layers: int, threads: int) -> float:
    """Return the peak memory in MiB that three training steps of a layer of noisyact or torch.nn add to a process.

    Returns NaN on systems other than Linux, which do not report it.
    """
    if sys.platform != "linux":
        return math.nan
    arguments = [sys.executable, "-c", _CODE, name, *map(str, (steps, batch, hidden, layers, threads))]
    return float(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)
