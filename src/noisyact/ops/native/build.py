"""The build of the CPU kernels: plain C, one shared library for each instruction set. Uses only the standard library.

The package build runs this script if it finds a C compiler. Without one the package runs in torch operations. The
libraries do not depend on Python or torch, so one build works with all their versions. `make wheels` compiles them for
all of PLATFORMS with zig, a C compiler that is a Python package and needs nothing of the other systems.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

OPS = Path(__file__).parent.parent
LIBRARIES = Path(__file__).parent / "libraries"


class Platform(NamedTuple):
    """An operating system and a processor, as Python's `platform` calls them, and zig's name for both."""

    system: str
    machine: str
    zig: str = ""


PLATFORMS = {
    "manylinux_2_17_x86_64": Platform("Linux", "x86_64", "x86_64-linux-gnu.2.17"),
    "manylinux_2_17_aarch64": Platform("Linux", "aarch64", "aarch64-linux-gnu.2.17"),
    "macosx_11_0_arm64": Platform("Darwin", "arm64", "aarch64-macos.11.0"),
    "macosx_10_15_x86_64": Platform("Darwin", "x86_64", "x86_64-macos.10.15"),
    "win_amd64": Platform("Windows", "AMD64", "x86_64-windows-gnu"),
}
"""What wheels are built for, by the name that their file names have for it."""

HERE = Platform(platform.system(), platform.machine())

# The fastest first: the loader takes the first one that the processor supports.
X86_LEVELS = ("x86-64-v4", "x86-64-v3", "x86-64")

# The sources whose number type is `real` of real.h. They are compiled a second time, for doubles.
_OF_REALS = ("matmul/native.c", "recurrent/cpu/forward.c", "recurrent/cpu/backward.c", "recurrent/cpu/cell.c")

_FLAGS = ["-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-Wno-psabi"]


def levels(where: Platform = HERE) -> tuple[str, ...]:
    """The instruction sets to compile for."""
    return X86_LEVELS if where.machine.lower() in ("x86_64", "amd64") else ("generic",)


def library_path(level: str, folder: Path = LIBRARIES, where: Platform = HERE) -> Path:
    """The path of the library for an instruction set."""
    return folder / f"noisyact-{level}{ {'Windows': '.dll', 'Darwin': '.dylib'}.get(where.system, '.so') }"


def find_compiler() -> list[str] | None:
    """The C compiler's command: $CC, else cc, gcc or clang. None if there is none, or on Windows."""
    if sys.platform == "win32":
        return None
    chosen = shlex.split(os.environ.get("CC", ""))
    for candidate in ([chosen] if chosen else []) + [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(candidate[0]):
            return candidate
    return None


def build(
    folder: Path = LIBRARIES, flags: Sequence[str] = (), only: Sequence[str] | None = None, where: Platform = HERE
) -> list[Path]:
    """Compile the libraries and return their paths. The list is empty without a compiler, or if it fails.

    Args:
        folder: the folder for the libraries.
        flags: additional flags for the compiler and the linker.
        only: the instruction sets to compile for; None for all.
        where: what to compile for. One of PLATFORMS is compiled for with zig, this machine with its own compiler.
    """
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", where.zig] if where.zig else find_compiler()
    if compiler is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    chosen = only or levels(where)
    return [path for level in chosen if (path := _build_level(compiler, level, folder, flags, where)) is not None]


def _build_level(compiler: list[str], level: str, folder: Path, flags: Sequence[str], where: Platform) -> Path | None:
    sources = [[str(path)] for path in sorted(OPS.glob("**/*.c"))]
    sources += [["-DNOISYACT_DOUBLE", str(OPS / name)] for name in _OF_REALS]
    march = [] if level == "generic" else [f"-march={level.replace('-', '_') if where.zig else level}"]
    position = [] if where.system == "Windows" else ["-fPIC"]
    # Without symbols, and an error here instead of when it is loaded if openmp.c lacks a call of clang's.
    strip = ["-s", *(["-Wl,-z,defs"] if where.system == "Linux" else [])] if where.zig else []
    target, errors = library_path(level, folder, where), ""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        # OpenMP is enabled for compiling but not for linking, so that the calls bind to the OpenMP that torch has
        # loaded and the loops run on torch's threads. If that fails (no OpenMP), or where torch has another OpenMP
        # than GNU's (macOS, Windows), build without OpenMP.
        for openmp in (["-fopenmp"], []) if where.system == "Linux" else ([],):
            objects = [str(Path(scratch) / f"{i}.o") for i in range(len(sources))]
            commands = [
                [*compiler, *_FLAGS, *position, *march, *openmp, *flags, "-c", *source, "-o", out]
                for source, out in zip(sources, objects, strict=True)
            ]
            linked = Path(scratch) / target.name
            link = [*compiler, "-shared", *strip, *flags, *objects, "-o", str(linked), "-lm"]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                errors = next(filter(None, pool.map(_failure, commands)), "") or _failure(link)
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
