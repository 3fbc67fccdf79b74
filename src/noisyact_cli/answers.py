"""How commands answer: JSON for programs, one line for what a user can put right, exit codes."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

__all__ = ["AsJson", "print_json", "user_errors"]

AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]


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


def print_json(value: Any) -> None:
    """Print a value for programs."""
    print(json.dumps(value, indent=1))
