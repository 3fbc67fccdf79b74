"""Atomic, verified writes: a file is written under a temporary name, checked, and then renamed."""

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
    """A file or archive was refused. The message gives the reason."""


def store(blocks: Iterable[bytes], file: DataFile, folder: Path, origin: str, progress: Progress | None = None) -> Path:
    """Write blocks to `name.part`, check size and checksum, and rename it. :class:`Refused` if the check fails."""
    part = folder / f"{file.name}.part"
    digest, done = hashlib.sha256(), 0
    try:
        with part.open("wb") as stream:
            for block in blocks:
                done += len(block)
                if done > file.size:
                    raise Refused(f"{origin} is larger than the {file.size:,} bytes of {file.name}; removed")
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
    """Create a folder and lock it. Other processes wait. The lock of a killed process is released by the system."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / ".lock").open("ab")
    except OSError as error:
        raise Refused(f"cannot write to {folder} ({error.strerror}); set NOISYACT_DATA to use another folder") from None
    with stream:
        if sys.platform == "win32":
            import msvcrt

            while True:
                with contextlib.suppress(OSError):  # locking() raises after ten seconds
                    msvcrt.locking(stream.fileno(), msvcrt.LK_LOCK, 1)
                    break
        else:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
