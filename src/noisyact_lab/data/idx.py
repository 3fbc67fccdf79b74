"""Reader for MNIST's IDX format: two zero bytes, a type, the number of dimensions, their sizes, then the values."""

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
    """Read the uint8 tensor in an IDX file, plain or compressed (.gz).

    Memory is allocated for the bytes in the file, not for the sizes in its header, so a wrong header is harmless.

    Args:
        path: the file.
        dimensions: the number of dimensions the tensor must have: 3 for images, 1 for labels.

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
        raise ValueError(f"{path}: not a valid gzip file: {error}") from None
    if len(values) != math.prod(sizes) or more:
        held = f"more than {len(values):,}" if more else f"{len(values):,}"
        raise ValueError(f"{path}: the header states {sizes}, {math.prod(sizes):,} bytes, but the file holds {held}")
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
        raise ValueError(f"{path}: the header states {sizes}; allowed are 1 to {_LIMIT:,} bytes")
    return sizes


def _block(stream: _Readable, size: int) -> bytearray:
    """Read `size` bytes, or fewer if the stream ends before."""
    values = bytearray()
    while len(values) < size and (block := stream.read(min(_BLOCK, size - len(values)))):
        values += block
    return values
