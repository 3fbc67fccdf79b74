"""What a number came from."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import noisyact

__all__ = ["commit", "signature"]


def signature(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a number came from: settings, code, machine and library versions."""
    source = hashlib.sha256()
    for path in sorted(Path(noisyact.__file__).parent.rglob("*.[pch]*")):
        if path.suffix in (".py", ".c", ".h"):
            source.update(path.read_bytes())
    on_gpu = config["device"] == "cuda"
    device = torch.cuda.get_device_name() if on_gpu else platform.machine()
    # Of a GPU that is shared a run may be given a part, and kernels that are cut otherwise round otherwise.
    part = {"processors": torch.cuda.get_device_properties().multi_processor_count} if on_gpu else {}
    return {
        "noisyact": noisyact.__version__,
        "source_sha256": source.hexdigest(),
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "device": device,
        **part,
        "threads": torch.get_num_threads(),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
    }


def commit() -> str | None:
    """The commit of the checkout the package is in, if it is in one, with a + where files differ from it."""
    where = Path(noisyact.__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=where, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # an environment in another project's checkout is not its own
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
