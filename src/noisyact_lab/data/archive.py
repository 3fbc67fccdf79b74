"""Extraction of a data set's files from an untrusted archive: zip, tar or tar.gz.

Only requested files are written, under their base names, so a path in the archive never decides where a file goes. An
archive with a malicious path is refused completely all the same, because its other contents cannot be trusted either.
"""

from __future__ import annotations

import gzip
import io
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from noisyact_lab.data.catalog import DataFile
from noisyact_lab.data.store import Refused, store
from noisyact_lab.data.verify import Progress

__all__ = ["take"]

_BLOCK = 1 << 20
_MEMBERS = 100_000
_RATIO = 200
_SLACK = 1 << 20
_HEADERS = 4 << 20
"""Bytes allowed for the headers of a tar file, which has one or two blocks of 512 bytes for each member."""


def take(archive: Path, files: Sequence[DataFile], folder: Path, progress: Progress | None = None) -> list[Path]:
    """Extract the requested files, in whichever folders of an archive they are, to `folder`. Returns their paths.

    Raises: :class:`store.Refused` for an archive that contains `..`, absolute paths, links, devices, duplicate names,
    more than 100,000 members, or too many bytes: 5% more than the requested files or 200 times the archive's size.
    """
    wanted = {form.name: form for file in files for form in file.forms}
    size = archive.stat().st_size
    # An archive that decompresses to more than this is a bomb, whatever sizes its headers state.
    limit = min(int(1.05 * sum(max(f.size for f in file.forms) for file in files)), _RATIO * size) + _SLACK
    with archive.open("rb") as stream:
        magic = stream.read(4)
    opened = _zip if magic[:2] == b"PK" else _tar
    seen = _Seen(archive, limit)
    try:
        # The archive is read twice, because nothing is written before every member has been checked.
        for name, _ in opened(archive, magic, limit, seen):
            seen.file(name, wanted)
        return [
            store(_blocks(content), wanted[base], folder, f"{name} in {archive}", progress)
            for name, content in opened(archive, magic, limit, None)
            if (base := PurePosixPath(name).name) in wanted
        ]
    except _BROKEN as error:
        raise Refused(f"{archive}: not a valid zip, tar or tar.gz file: {error}") from None
    except (RuntimeError, NotImplementedError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused(f"{archive}: cannot be read: {error}") from None  # zipfile's error for encrypted members


_BROKEN = (
    tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, struct.error, EOFError, ValueError,
    OverflowError,
)  # fmt: skip


class _Seen:
    """Checks each member of an archive against the members seen before it."""

    def __init__(self, archive: Path, limit: int) -> None:
        self.archive, self.limit = archive, limit
        self.names: set[str] = set()
        self.taken: set[str] = set()
        self.bytes = 0

    def member(self, name: str, mode: int, size: int) -> None:
        parts = name.removesuffix("/").split("/")
        if "\0" in name or "\\" in name or re.match("[A-Za-z]:", name) or name.startswith("/"):
            self.refuse(name, "not a plain relative path")
        if any(part in ("", ".", "..") for part in parts[1:]) or parts[0] in ("", ".."):
            self.refuse(name, "not a plain relative path")
        if mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX):
            self.refuse(name, f"special mode {mode:o}")
        folded = "/".join(parts).casefold()
        if folded in self.names:
            self.refuse(name, "duplicate name")
        self.names.add(folded)
        self.bytes += size
        if size < 0 or self.bytes > self.limit:
            self.refuse(name, f"more than the {self.limit:,} bytes expected in the archive")
        if len(self.names) > _MEMBERS:
            self.refuse(name, f"more than {_MEMBERS:,} members")

    def file(self, name: str, wanted: dict[str, DataFile]) -> None:
        base = PurePosixPath(name).name
        if base in wanted and base in self.taken:
            self.refuse(name, "duplicate name")
        self.taken.add(base)

    def refuse(self, name: str, why: str) -> None:
        raise Refused(f"{self.archive}: refused for its member {name!r}: {why}")


def _zip(archive: Path, magic: bytes, limit: int, seen: _Seen | None) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            mode = member.external_attr >> 16
            if seen is not None:
                # zipfile cuts a name at a NUL and replaces backslashes on Windows. orig_filename is the stored name.
                seen.member(member.orig_filename, mode, member.file_size)
                if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    seen.refuse(member.filename, "a link or a device")
                if member.header_offset < 0:
                    seen.refuse(member.filename, "its offset is before the start of the archive")
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    seen.refuse(member.filename, f"compression method {member.compress_type}")
            if not member.is_dir():
                with opened.open(member) as content:
                    yield member.filename, content


def _tar(archive: Path, magic: bytes, limit: int, seen: _Seen | None) -> Iterator[tuple[str, IO[bytes]]]:
    compressed = magic[:2] == b"\x1f\x8b"
    with (
        gzip.open(archive) if compressed else archive.open("rb") as raw,
        # tarfile reads an extended header at once, whatever length it states, so the stream itself has the limit.
        tarfile.open(fileobj=_Limited(raw, archive, limit + _HEADERS), mode="r|") as opened,
    ):
        for member in opened:
            if seen is not None:
                seen.member(member.name, member.mode, member.size)
                if not (member.isreg() or member.isdir()) or member.issparse():
                    seen.refuse(member.name, "a link, a device or a sparse file")
            content = opened.extractfile(member) if member.isreg() else None
            if content is not None:
                yield member.name, content


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class _Limited(io.RawIOBase):
    """A stream that refuses the archive once more than `limit` bytes have been read."""

    def __init__(self, stream: _Readable, archive: Path, limit: int) -> None:
        self._stream, self._archive, self._left = stream, archive, limit

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        block = self._stream.read(size)
        self._left -= len(block)
        if self._left < 0:
            raise Refused(f"{self._archive}: refused: it decompresses to more bytes than expected")
        return block


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    while block := stream.read(_BLOCK):
        yield block
