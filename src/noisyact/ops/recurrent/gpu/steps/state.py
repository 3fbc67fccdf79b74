"""The state between two steps in Triton: the value before a step, zoneout, and what the next recurrent product sees.

The compile-time constants come from StateRules: RESET, whether rows may be reset, and RESET_STATE, whether to a given
state; DROPOUT; ZONEOUT_H and ZONEOUT_C, the rates; and DRAW_MASKS, which selects masks or their expectation.
"""

from __future__ import annotations

import triton
import triton.language as tl

from noisyact.ops.recurrent.gpu.cells import draw_words

__all__ = ["end_step", "keep_masks", "mixed", "places", "state_before", "taken_back"]


@triton.jit
def places(rows_ptr, m, in_batch, ROWS: tl.constexpr):
    """The rows in the counters of the noise: those of the rules if ROWS, else the rows of the batch."""
    if ROWS:
        return (tl.load(rows_ptr + m, mask=in_batch, other=0) & 0xFFFFFFFF).to(tl.uint32)
    else:
        return m.to(tl.uint32)


@triton.jit
def state_before(
    ptr, at, had, first_ptr, tile, fresh, again, reset_ptr, NUMBER: tl.constexpr, HAS_FIRST: tl.constexpr,
    RESET: tl.constexpr, RESET_STATE: tl.constexpr,
):  # fmt: skip
    """The state before a step: of the step before where there is one (`had`), of the first in `fresh`, or a reset's."""
    value = tl.load(ptr + at, mask=had, other=0.0).to(NUMBER)
    if HAS_FIRST:
        value += tl.load(first_ptr + tile, mask=fresh, other=0.0).to(NUMBER)
    if RESET:
        other = tl.zeros_like(value)
        if RESET_STATE:
            other = tl.load(reset_ptr + tile, mask=again & (had | fresh), other=0.0).to(NUMBER)
        value = tl.where(again, other, value)
    return value


@triton.jit
def keep_masks(seed_ptr, n, place, step):
    """The words for the masks of h and of c, int64."""
    for_h, for_c = draw_words(tl.load(seed_ptr), n, place, step, 2)
    return for_h.to(tl.int64), for_c.to(tl.int64)


@triton.jit
def mixed(new, old, word, RATE: tl.constexpr, LIMIT: tl.constexpr, DRAW_MASKS: tl.constexpr):
    """Zoneout: the old value where the word chooses it, or the expectation."""
    if DRAW_MASKS:
        return tl.where(word < LIMIT, old, new)
    else:
        return RATE * old + (1.0 - RATE) * new


@triton.jit
def taken_back(d, word, RATE: tl.constexpr, LIMIT: tl.constexpr, DRAW_MASKS: tl.constexpr):
    """The gradients of zoneout's two arguments, the new and the old value."""
    if DRAW_MASKS:
        zero = tl.zeros_like(d)
        return tl.where(word < LIMIT, zero, d), tl.where(word < LIMIT, d, zero)
    else:
        return (1.0 - RATE) * d, RATE * d


@triton.jit
def end_step(
    h, y_ptr, hn_ptr, seen_ptr, dropout_ptr, reset_ptr, reset_h_ptr, m, n, H, active, offset, offset_after, later,
    NUMBER: tl.constexpr, RESET: tl.constexpr, RESET_STATE: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Store h, the final h of sequences that end here, and h as the next recurrent product sees it."""
    dtype = y_ptr.dtype.element_ty
    at = (offset + m).to(tl.int64)[:, None] * H + n[None, :]
    tile = m.to(tl.int64)[:, None] * H + n[None, :]
    tl.store(y_ptr + at, h.to(dtype), mask=active)
    tl.store(hn_ptr + tile, h.to(dtype), mask=active & (m >= later)[:, None])
    if RESET or DROPOUT:
        seen = h.to(dtype).to(NUMBER)
        if RESET:
            again = tl.load(reset_ptr + offset_after + m, mask=m < later, other=0)[:, None] != 0
            other = tl.zeros_like(seen)
            if RESET_STATE:
                other = tl.load(reset_h_ptr + tile, mask=again & active, other=0.0).to(NUMBER)
            seen = tl.where(again, other, seen)
        if DROPOUT:
            seen *= tl.load(dropout_ptr + tile, mask=active, other=0.0)
        tl.store(seen_ptr + tile, seen.to(dtype), mask=active)
