"""The GPU kernels without a GPU: in Triton's interpreter, each part in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2] / "support" / "kernels"


# The layers take long, so they are divided, for several processes. The last part has what no other part has.
PARTS = (
    "registers or wait_for or in_the_launch or in_one_launch",
    "in_parts or one_slice or together",
    "cells or compiled or operators",
)
LAYERS = [*PARTS, f"not ({' or '.join(PARTS)})"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "part"),
    [("activation", None), ("attention ntm", None), *(("recurrent", part) for part in LAYERS), ("steps", None)],
)
def test_kernels_in_the_interpreter(names, part):
    """Triton decides at its import whether kernels are interpreted."""
    pytest.importorskip("triton")
    files = [str(TESTS / f"interpreted_{name}.py") for name in names.split()]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", *files]
    run = subprocess.run(
        command if part is None else [*command, "-k", part], capture_output=True, text=True, cwd=TESTS.parents[2],
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
