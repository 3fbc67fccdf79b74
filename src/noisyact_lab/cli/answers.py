"""What commands share: options, and how they answer: JSON, one line for what a user can put right, exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

__all__ = ["EXIT_CODES", "RUNS", "AsJson", "Commands", "Out", "Preset", "print_json", "width"]

EXIT_CODES = (
    "\n\n"
    + """
Exit codes: 0 done; 1 something failed, such as a disk that is full or a file that is damaged (a run that diverged has
not: that is its result, and is shown); 2 wrong arguments, or data or a library that is missing; 3 all done but
experiments that were skipped, since not named and without their data; 130 stopped by Ctrl-C: the same command goes on
where it stopped.
""".strip().replace("\n", " ")
)
RUNS = Path("out/runs")
AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]
Out = Annotated[Path, typer.Option(help="folder the runs are kept in")]
Preset = Annotated[str, typer.Option(help="smoke (seconds), short (minutes) or paper (the paper's size)")]


class Commands(TyperGroup):
    """All commands: whatever goes wrong in any of them, and whatever is to be said meanwhile, is told the same way."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with warnings.catch_warnings(), _told():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = _show
            return super().invoke(ctx)


def _show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """A user has no need of the line in the source that a warning comes from."""
    print(f"noisyact: {message}", file=sys.stderr)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What a user can put right is one line and an exit code; Ctrl-C says how to go on, with exit code 130."""
    try:
        yield
    except BrokenPipeError:
        raise  # whoever read the output has enough: typer ends in silence
    except (ValueError, OSError) as error:
        from noisyact_lab.engine.folder.files import Damaged, in_words

        if os.environ.get("LOCAL_RANK", "0") == "0":  # of several processes of a run one on each machine says it
            print(f"noisyact: {in_words(error)}", file=sys.stderr)
        failed = isinstance(error, (Damaged, OSError)) and not isinstance(error, FileNotFoundError)
        raise typer.Exit(1 if failed else 2) from None
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
