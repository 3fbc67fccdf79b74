"""Sums in backward: over the rows of a block, over the blocks of the batch, and over the slices of a product."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["finish_sums", "store_sums", "sum_of_slices"]


@triton.jit
def store_sums(to, values, inside, ADD: tl.constexpr):
    """Store the sum over the rows of the block; with ADD it is added to what an earlier launch stored."""
    total = tl.sum(values, axis=0)
    if ADD:
        total += tl.load(to, mask=inside, other=0.0)
    tl.store(to, total, mask=inside)


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
    """The sum over the first dimension by repeated halving. tl.sum would give every warp the whole result."""
    v = tl.permute(v, (1, 2, 0))
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
