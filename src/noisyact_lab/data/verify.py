"""Verification of a data set's files by size and checksum."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path

from noisyact_lab.data.catalog import DataFile, DataSet, dataset
from noisyact_lab.data.locate import file_in, find

__all__ = ["Progress", "problem_of", "sha256_of", "verify"]

Progress = Callable[[str, int, int], None]
"""A callback that receives a file's name, the bytes processed so far and the file's size."""

_BLOCK = 1 << 20


def verify(name: str | DataSet, progress: Progress | None = None) -> list[str]:
    """Read every file of a data set and return one message for each damaged file.

    Raises: :class:`noisyact_lab.data.locate.Missing` if files are missing.
    """
    chosen = dataset(name)
    folder = find(chosen)
    found = [(path, file) for file in chosen.files if (path := file_in(folder, file)) is not None]
    return [problem for path, file in found if (problem := problem_of(path, file, progress)) is not None]


def problem_of(path: Path, file: DataFile, progress: Progress | None = None) -> str | None:
    """Return what is wrong with one file, or None. A text that the user compressed is checked decompressed."""
    form = next(form for form in file.forms if form.name in (path.name, path.stem))
    packed = None
    if form.name != path.name:
        try:
            packed = {".gz": gzip.open, ".xz": lzma.open}[path.suffix](path).read()
        except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
            return f"{path} is not a valid {path.suffix} file: {error}"
    size = path.stat().st_size if packed is None else len(packed)
    if size != form.size:
        return f"{path} has {size:,} bytes, not {form.size:,}"
    sha256 = sha256_of(path, progress) if packed is None else hashlib.sha256(packed).hexdigest()
    return None if sha256 == form.sha256 else f"{path} has sha256 {sha256}, not {form.sha256}"


def sha256_of(path: Path, progress: Progress | None = None) -> str:
    """Return the SHA-256 checksum of a file."""
    digest, done, size = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            done += len(block)
            if progress is not None:
                progress(path.name, done, size)
    return digest.hexdigest()
