"""Files that are written whole or not at all, and lines that are appended whole."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = [
    "alone_in", "append_line", "read_json", "read_lines", "write_bytes", "write_json", "write_lines", "write_text",
]  # fmt: skip


def write_text(path: Path, text: str) -> None:
    """Replace a file by text, at once."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file at once: at no moment is there half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON; NaN and infinities, which JSON has not, are refused."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read what :func:`write_json` wrote; the error names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def append_line(path: Path, value: Any) -> None:
    """Append a value as one line of JSON; it is on the disk before a checkpoint that counts on it."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(value, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def write_lines(path: Path, values: list[Any]) -> None:
    """Replace a file of lines of JSON."""
    write_text(path, "".join(json.dumps(value, allow_nan=False) + "\n" for value in values))


def read_lines(path: Path) -> list[Any]:
    """The values of a file of lines of JSON; a last line that a kill has cut short does not count."""
    if not path.exists():
        return []
    values = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            values.append(json.loads(line))
        except ValueError:
            if line.endswith("\n"):
                raise ValueError(f"{path}: not JSON: {line[:80]!r}") from None
    return values


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make the folder and keep other processes out of it; a process that is killed leaves it free."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder}: another process is at work here") from None
        yield
    finally:
        os.close(handle)
