"""Records which Python and torch the whole suite ran on, in tests/versions.json: `make test` asks for it.

A row has the versions, the date, the commit and the counts. A run replaces the row of its versions. The tests that read
the record (tests/test_versions.py) are not counted, because they can pass only after it is written.
"""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests" / "versions.json"
READERS = "tests/test_versions.py"
NARROWING = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "collectonly", "maxfail")


def versions() -> dict[str, str]:
    """The Python and the torch of this process."""
    return {"python": platform.python_version(), "torch": torch.__version__.partition("+")[0]}


def same(row: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two rows are of the same torch and the same minor version of Python."""
    return row["torch"] == other["torch"] and minor(row["python"]) == minor(other["python"])


def minor(version: str) -> str:
    """The first two numbers of a version: 3.11.7 becomes 3.11."""
    return ".".join(version.split(".")[:2])


def updated(rows: list[dict[str, Any]], row: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows with this one in the place of the one of the same versions, in order of versions."""
    kept = [other for other in rows if not same(other, row)]
    return sorted(
        [*kept, row], key=lambda r: [[int(n) for n in r[name].split(".")[:2]] for name in ("python", "torch")]
    )


def written(rows: list[dict[str, Any]]) -> str:
    """The record's text: one line for each row."""
    return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n]\n"


def narrowed(config: Any) -> bool:
    """Whether the command line chose some of the tests."""
    return config.args_source.name != "TESTPATHS" or any(config.getoption(name, None) for name in NARROWING)


def commit() -> str:
    """The commit of the working tree, with "+" if files of it were changed."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{RECORD.relative_to(ROOT)}")
    return f"{git('rev-parse', '--short=10', 'HEAD')}{'+' if changed else ''}"


def count(reports: dict[str, list[Any]], outcome: str) -> int:
    """The number of tests with an outcome that do not read the record."""
    return sum(not getattr(report, "nodeid", "").startswith(READERS) for report in reports.get(outcome, []))


def pytest_addoption(parser: Any) -> None:
    """Add the option."""
    parser.addoption("--record-versions", action="store_true", help="write tests/versions.json if all tests ran")


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: Any) -> None:
    """Write the row of this run if the whole suite ran to its end."""
    if not config.getoption("record_versions") or hasattr(config, "workerinput"):
        return
    if narrowed(config) or int(exitstatus) not in (0, 1):
        terminalreporter.write_line("versions.json: not written, because not all tests ran")
        return
    reports = terminalreporter.stats
    row = versions() | {"date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}", "commit": commit()}
    row |= {"passed": count(reports, "passed"), "skipped": count(reports, "skipped")}
    row |= {"failed": count(reports, "failed") + count(reports, "error")}
    rows = json.loads(RECORD.read_text()) if RECORD.exists() else []
    RECORD.write_text(written(updated(rows, row)))
    terminalreporter.write_line(f"versions.json: {json.dumps(row)}")
