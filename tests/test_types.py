"""A user's code is checked with useful types by mypy and pyright, both strict, and a wrong use is reported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
USE = ROOT / "tests" / "support" / "typed_use.py"
WRONG = {
    "na.NoisyLSTM(8, 16)(x, x)": "the state of an LSTM is a pair",
    "na.NoisyLSTM(8, 16, noise=3)": "noise is a scheme, its text or None",
    "h, c = na.NoisyGRUCell(8, 16)(x) + 'text'": "a cell returns a tensor",
    "na.noisify(x)": "noisify takes a module",
    "na.NoiseScheduler(na.NoisyReLU(), 0.5)": "a schedule is a function",
    "text: str = na.NoisyHardTanh()(x)": "an activation returns a tensor",
}


@pytest.fixture
def files(tmp_path):
    """The right uses, and a file with one wrong use on each line from the fifth on."""
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(USE.read_text())
    wrong.write_text("import torch\nimport noisyact as na\n\nx = torch.ones(3, 2, 8)\n" + "\n".join(WRONG) + "\n")
    return right, wrong


def in_wrong_lines(lines):
    assert set(lines) == set(range(5, 5 + len(WRONG)))


@pytest.mark.long
def test_mypy(files, tmp_path):
    # Errors in imported files are not reported to a user, whose noisyact is in site-packages.
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary"]
    command += [f"--cache-dir={ROOT / 'out' / 'mypy'}", *map(str, files)]
    path = os.environ | {"MYPYPATH": str(ROOT / "src")}
    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=path).stdout.splitlines()
    errors = [line for line in said if ": error: " in line]
    assert not [line for line in errors if not line.startswith("wrong.py")]
    in_wrong_lines(int(line.split(":")[1]) for line in errors)


@pytest.mark.long
def test_pyright(files, tmp_path):
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT / "src")], "include": ["right.py", "wrong.py"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout)
    errors = [d for d in said["generalDiagnostics"] if d["severity"] == "error"]
    assert not [d for d in errors if not d["file"].endswith("wrong.py")]
    in_wrong_lines(d["range"]["start"]["line"] + 1 for d in errors)
