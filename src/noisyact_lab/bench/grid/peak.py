"""The peak memory of each layer of a case on a CPU, in a process to which no other layer has left memory."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys

import torch

from noisyact_lab.bench.grid.cases import Case
from noisyact_lab.bench.grid.layers import build, forward_and_backward
from noisyact_lab.bench.memory import added_megabytes

__all__ = ["peak_megabytes", "print_peak"]

# torch takes seconds to import, so one process imports it and forks the others. It imports nothing else: the C kernels
# use a single thread in a process that was forked after noisyact was imported.
_CODE = """
import json, os, sys, torch
for name in json.loads(sys.argv[2]):
    process = os.fork()
    if process == 0:
        from noisyact_lab.bench.grid.peak import print_peak
        print_peak(sys.argv[1], name, int(sys.argv[3]))
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
        sys.exit(1)
"""


def peak_megabytes(case: Case, names: list[str], threads: int) -> dict[str, float]:
    """Return the MiB that three training steps of each layer add to a process; empty on systems other than Linux."""
    if sys.platform != "linux":
        return {}
    arguments = [sys.executable, "-c", _CODE, json.dumps(dataclasses.asdict(case)), json.dumps(names), str(threads)]
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the process that measures memory failed: {(done.stderr.strip() or '?').splitlines()[-1]}")
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    return {name: megabytes for name, megabytes in found.items() if math.isfinite(megabytes)}


def print_peak(case: str, name: str, threads: int) -> None:
    """Measure one layer of a case, given as JSON, in this process, and print its name and MiB."""
    torch.set_num_threads(threads)
    described = json.loads(case)
    small = build(Case(**described | {"steps": 2, "batch": 2, "hidden": 8}), "cpu")
    forward_and_backward(small.by_name[name], small)()  # loads libraries and starts threads before the measurement
    layers = build(Case(**described), "cpu")
    print(json.dumps([name, added_megabytes(forward_and_backward(layers.by_name[name], layers))]), flush=True)
