"""Build hook that compiles the CPU kernels into the wheel. Without a C compiler, the wheel is built without them."""

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeKernels(BuildHookInterface):
    """Runs src/noisyact/ops/native/build.py before the wheel is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the compiled libraries and the platform tag to the wheel."""
        if self.target_name != "wheel":
            return
        path = Path(self.root) / "src" / "noisyact" / "ops" / "native" / "build.py"
        spec = importlib.util.spec_from_file_location("noisyact_native_build", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        libraries = module.build()
        if libraries:
            build_data["pure_python"] = False
            # The libraries are plain C called through ctypes: they depend on the platform, not on the Python version.
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            build_data["artifacts"] += ["src/noisyact/ops/native/libraries/*.so"]
