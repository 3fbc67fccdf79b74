"""Build hook that compiles the CPU kernels into the wheel. Without a C compiler, the wheel is built without them.

NOISYACT_PLATFORM names another platform to build the wheel for, one of PLATFORMS in src/noisyact/ops/native/build.py.
"""

import importlib.util
import os
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeKernels(BuildHookInterface):
    """Runs src/noisyact/ops/native/build.py before the wheel is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the compiled libraries and the platform tag to the wheel."""
        if self.target_name != "wheel":
            return
        native = Path(self.root) / "src" / "noisyact" / "ops" / "native"
        build = _module(native / "build.py")
        if version == "editable":  # the package is used where it is, so the libraries must be there
            if build.build():
                build_data["pure_python"] = False
                build_data["tag"] = _tag(sysconfig.get_platform())
            return
        self._scratch = tempfile.TemporaryDirectory()
        chosen = os.environ.get("NOISYACT_PLATFORM")
        if chosen and chosen not in build.PLATFORMS:
            raise ValueError(f"NOISYACT_PLATFORM={chosen!r}: allowed are {', '.join(build.PLATFORMS)}")
        where = build.PLATFORMS[chosen] if chosen else build.HERE
        libraries = build.build(Path(self._scratch.name), where=where)
        if chosen and len(libraries) < len(build.levels(where)):
            raise RuntimeError(f"the kernels for {chosen} did not compile; pip install ziglang brings the compiler")
        if libraries:
            build_data["pure_python"] = False
            build_data["tag"] = _tag(chosen or sysconfig.get_platform())
            for path in libraries:
                build_data["force_include"][str(path)] = f"noisyact/ops/native/libraries/{path.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the compiled libraries, which the wheel now contains."""
        if hasattr(self, "_scratch"):
            self._scratch.cleanup()


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("noisyact_native_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _tag(platform: str) -> str:
    """The wheel's tag: the libraries are plain C called through ctypes, and depend on the platform, not on Python."""
    return f"py3-none-{platform.replace('-', '_').replace('.', '_')}"
