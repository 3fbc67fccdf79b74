"""Files that are written whole or not at all, appended lines, a folder's lock, and messages for files that fail."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = [
    "Damaged", "append_line", "in_words", "is_finite", "lines_of", "locked", "named", "read_bytes", "read_json",
    "read_lines", "remove", "remove_leftovers", "text_of", "write_bytes", "write_json", "write_lines", "write_text",
]  # fmt: skip

_PART = ".part"
"""The ending of a file that is being written."""
_WAYS_OUT = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room on that disk"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "choose a place that you may write to"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "choose a place where a folder is or can be made"),
    **dict.fromkeys((errno.EISDIR, errno.EINVAL), "a plain file is needed there"),
}


class Damaged(ValueError):
    """A file of a run that does not hold what a run writes. The message names the file and the way out.

    Args:
        path: the file.
        why: what is wrong with it.
        remedy: the way out.
    """

    def __init__(
        self, path: Path, why: str, remedy: str = "Put the right file back, or do the run again with --force"
    ) -> None:
        super().__init__(f"{path} is damaged: {why}. {remedy}")
        self.path, self.why, self.remedy = path, why, remedy

    def __reduce__(self) -> tuple[Any, ...]:  # it is told to other processes
        return type(self), (self.path, self.why, self.remedy)


def in_words(error: Exception) -> str:
    """An error as a sentence for the user; an error of the operating system names the file and a way out.

    >>> in_words(OSError(errno.ENOSPC, "No space left on device", "out/config.json"))
    'out/config.json: No space left on device; make room on that disk. What was saved before is kept'
    >>> in_words(FileNotFoundError(errno.ENOENT, "No such file or directory", "text.en"))
    'text.en: No such file or directory'
    >>> in_words(FileNotFoundError("data set 'mnist' is not here"))
    "data set 'mnist' is not here"
    """
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    if error.errno == errno.ENOENT:
        return f"{where}{error.strerror}"
    way_out = f"; {_WAYS_OUT[error.errno]}" if error.errno in _WAYS_OUT else ""
    return f"{where}{error.strerror}{way_out}. What was saved before is kept"


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Add the file's name to an error of the operating system: the error of a full disk has none."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # else it has its own message, which a name would hide
            error.filename, error.filename2 = str(path), None
        raise


def write_text(path: Path, text: str) -> None:
    """Replace a file by text, at once; half a surrogate pair, which no file can hold, is escaped."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file at once: at no moment is there half of it. A device or a pipe is left as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with named(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OSError(errno.EINVAL, "Not a plain file")
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PART)
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


def remove(path: Path) -> None:
    """Remove whatever is at a path, a folder with all that is in it; nothing may be there."""
    with named(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what a kill while a file was written has left in a folder, and nothing else."""
    for leftover in folder.glob(f".*{_PART}"):
        remove(leftover)


def read_bytes(path: Path) -> bytes:
    """What a plain file holds. A pipe or a device, which might never end, is refused."""
    if path.exists() and not path.is_file():
        raise Damaged(path, "it is not a plain file")
    with named(path):
        return path.read_bytes()


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON; NaN and infinities, which JSON has not, are refused."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: Path, kind: type = object) -> Any:
    """Read what :func:`write_json` wrote.

    Args:
        path: the file.
        kind: the type that the value must have.

    Raises: Damaged, if it is not JSON or has another type.
    """
    content = read_bytes(path)
    try:
        value = _value(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(path, f"it is not JSON ({error})") from None
    if not isinstance(value, kind):
        raise Damaged(path, f"it has {_KINDS[type(value)]} in place of {_KINDS[kind]}")
    return value


_KINDS = {
    dict: "an object", list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false",
    type(None): "null",
}  # fmt: skip


def is_finite(value: Any) -> bool:
    """Whether a value of any type, such as one read from JSON, is a number that a float can hold.

    >>> is_finite(3), is_finite(True), is_finite("3"), is_finite(float("nan")), is_finite(10**400)
    (True, False, False, False, False)
    """
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def append_line(path: Path, value: Any) -> None:
    """Append a value as one line of JSON, and wait until it is on the disk: checkpoints rely on earlier lines."""
    with named(path), path.open("a", encoding="utf-8") as file:
        file.write(text_of([value]))
        file.flush()
        os.fsync(file.fileno())


def text_of(values: list[Any]) -> str:
    """Values as lines of JSON."""
    return "".join(json.dumps(value, allow_nan=False) + "\n" for value in values)


def write_lines(path: Path, values: list[Any]) -> None:
    """Replace a file of lines of JSON."""
    write_text(path, text_of(values))


def read_lines(path: Path) -> list[Any]:
    """The values of a file of lines of JSON; a last line that a kill has cut short does not count."""
    return lines_of(path, read_bytes(path)) if path.exists() else []


def lines_of(path: Path, content: bytes) -> list[Any]:
    """The values in the content of a file of lines of JSON; the path is for errors."""
    *whole, rest = content.split(b"\n")
    values = []
    for number, line in enumerate(whole, start=1):
        try:
            values.append(_value(line))
        except (ValueError, RecursionError):
            raise Damaged(path, f"line {number} is not JSON ({line[:80]!r})") from None
    with contextlib.suppress(ValueError, RecursionError):
        values.append(_value(rest))
    return values


def _value(text: bytes) -> Any:
    return json.loads(text.decode("utf-8"))


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder and keep other processes out of it; the lock ends with the process."""
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
