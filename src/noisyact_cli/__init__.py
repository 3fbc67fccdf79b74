"""The command line `noisyact`.

It is a package of its own because `import noisyact` imports torch, which takes longer than `--help` may.
"""

from __future__ import annotations

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
    app(prog_name="noisyact")
