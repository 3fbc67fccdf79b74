"""The GPU kernels of the recurrent layers without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize("part", ["registers or wait_for", "in_parts", "one_slice", "cells or rules or compiled"])
def test_kernels_in_the_interpreter(part):
    """In a process of their own: Triton decides at its import whether kernels are interpreted."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", str(TESTS / "interpreted_recurrent.py")]
    run = subprocess.run(
        [*command, "-k", part], capture_output=True, text=True, cwd=TESTS.parent,
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
