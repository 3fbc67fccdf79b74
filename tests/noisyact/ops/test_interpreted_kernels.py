"""The GPU kernels without a GPU: in Triton's interpreter, each part in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2] / "support" / "kernels"


# The layers take long, so they are divided, for two processes. The second has what the first has not.
FIRST = "layers_equal_the_reference or cells"


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "part"),
    [
        ("recurrent", FIRST),
        ("recurrent exchange", f"not ({FIRST})"),
        ("steps routine recordings", None),
        ("activation attention ntm", None),
    ],
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
