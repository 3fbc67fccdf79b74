"""Sums in backward: over the rows of a block, over the blocks of the batch, and over the slices of a product."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "add_five_sums",
    "add_four_sums",
    "add_three_sums",
    "finish_sums",
    "store_sums",
    "sum_of_slices",
    "sum_over_last",
]


@triton.jit
def store_sums(to, values, inside, ADD: tl.constexpr):
    """Store the sum over the rows of the block; with ADD it is added to what an earlier launch stored."""
    total = tl.sum(values, axis=0)
    if ADD:
        total += tl.load(to, mask=inside, other=0.0)
    tl.store(to, total, mask=inside)


@triton.jit
def _add(to, total, inside):
    tl.store(to, total + tl.load(to, mask=inside, other=0.0), mask=inside)


@triton.jit
def _three(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def _four(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def _five(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4


@triton.jit
def add_three_sums(to, H, v0, v1, v2, inside):
    """Add the sums over the rows of three tiles to what earlier launches stored, H numbers apart.

    The sums of several tiles in one reduction need the synchronisations of one.
    """
    t0, t1, t2 = tl.reduce((v0, v1, v2), 0, _three)
    _add(to, t0, inside)
    _add(to + H, t1, inside)
    _add(to + 2 * H, t2, inside)


@triton.jit
def add_four_sums(to, H, v0, v1, v2, v3, inside):
    """The same for four tiles."""
    t0, t1, t2, t3 = tl.reduce((v0, v1, v2, v3), 0, _four)
    _add(to, t0, inside)
    _add(to + H, t1, inside)
    _add(to + 2 * H, t2, inside)
    _add(to + 3 * H, t3, inside)


@triton.jit
def add_five_sums(to, H, v0, v1, v2, v3, v4, inside):
    """The same for five tiles."""
    t0, t1, t2, t3, t4 = tl.reduce((v0, v1, v2, v3, v4), 0, _five)
    _add(to, t0, inside)
    _add(to + H, t1, inside)
    _add(to + 2 * H, t2, inside)
    _add(to + 3 * H, t3, inside)
    _add(to + 4 * H, t4, inside)


@triton.jit
def finish_sums(sums_ptr, out_ptr, n, in_units, H, blocks, SUMS: tl.constexpr, WIDE: tl.constexpr, G: tl.constexpr,
                IS_GRU: tl.constexpr):  # fmt: skip
    """Add the sums of the blocks of the batch in order, and store the gradients of p, b_ih and b_hh."""
    j = tl.arange(0, 16)[:, None]
    inside = (j < SUMS + WIDE) & in_units[None, :]
    at = sums_ptr + j * H + n[None, :]
    total = tl.load(at, mask=inside, other=0.0, cache_modifier=".cg")
    for block in range(1, blocks):
        total += tl.load(at + block * (SUMS + WIDE) * H, mask=inside, other=0.0, cache_modifier=".cg")
    to_ih, to_hh, for_ih, for_hh = j, j + G, inside, inside & (j >= SUMS)
    if IS_GRU:  # n has two gradients: through the recurrent product for b_hh, through the input for b_ih
        to_ih = tl.where(j == SUMS + 3, j - 1, j)
        for_ih, for_hh = inside & (j != SUMS + 2), for_hh & (j != SUMS + 3)
    tl.store(out_ptr + to_ih * H + n[None, :], total, mask=for_ih)
    tl.store(out_ptr + to_hh * H + n[None, :], total, mask=for_hh)


@triton.jit
def sum_of_slices(v):
    """The sum over the first dimension."""
    return sum_over_last(tl.permute(v, (1, 2, 0)))


@triton.jit
def sum_over_last(v):
    """The sum over the last of three dimensions by repeated halving. tl.sum would give every warp the whole result."""
    if v.shape[2] >= 16:
        v = _halved(v)
    if v.shape[2] >= 8:
        v = _halved(v)
    if v.shape[2] >= 4:
        v = _halved(v)
    if v.shape[2] >= 2:
        left, right = tl.split(v)
        return left + right
    else:
        return tl.reshape(v, (v.shape[0], v.shape[1]))


@triton.jit
def _halved(v):
    left, right = tl.split(tl.reshape(v, (v.shape[0], v.shape[1], v.shape[2] // 2, 2)))
    return left + right
