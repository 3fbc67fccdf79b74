"""Runs the kernels compiled for another processor or system in an emulator, and compares them with this machine's.

kernels.c computes noise, a matrix product, and an LSTM, a GRU and an RNN, forward and backward. Its results must agree
with those of this machine's compiler within rounding. qemu-aarch64 (Debian: qemu-user) runs the program for Linux on
ARM, and wine that for Windows; what is not installed is not run. There is no emulator of macOS.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
OPS = ROOT / "src" / "noisyact" / "ops"
FLAGS = ["-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-Wno-psabi"]
EMULATORS = {
    "Linux aarch64": (["qemu-aarch64"], ["-target", "aarch64-linux-musl", "-static"]),
    "Windows x86-64": (["wine64", "/usr/lib/wine/wine64"], ["-target", "x86_64-windows-gnu"]),
    "Linux x86-64, zig": (["env"], ["-target", "x86_64-linux-musl", "-static"]),
}


def program(compiler: list[str], out: Path, optimised: str = "-O3") -> Path:
    """Compile kernels.c and all kernels to a program."""
    sources = [str(ROOT / "release" / "kernels.c"), *sorted(str(path) for path in OPS.glob("**/*.c"))]
    subprocess.run([*compiler, optimised, *FLAGS, *sources, "-o", str(out), "-lm"], check=True)
    return out


def results(command: list[str]) -> list[tuple[str, float]]:
    """The named numbers that the program prints."""
    quiet = os.environ | {"WINEDEBUG": "-all"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=quiet)
    lines = [line.split() for line in done.stdout.splitlines()]
    return [(name, float(value)) for name, value in lines]


def worst(found: list[tuple[str, float]], expected: list[tuple[str, float]]) -> float:
    """The largest difference, relative to 1 + the expected magnitude."""
    if [name for name, _ in found] != [name for name, _ in expected]:
        return math.inf
    pairs = [(a, b) for (_, a), (_, b) in zip(found, expected, strict=True)]
    return max(abs(a - b) / (1 + abs(b)) if math.isfinite(a) and math.isfinite(b) else math.inf for a, b in pairs)


def main() -> None:
    """Compare every emulator that is installed."""
    with tempfile.TemporaryDirectory() as folder:
        print("compiling for this machine", flush=True)
        expected = results([str(program(["cc"], Path(folder) / "here"))])
        for name, (emulators, target) in EMULATORS.items():
            emulator = next(filter(None, map(shutil.which, emulators)), None)
            if emulator is None:
                print(f"{name}: compiled, not run ({emulators[0]} is not installed)")
                continue
            zig = [sys.executable, "-m", "ziglang", "cc", *target]
            made = program(zig, Path(folder) / ("kernels.exe" if "Windows" in name else "kernels"))
            difference = worst(results([emulator, str(made)]), expected)
            print(f"{name}: {len(expected)} results, largest difference {difference:.1e}", flush=True)
            if difference > 1e-4:
                sys.exit(f"{name}: the results differ from those of this machine")
    print("macOS: compiled, not run")


if __name__ == "__main__":
    main()
