"""The build of the CPU kernels: plain C, one shared library for each instruction set. Uses only the standard library.

The package build runs this script if it finds a C compiler. Without one the package runs in torch operations. The
libraries do not depend on Python or torch, so one build works with all their versions.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

OPS = Path(__file__).parent.parent
LIBRARIES = Path(__file__).parent / "libraries"

# The fastest first: the loader takes the first one that the processor supports.
X86_LEVELS = ("x86-64-v4", "x86-64-v3", "x86-64")

_FLAGS = ["-O3", "-std=gnu11", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]


def levels() -> tuple[str, ...]:
    """The instruction sets to compile for on this machine."""
    return X86_LEVELS if platform.machine().lower() in ("x86_64", "amd64") else ("generic",)


def library_path(level: str, folder: Path = LIBRARIES) -> Path:
    """The path of the library for an instruction set."""
    return folder / f"noisyact-{level}.so"


def find_compiler() -> list[str] | None:
    """The C compiler's command: $CC, else cc, gcc or clang. None if there is none, or on Windows."""
    if sys.platform == "win32":
        return None
    chosen = shlex.split(os.environ.get("CC", ""))
    for candidate in ([chosen] if chosen else []) + [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(candidate[0]):
            return candidate
    return None


def build(folder: Path = LIBRARIES, flags: Sequence[str] = (), only: Sequence[str] | None = None) -> list[Path]:
    """Compile the libraries and return their paths. The list is empty without a compiler, or if it fails.

    Args:
        folder: the folder for the libraries.
        flags: additional flags for the compiler and the linker.
        only: the instruction sets to compile for; None for all.
    """
    compiler = find_compiler()
    if compiler is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    return [path for level in only or levels() if (path := _build_level(compiler, level, folder, flags)) is not None]


def _build_level(compiler: list[str], level: str, folder: Path, flags: Sequence[str]) -> Path | None:
    sources = sorted(str(path) for path in OPS.glob("**/*.c"))
    march = [] if level == "generic" else [f"-march={level}"]
    target, errors = library_path(level, folder), ""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        # OpenMP is enabled for compiling but not for linking, so that the calls bind to the OpenMP that torch has
        # loaded and the loops run on torch's threads. If that fails (no OpenMP, macOS), build without OpenMP.
        for openmp in (["-fopenmp"], []):
            objects = [str(Path(scratch) / f"{i}.o") for i in range(len(sources))]
            commands = [
                [*compiler, *_FLAGS, *march, *openmp, *flags, "-c", source, "-o", out]
                for source, out in zip(sources, objects, strict=True)
            ]
            linked = Path(scratch) / "linked.so"
            undefined = ["-Wl,-undefined,dynamic_lookup"] if sys.platform == "darwin" else []
            commands.append([*compiler, "-shared", *undefined, *flags, *objects, "-o", str(linked), "-lm"])
            if sys.platform == "darwin" and openmp:
                continue
            errors = next(filter(None, map(_failure, commands)), "")
            if not errors:
                linked.replace(target)
                return target
    print(f"no kernels for {level}: {errors}", file=sys.stderr)
    return None


def _failure(command: list[str]) -> str:
    """The compiler's error output; empty if it succeeded."""
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stderr or f"{command[0]} failed" if done.returncode else ""


if __name__ == "__main__":
    built = build()
    print("\n".join(map(str, built)) or "no library was built: the package will use torch operations")
