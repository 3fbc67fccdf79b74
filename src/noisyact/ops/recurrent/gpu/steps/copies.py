"""Copies of matrices with more or with fewer rows and columns, several in one launch.

A copy by torch is two launches and several views, each of which costs the host more than the GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from noisyact.ops.triton.launch import Launcher

__all__ = ["Copy", "copy_all"]

_MOST = 8
"""The number of copies of a launch."""
_LINES, _COLUMNS = 8, 256
"""The lines and columns of a program."""


class Copy(NamedTuple):
    """``to[g, :, :] = source[g, :, :]``, where both have an element; zero where only `to` has it."""

    source: Tensor
    to: Tensor
    groups: int
    rows: int
    """The number of rows of a group of the source."""
    columns: int
    wide_rows: int
    """The number of rows of a group of `to`."""
    wide_columns: int


@triton.jit
def _copy(source_ptr, to_ptr, lines, rows, columns, wide_rows, wide_columns, BL: tl.constexpr, BC: tl.constexpr):
    line = tl.program_id(0) * BL + tl.arange(0, BL)
    column = tl.program_id(1) * BC + tl.arange(0, BC)
    group, row = line // wide_rows, line % wide_rows
    found = ((line < lines) & (row < rows))[:, None] & (column < columns)[None, :]
    place = (group * rows + row).to(tl.int64)[:, None] * columns + column[None, :]
    values = tl.load(source_ptr + place, found, 0.0)
    inside = (line < lines)[:, None] & (column < wide_columns)[None, :]
    tl.store(to_ptr + line.to(tl.int64)[:, None] * wide_columns + column[None, :], values, inside)


_POINTERS = [f"{name}{i}" for i in range(_MOST) for name in ("s", "d")]
_SIZES = [f"{name}{i}" for i in range(_MOST) for name in ("n", "r", "c", "w", "v")]


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_POINTERS)
def copies_kernel(
    s0, d0, s1, d1, s2, d2, s3, d3, s4, d4, s5, d5, s6, d6, s7, d7,
    n0, r0, c0, w0, v0, n1, r1, c1, w1, v1, n2, r2, c2, w2, v2, n3, r3, c3, w3, v3, n4, r4, c4, w4, v4,
    n5, r5, c5, w5, v5, n6, r6, c6, w6, v6, n7, r7, c7, w7, v7,
    COUNT: tl.constexpr, BL: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Copy s to d in COUNT copies. n: the lines of d, r and c: a source's rows and columns, w and v: those of d."""
    which = tl.program_id(2)
    if which == 0:
        _copy(s0, d0, n0, r0, c0, w0, v0, BL, BC)
    if COUNT > 1:
        if which == 1:
            _copy(s1, d1, n1, r1, c1, w1, v1, BL, BC)
    if COUNT > 2:
        if which == 2:
            _copy(s2, d2, n2, r2, c2, w2, v2, BL, BC)
    if COUNT > 3:
        if which == 3:
            _copy(s3, d3, n3, r3, c3, w3, v3, BL, BC)
    if COUNT > 4:
        if which == 4:
            _copy(s4, d4, n4, r4, c4, w4, v4, BL, BC)
    if COUNT > 5:
        if which == 5:
            _copy(s5, d5, n5, r5, c5, w5, v5, BL, BC)
    if COUNT > 6:
        if which == 6:
            _copy(s6, d6, n6, r6, c6, w6, v6, BL, BC)
    if COUNT > 7:
        if which == 7:
            _copy(s7, d7, n7, r7, c7, w7, v7, BL, BC)


def copy_all(copies: Sequence[Copy]) -> None:
    """Make all copies. Their tensors are contiguous, of one dtype and on the current device."""
    for first in range(0, len(copies), _MOST):
        own = copies[first : first + _MOST]
        tensors: list[Tensor | None] = []
        numbers: list[int] = []
        lines = columns = 0
        for source, to, groups, rows, narrow, wide_rows, wide in own:
            tensors += source, to
            numbers += groups * wide_rows, rows, narrow, wide_rows, wide
            lines, columns = max(lines, groups * wide_rows), max(columns, wide)
        missing = _MOST - len(own)
        grid = -(-lines // _LINES), -(-columns // _COLUMNS), len(own)
        _launcher(len(own), own[0].to.dtype)(
            grid, (*tensors, *(None,) * (2 * missing)), (*numbers, *(0,) * (5 * missing))
        )


@functools.cache
def _launcher(count: int, dtype: torch.dtype) -> Launcher:
    """A launcher for tensors of one dtype, because it does not look at the dtype."""
    return Launcher(copies_kernel, {"COUNT": count, "BL": _LINES, "BC": _COLUMNS})
