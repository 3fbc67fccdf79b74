"""The versions that pyproject.toml, README and docs name are those on which the whole suite passed.

`make test`, with TORCH= and PYTHON= for other versions, writes the record, tests/versions.json.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest
import version_record
from version_record import minor

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINNED = re.search(r"^torch==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def numbers(version):
    return tuple(map(int, minor(version).split(".")))


@pytest.fixture
def passed():
    """The recorded runs without failures, and this run, which is going to be recorded."""
    now = version_record.versions()
    if now["torch"] != PINNED:
        pytest.skip(f"the claims are compared with the record when torch is {PINNED}")
    rows = json.loads(version_record.RECORD.read_text())
    return [*(row for row in rows if row["failed"] == 0), now]


def test_classifiers_name_the_pythons_that_passed(passed):
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: Python :: 3\.\d+$", c)]
    assert named == sorted({minor(row["python"]) for row in passed}, key=numbers)
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_the_torch_range_is_the_one_that_passed(passed):
    torches = sorted({minor(row["torch"]) for row in passed}, key=numbers)
    (torch,) = [name for name in PROJECT["dependencies"] if name.startswith("torch")]
    if len(torches) == 1:
        pytest.skip("only the pinned torch is in tests/versions.json: make test TORCH=2.9.0 adds a row")
    assert torch == f"torch>={torches[0]}", "make test TORCH=... with the oldest release writes the record"
    for page in PAGES:
        for claim in re.findall(r"torch (\d+\.\d+ to \d+\.\d+)", page.read_text()):
            assert claim == f"{torches[0]} to {torches[-1]}", page


def test_a_run_replaces_the_row_of_its_versions():
    old = {"python": "3.11.7", "torch": "2.13.0", "failed": 3}
    other = {"python": "3.13.0", "torch": "2.13.0", "failed": 0}
    rows = version_record.updated([other, old], {"python": "3.11.9", "torch": "2.13.0", "failed": 0})
    assert [(row["python"], row["failed"]) for row in rows] == [("3.11.9", 0), ("3.13.0", 0)]
    assert json.loads(version_record.written(rows)) == rows


def test_only_the_whole_suite_is_recorded(pytestconfig):
    assert version_record.narrowed(pytestconfig) or pytestconfig.args_source.name == "TESTPATHS"


SUITE = """
import pytest

pytest_plugins = ["version_record"]
"""


def test_the_command_writes_the_record(pytester_like, tmp_path):
    """A small suite of its own: a whole run writes its row, a part of it does not, and failures are counted."""
    run = pytester_like
    assert "not written" in run("-k", "good")
    assert json.loads((tmp_path / "tests" / "versions.json").read_text()) == []
    assert "versions.json: {" in run()
    (row,) = json.loads((tmp_path / "tests" / "versions.json").read_text())
    assert (row["passed"], row["skipped"], row["failed"]) == (1, 1, 1)
    assert row["torch"] == version_record.versions()["torch"]


@pytest.fixture
def pytester_like(tmp_path):
    import subprocess
    import sys

    support = tmp_path / "tests" / "support"
    support.mkdir(parents=True)
    (support / "version_record.py").write_text(Path(version_record.__file__).read_text())
    (tmp_path / "conftest.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\npythonpath = tests/support\n")
    (tmp_path / "tests" / "versions.json").write_text("[]")
    (tmp_path / "tests" / "test_small.py").write_text(
        "import pytest\ndef test_good(): pass\ndef test_bad(): assert False\ndef test_skipped(): pytest.skip('')\n"
    )
    (tmp_path / "tests" / "test_versions.py").write_text("def test_not_counted(): assert False\n")

    def run(*arguments):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--record-versions", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout

    return run
