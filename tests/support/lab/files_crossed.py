"""Prints the files in which a function runs during one command, in the order of their first call.

python tests/support/lab/files_crossed.py FOLDER

A separate process, so that calls are seen from the first import on.
"""

import os
import sys
import threading
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import FrameType

from text_cases import write_treebank

COMMAND = (
    "run", "ptb-word", "--arm", "nan", "--preset", "smoke", "--device", "cpu", "--set", "verified=false", "--set",
    "tokens=none", "--set", "vocabulary=none", "--set", "hidden=8", "--set", "batch=4", "--set", "steps=5", "--set",
    "epochs=1",
)  # fmt: skip
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
ROOMS = ("cli", "engine", "tasks", "experiments")
"""The folders that count. Data, models and their loops are, like the library, where a walk through the code ends."""


def crossed(folder: Path) -> list[str]:
    """Run the command with a small text, and return the files below noisyact_lab that it crosses."""
    write_treebank(folder / "data" / "ptb")
    os.environ |= {"NOISYACT_DATA": str(folder / "data"), "XDG_CACHE_HOME": str(folder / "cache")}
    found: dict[str, None] = {}
    package = f"{os.sep}noisyact_lab{os.sep}"

    def called(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        # Bodies of modules and classes, and comprehensions in them, run at import and are not calls.
        if event == "call" and package in code.co_filename and code.co_flags & CO_NEWLOCALS:
            path = code.co_filename.rpartition(package)[2]
            if code.co_name not in COMPREHENSIONS and Path(path).parts[0] in ROOMS:
                found.setdefault(path)

    threading.setprofile(called)
    sys.setprofile(called)
    sys.argv = ["noisyact", *COMMAND, "--out", str(folder / "out")]
    try:
        from noisyact_lab.cli import main

        main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(found)


if __name__ == "__main__":
    for path in crossed(Path(sys.argv[1])):
        print(path)
