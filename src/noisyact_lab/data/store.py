"""Putting a file in place: written beside it, checked, then renamed, so that what has its name is what it should be."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from noisyact_lab.data.catalog import DataFile
from noisyact_lab.data.verify import Progress

__all__ = ["Refused", "locked", "store"]


class Refused(RuntimeError):
    """A file or archive that was not accepted; the message says why."""


def store(blocks: Iterable[bytes], file: DataFile, folder: Path, origin: str, progress: Progress | None = None) -> Path:
    """Write the blocks to `name.part` in a folder and rename it, if size and checksum are right; else nothing stays."""
    part = folder / f"{file.name}.part"
    digest, done = hashlib.sha256(), 0
    try:
        with part.open("wb") as stream:
            for block in blocks:
                done += len(block)
                if done > file.size:
                    raise Refused(f"{origin} is larger than the {file.size:,} bytes that {file.name} has; removed")
                digest.update(block)
                stream.write(block)
                if progress is not None:
                    progress(file.name, done, file.size)
            stream.flush()
            os.fsync(stream.fileno())
        if done != file.size:
            raise Refused(f"{origin} ended after {done:,} of the {file.size:,} bytes of {file.name}; removed")
        if digest.hexdigest() != file.sha256:
            raise Refused(f"{origin} has sha256 {digest.hexdigest()}, but {file.name} has {file.sha256}; removed")
        return part.replace(folder / file.name)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder and hold it for this process alone; others wait. A process that dies lets go."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / ".lock").open("ab")
    except OSError as error:
        raise Refused(f"cannot write to {folder} ({error.strerror}); NOISYACT_DATA can name another folder") from None
    with stream:
        if sys.platform == "win32":
            import msvcrt

            while True:
                with contextlib.suppress(OSError):  # it gives up after ten seconds
                    msvcrt.locking(stream.fileno(), msvcrt.LK_LOCK, 1)
                    break
        else:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
