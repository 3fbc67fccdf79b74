"""The command line `noisyact`."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]

_EXPERIMENTS = ("jinja2", "matplotlib", "numpy", "rich", "safetensors", "scipy", "tensorboard", "typer")
"""The modules that the extra `experiments` installs."""


def main() -> None:
    """The entry point; ends the process with the command's exit code."""
    try:
        from noisyact_lab.cli.app import app

        try:
            app(prog_name="noisyact")
        finally:
            sys.stdout.flush()
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in _EXPERIMENTS:
            raise
        from noisyact.extras import how_to_install

        needed = how_to_install("experiments")
        print(f"noisyact: {module} is not installed. The library does without it; the command line needs: {needed}",
              file=sys.stderr)  # fmt: skip
        sys.exit(2)
    except OSError as error:  # an error of the output: commands report all others
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python would write again when it ends
        sys.exit(1 if isinstance(error, BrokenPipeError) else f"noisyact: standard output: {error.strerror}")
