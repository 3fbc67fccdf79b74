"""What commands share: options, and how they answer: JSON, one line for what a user can put right, exit codes."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["EXIT_CODES", "RUNS", "AsJson", "Out", "Preset", "print_json", "user_errors", "width"]

EXIT_CODES = (
    "\n\n"
    + """
Exit codes: 0 done; 1 something failed (a run that diverged has not: that is its result, and is shown); 2 wrong
arguments, or data or a library that is missing; 3 all done but experiments that were skipped, since not named and
without their data; 130 stopped by Ctrl-C: the same command goes on where it stopped.
""".strip().replace("\n", " ")
)
RUNS = Path("out/runs")
AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]
Out = Annotated[Path, typer.Option(help="folder the runs are kept in")]
Preset = Annotated[str, typer.Option(help="smoke (seconds), short (minutes) or paper (the paper's size)")]


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """What a user can put right is one line and exit code 2; Ctrl-C says how to go on, with exit code 130."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        print(f"noisyact: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        again = shlex.join(["noisyact", *(word for word in sys.argv[1:] if word != "--force")])
        print(f"\nstopped; what is done is kept. To go on: {again}", file=sys.stderr)
        raise typer.Exit(130) from None


def width() -> int:
    """The columns that a line of output may have: the terminal's, 80 where there is none."""
    return shutil.get_terminal_size().columns


def print_json(value: Any) -> None:
    """Print a value for programs."""
    print(json.dumps(value, indent=1))
