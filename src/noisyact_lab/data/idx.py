"""The IDX format of MNIST: two zero bytes, a type, the number of dimensions, their sizes, then the values."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["read"]


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


_UBYTE = 8
_BLOCK = 1 << 20
_LIMIT = 1 << 28


def read(path: Path, dimensions: int) -> Tensor:
    """The uint8 tensor in an IDX file, plain or compressed (.gz).

    Memory grows with what the file really holds, so that a header that lies costs nothing.

    Args:
        path: of the file.
        dimensions: how many it must have: 3 for images, 1 for labels.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "labels"
    ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
    ...     read(path, 1)
    tensor([7, 2, 1], dtype=torch.uint8)
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            sizes = _sizes(path, _block(stream, 4), stream, dimensions)
            values = _block(stream, math.prod(sizes))
            more = stream.read(1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: not a whole gzip file: {error}") from None
    if len(values) != math.prod(sizes) or more:
        held = f"more than {len(values):,}" if more else f"{len(values):,}"
        raise ValueError(f"{path}: its header says {sizes}, {math.prod(sizes):,} bytes, but it holds {held}")
    return torch.frombuffer(values, dtype=torch.uint8).view(sizes)


def _sizes(path: Path, magic: bytearray, stream: _Readable, dimensions: int) -> tuple[int, ...]:
    wanted = bytes([0, 0, _UBYTE, dimensions])
    if magic != wanted:
        raise ValueError(
            f"{path}: begins with {magic.hex(' ') or 'nothing'}, not {wanted.hex(' ')} (IDX, bytes, {dimensions} "
            f"dimension{'s' if dimensions > 1 else ''})"
        )
    header = _block(stream, 4 * dimensions)
    if len(header) != 4 * dimensions:
        raise ValueError(f"{path}: ends within its header, after {4 + len(header)} bytes")
    sizes = struct.unpack(f">{dimensions}I", header)
    if not 0 < math.prod(sizes) <= _LIMIT:
        raise ValueError(f"{path}: its header says {sizes}; allowed are 1 to {_LIMIT:,} bytes")
    return sizes


def _block(stream: _Readable, size: int) -> bytearray:
    """So many bytes, or fewer where the stream ends."""
    values = bytearray()
    while len(values) < size and (block := stream.read(min(_BLOCK, size - len(values)))):
        values += block
    return values
