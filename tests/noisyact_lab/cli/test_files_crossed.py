"""How much of the code somebody has to read to follow one command."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "support" / "lab" / "files_crossed.py"


def test_a_run_crosses_at_most_fourteen_files(tmp_path):
    done = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, check=True)
    crossed = [line for line in done.stdout.splitlines() if line.endswith(".py")]
    assert crossed[0] == "cli/__init__.py"
    assert "experiments/ptb_word.py" in crossed
    assert len(crossed) <= 14, crossed
