"""Builds the sdist and, from it, the wheels of all platforms into dist/, and checks them: `make wheels`.

One machine with Linux builds all wheels, because zig compiles for the other systems. auditwheel confirms that a Linux
wheel runs where its name says. The other wheels are compiled, not run.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def platforms() -> list[str]:
    """The platforms of src/noisyact/ops/native/build.py."""
    path = ROOT / "src" / "noisyact" / "ops" / "native" / "build.py"
    spec: Any = importlib.util.spec_from_file_location("noisyact_native_build", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.PLATFORMS)


def build(kind: str, source: Path, out: Path, **environment: str) -> Path:
    """Build the sdist or a wheel from a source folder and return its path."""
    before = set(out.glob("*"))
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    (made,) = set(out.glob("*")) - before
    print(f"{made.stat().st_size / 1e6:6.2f} MB  {made.name}", flush=True)
    return made


def check(wheel: Path) -> None:
    """Ask auditwheel whether a Linux wheel runs on every system that its name promises."""
    done = subprocess.run([sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True)
    said = " ".join(done.stdout.split())
    promised = wheel.stem.rsplit("-", 1)[1]
    if f'consistent with the following platform tag: "{promised}"' not in said:
        sys.exit(f"auditwheel does not confirm {promised}:\n{done.stdout}{done.stderr}")
    print(f"           auditwheel: consistent with {promised}", flush=True)


def main() -> None:
    """Build and check everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--only", nargs="*", choices=platforms(), default=platforms())
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for old in (*options.out.glob("noisyact-*.whl"), *options.out.glob("noisyact-*.tar.gz")):
        old.unlink()
    sdist = build("sdist", ROOT, options.out)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (source,) = Path(folder).iterdir()
        for platform in options.only:
            wheel = build("wheel", source, options.out, NOISYACT_PLATFORM=platform)
            if "linux" in platform:
                check(wheel)


if __name__ == "__main__":
    main()
