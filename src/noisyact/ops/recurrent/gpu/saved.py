"""What the backward pass of a recurrent layer reads of a step: the gradient of h, and what forward saved."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["position", "saved"]


@triton.jit
def position(i, T, B, offsets_ptr, REVERSE: tl.constexpr, PACKED: tl.constexpr):
    """The step of a round, its first row and size; the first row of the step before, and how many rows have one."""
    t = i if REVERSE else T - 1 - i
    before = t + 1 if REVERSE else t - 1
    if PACKED:
        offset = tl.load(offsets_ptr + t, mask=i < T, other=0)
        size = tl.load(offsets_ptr + t + 1, mask=i < T, other=0) - offset
        offset_before = tl.load(offsets_ptr + before, mask=i < T - 1, other=0)
        known = tl.load(offsets_ptr + before + 1, mask=i < T - 1, other=0) - offset_before
    else:
        offset, offset_before = t * B, before * B
        size, known = tl.where(i < T, B, 0), tl.where(i < T - 1, B, 0)
    return t, offset, size, offset_before, known


@triton.jit
def saved(
    i, T, B, H, m, n, inside, tile, a_ptr, dy_ptr, extra_ptr, state_ptr, state0_ptr, offsets_ptr,
    G: tl.constexpr, HAS_DY: tl.constexpr, HAS_STATE: tl.constexpr, REVERSE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """What forward saved of a step, and dy: the pre-activations; dy; the LSTM's c or the GRU's W_hn h + b_hn; and the
    state before the step, c or h.
    """
    _, offset, size, offset_before, known = position(i, T, B, offsets_ptr, REVERSE, PACKED)
    active = inside & (m < size)[:, None]
    row = (offset + m).to(tl.int64)[:, None]
    a = a_ptr + row * (G * H) + n[None, :]
    a0 = tl.load(a, mask=active, other=0.0).to(tl.float32)
    zero = tl.zeros(a0.shape, tl.float32)
    a1, a2, a3, dy, now, before = zero, zero, zero, zero, zero, zero
    if HAS_DY:
        dy = tl.load(dy_ptr + row * H + n[None, :], mask=active, other=0.0).to(tl.float32)
    if G > 1:
        a1 = tl.load(a + H, mask=active, other=0.0).to(tl.float32)
        a2 = tl.load(a + 2 * H, mask=active, other=0.0).to(tl.float32)
        now = tl.load(extra_ptr + row * H + n[None, :], mask=active, other=0.0).to(tl.float32)
        row_before = (offset_before + m).to(tl.int64)[:, None]
        had = active & (m < known)[:, None]  # rows with a previous step; for the others it is the initial state
        before = tl.load(state_ptr + row_before * H + n[None, :], mask=had, other=0.0).to(tl.float32)
        if HAS_STATE:
            before += tl.load(state0_ptr + tile, mask=active & (m >= known)[:, None], other=0.0).to(tl.float32)
    if G > 3:
        a3 = tl.load(a + 3 * H, mask=active, other=0.0).to(tl.float32)
    return a0, a1, a2, a3, dy, now, before
