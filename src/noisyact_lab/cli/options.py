"""What commands share: options, exit codes, the width of their output, and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["EXIT_CODES", "RUNS", "AsJson", "Force", "Log", "Out", "Preset", "Set", "print_json", "width"]

EXIT_CODES = (
    "\n\n"
    + """
Exit codes: 0 done; 1 something failed, such as a disk that is full or a file that is damaged (a run that diverged has
not: that is its result, and is shown); 2 wrong arguments, or data or a library that is missing; 3 all done but
experiments that were skipped, since not named and without their data; 130 stopped by Ctrl-C: the same command resumes.
""".strip().replace("\n", " ")
)
RUNS = Path("out/runs")
AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]
Out = Annotated[Path, typer.Option(help="folder the runs are kept in")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="change a setting; repeatable")]
Force = Annotated[bool, typer.Option(help="do finished and begun runs again from the start")]
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log", metavar="NAME[:WHERE]",
        help="log to tensorboard[:FOLDER], wandb[:PROJECT], trackio[:PROJECT] or mlflow[:URI] too; repeatable",
    ),
]  # fmt: skip
Preset = Annotated[str, typer.Option(help="smoke (seconds), short (minutes) or paper (the paper's size)")]


def width() -> int:
    """The columns of the terminal, or 80 if there is none."""
    from noisyact.text_table import terminal_width  # imports torch

    return terminal_width() or 80


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=1))
