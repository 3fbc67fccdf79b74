"""The masks of zoneout and recurrent dropout on a GPU. StateRules in ../types.py specifies them."""

from __future__ import annotations

import triton
import triton.language as tl

from noisyact.ops.triton.normal import four_words

__all__ = ["LEARNED", "draw_words", "dropout_kernel", "mixed", "zone"]

LEARNED = tl.constexpr(2)
"""The RESET of a layer with `reset_h`; 1 stands for resets to zeros, and 0 for none."""


@triton.jit(do_not_specialize=["limit", "B", "H"])
def dropout_kernel(
    factors_ptr, rows_ptr, seed_ptr, scale, limit, B, H, HAS_ROWS: tl.constexpr, BB: tl.constexpr, BU: tl.constexpr
):
    """Write 0 for the chosen units, and the scale for all others."""
    m = tl.program_id(0) * BB + tl.arange(0, BB)
    n = tl.program_id(1) * BU + tl.arange(0, BU)
    inside = (m < B)[:, None] & (n < H)[None, :]
    row = m
    if HAS_ROWS:
        row = tl.load(rows_ptr + m, mask=m < B, other=0)
    word, _ = draw_words(tl.load(seed_ptr), n, row, 0, 3)
    factors = tl.where(zone(word, limit, True), 0.0, scale)
    tl.store(factors_ptr + m.to(tl.int64)[:, None] * H + n[None, :], factors, mask=inside)


@triton.jit
def draw_words(seed, unit, row, step, block: tl.constexpr):
    """Words 0 and 1 of counter (unit, row, step, block) for every row and unit. Of a row number 32 bits count."""
    zero = (row[:, None] * 0 + unit[None, :] * 0).to(tl.uint32)
    w0, w1, _, _ = four_words(
        seed, zero + unit[None, :].to(tl.uint32), zero + row[:, None].to(tl.uint32), zero + step, zero + block
    )
    return w0, w1


@triton.jit
def zone(words, limit, MASKED: tl.constexpr):
    """The zoneout of a tile for :func:`mixed`: the units whose word is below the limit, or the expectation."""
    if MASKED:
        return words < limit.to(tl.uint32)
    else:
        return limit.to(tl.uint32).to(tl.float32) * 2.3283064365386963e-10  # 2^-32


@triton.jit
def mixed(chosen, old, new, MASKED: tl.constexpr):
    """The old values in the units of a zone, and the new ones in the others; without masks the expectation."""
    if MASKED:
        return tl.where(chosen, old, new)
    else:
        return chosen * old + (1.0 - chosen) * new
