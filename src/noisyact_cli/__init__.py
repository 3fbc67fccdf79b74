"""The command line `noisyact`.

It is a package of its own because `import noisyact` imports torch, which takes longer than `--help` may.
"""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """The entry point; ends the process with the command's exit code."""
    try:
        from noisyact_cli.app import app
    except ModuleNotFoundError as error:
        sys.exit(
            f"noisyact: {error.name} is not installed; the command line needs: pip install 'noisyact[experiments]'"
        )
    try:
        try:
            app(prog_name="noisyact")
        finally:
            sys.stdout.flush()
    except OSError as error:  # of the output: commands tell of all others
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python would try again when it ends
        sys.exit(1 if isinstance(error, BrokenPipeError) else f"noisyact: standard output: {error.strerror}")
