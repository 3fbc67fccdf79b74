"""The command line `noisyact`.

It is a package of its own because `import noisyact` imports torch, which takes longer than `--help` may.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

_EXPERIMENTS = ("jinja2", "matplotlib", "numpy", "rich", "safetensors", "tensorboard", "typer")
"""The modules of the extra `experiments`."""


def main() -> None:
    """The entry point; ends the process with the command's exit code."""
    try:
        from noisyact_cli.app import app

        app(prog_name="noisyact")
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in _EXPERIMENTS:
            raise
        from noisyact.extras import how_to_install

        needed = how_to_install("experiments")
        print(f"noisyact: {module} is not installed. The library does without it; the command line needs: {needed}",
              file=sys.stderr)  # fmt: skip
        sys.exit(2)
