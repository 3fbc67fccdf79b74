"""The kernels of the Neural Turing Machine without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def test_kernels_in_the_interpreter():
    """In a process of their own: Triton decides at its import whether kernels are interpreted."""
    pytest.importorskip("triton")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", str(TESTS / "interpreted_ntm.py")],
        capture_output=True, text=True, cwd=TESTS.parent, env=os.environ | {"TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
