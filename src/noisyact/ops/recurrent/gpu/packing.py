"""Copies of the recurrent weights for each program: padded, aligned and in the order in which it reads them."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["pack_columns", "pack_lines", "pack_team_columns"]


@triton.jit
def pack_lines(w_ptr, packed, line, row, is_line, H, P):
    """Pack for forward: the lines of a program's units, each padded with zeros up to P."""
    k = tl.arange(0, 128)
    weights = w_ptr + row[:, None] * H + k[None, :]
    to = packed + line[:, None] * P + k[None, :]
    for k0 in range(0, P, 128):
        part = tl.load(weights + k0, mask=is_line[:, None] & (k0 + k < H)[None, :], other=0.0)
        tl.store(to + k0, part, mask=(k0 + k < P)[None, :])
    tl.debug_barrier()


@triton.jit
def pack_columns(w_ptr, packed, n, in_units, H, P, G: tl.constexpr, BU: tl.constexpr):
    """Pack for backward: the columns of a program's units."""
    PART: tl.constexpr = 8192 // BU
    k = tl.arange(0, PART)
    to = packed + k[:, None] * BU + tl.arange(0, BU)[None, :]
    for k0 in range(0, G * P, PART):
        place = (k0 + k) % P
        weights = w_ptr + (((k0 + k) // P) * H + place)[:, None] * H + n[None, :]
        left = (k0 + k < G * P)[:, None]
        columns = tl.load(weights, mask=left & (place < H)[:, None] & in_units[None, :], other=0.0)
        tl.store(to + k0 * BU, columns, mask=left)
    tl.debug_barrier()


@triton.jit
def pack_team_columns(w_ptr, packed, line, columns, start, slice_size, H, P, G: tl.constexpr):
    """Pack for backward by teams: a slice of the inner dimension of a team's columns. The inner dimension is last."""
    k = tl.arange(0, 128)
    to = packed + line[None, :] * slice_size + k[:, None]
    for k0 in range(0, slice_size, 128):
        inner = start + k0 + k
        gate = inner * 0
        for after in tl.static_range(1, G):  # comparisons, because divisions would take longer than the copy
            gate += (inner >= after * P).to(tl.int32)
        weights = w_ptr + (inner - gate * (P - H))[:, None] * H + columns[None, :]
        is_weight = ((k0 + k < slice_size) & (inner - gate * P < H))[:, None] & (columns < H)[None, :]
        tl.store(to + k0, tl.load(weights, mask=is_weight, other=0.0), mask=(k0 + k < slice_size)[:, None])
    tl.debug_barrier()
