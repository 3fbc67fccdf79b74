"""The GPU kernels without a GPU: in Triton's interpreter, each part in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2] / "support"


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("interpreted_activation.py", None),
        ("interpreted_attention.py", None),
        ("interpreted_ntm.py", None),
        ("interpreted_recurrent.py", "registers or wait_for or in_the_launch"),
        ("interpreted_recurrent.py", "in_parts"),
        ("interpreted_recurrent.py", "one_slice"),
        ("interpreted_recurrent.py", "cells or rules or compiled or above_each_other"),
    ],
)
def test_kernels_in_the_interpreter(file, part):
    """Triton decides at its import whether kernels are interpreted."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", str(TESTS / file)]
    run = subprocess.run(
        command if part is None else [*command, "-k", part], capture_output=True, text=True, cwd=TESTS.parents[1],
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
