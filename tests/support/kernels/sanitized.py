"""Compiles the C kernels with AddressSanitizer and UndefinedBehaviorSanitizer and runs the tests and fuzzers with them.

``python tests/support/kernels/sanitized.py`` (`make sanitize`) does so for every instruction set of this processor.
Each has its own vector width and so its own ends of rows. The first error ends it. Logs are under
out/sanitized. Needs gcc.

torch's CPU tensors come from posix_memalign and ctypes arrays, with PYTHONMALLOC=malloc, from malloc. Both are
AddressSanitizer's when it is preloaded, so it sees every read or write past the end of either.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from noisyact.ops import native
from noisyact.ops.native import build

TESTS = Path(__file__).parents[2]
FLAGS = [
    "-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
    "-Wall", "-Wextra", "-Wconversion", "-Werror",
]  # fmt: skip
KERNEL_TESTS = [
    "noisyact/ops/test_activation_op.py",
    "noisyact/ops/test_sixteen_bits.py",
    "noisyact/ops/test_recurrent_kernel.py",
    "noisyact/ops/test_state_kernel.py",
    "noisyact/with_torch/test_threads.py",
    "noisyact/ops/test_fuzz.py",
]
# The fuzzer has more sizes than the grid; these only take long under the sanitizers or start other processes.
LEFT_OUT = "every_size or compile or without_the_kernel or memory_by_the_kernel"


def compiler_file(name: str) -> str:
    """Where gcc has one of its libraries."""
    compiler = build.find_compiler()
    if compiler is None:
        sys.exit("there is no C compiler")
    path = subprocess.run([*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    if not Path(path.strip()).is_absolute():
        sys.exit(f"{compiler[0]} has no {name}")
    return path.strip()


def environment(libraries: Path) -> dict[str, str]:
    """What makes a Python process use the sanitized kernels."""
    # Without libstdc++ beside it, AddressSanitizer does not find the function that throws C++ exceptions.
    preload = " ".join(map(compiler_file, ("libasan.so", "libstdc++.so")))
    return os.environ | {
        "LD_PRELOAD": preload,
        "NOISYACT_LIBRARIES": str(libraries.resolve()),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def run(name: str, libraries: Path, arguments: list[str]) -> None:
    """Run Python with the sanitized kernels; its log must have no word of a sanitizer."""
    log = libraries / f"{name}.log"
    with log.open("w") as file:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=TESTS.parent, env=environment(libraries), stdout=file, stderr=file
        )
    text = log.read_text()
    last = (text.strip().splitlines() or ["no output"])[-1]
    print(f"{libraries.name} {name}: {last}", flush=True)
    if done.returncode or "runtime error:" in text or "ERROR: AddressSanitizer" in text:
        sys.exit(f"failed with status {done.returncode}; see {log}\n{text[-4000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120, help="of fuzzing for each instruction set")
    parser.add_argument("--out", type=Path, default=TESTS.parent / "out" / "sanitized")
    options = parser.parse_args()
    for level in filter(native.runs, build.levels()):
        libraries = options.out / level
        print(f"compiling for {level}", flush=True)
        if not build.build(libraries, FLAGS, [level]):
            sys.exit(f"the kernels for {level} did not compile")
        run("fuzzer", libraries, ["tests/support/kernels/fuzz_kernels.py", "--seconds", str(options.seconds)])
        run("invalid", libraries, ["tests/support/kernels/fuzz_invalid.py", "--seconds", str(options.seconds / 4)])
        tests = [str(TESTS / name) for name in KERNEL_TESTS]
        run(
            "tests",
            libraries,
            ["-m", "pytest", "-q", "-x", "-p", "no:xdist", "--capture=sys", "-k", f"not ({LEFT_OUT})", *tests],
        )
    print("no error found by AddressSanitizer or UndefinedBehaviorSanitizer")


if __name__ == "__main__":
    main()
