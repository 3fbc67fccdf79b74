"""The pointwise part of one step of a layer: from the recurrent product to the new h, in one launch.

The results must equal ../../reference.py; ../../README.md explains the notation.
"""

from __future__ import annotations

import triton
import triton.language as tl

from noisyact.ops.recurrent.gpu.cells import GRU, LSTM, draw_four, gru_values, lstm_values, per_unit, tanh
from noisyact.ops.recurrent.gpu.steps.state import end_step, keep_masks, mixed, places, state_before

__all__ = ["POSITION", "forward_kernel", "state_kernel"]

POSITION: tuple[str, ...] = ("step", "offset", "size", "offset_before", "known", "offset_after", "later")
"""The last arguments of all kernels, which differ from step to step.

step: the step in the counters of the noise. offset: the first row of the step, of `size`. offset_before, known: the
first row of the step before in the order of the recurrence, and how many rows have one. offset_after, later: the same
for the step after.
"""


@triton.jit(
    do_not_specialize=["total", *POSITION],
    do_not_specialize_on_alignment=["seed_ptr", "mask_seed_ptr", "kept_gate_scale_ptr", "kept_state_scale_ptr"],
)
def forward_kernel(
    a_ptr, q_ptr, bh_ptr, p_ptr, seed_ptr, gate_scale_ptr, state_scale_ptr, kept_gate_scale_ptr, kept_state_scale_ptr,
    h0_ptr, c0_ptr, state_ptr, y_ptr, m_ptr, extra_ptr, hn_ptr, cn_ptr, reset_ptr, reset_h_ptr, reset_c_ptr, rows_ptr,
    mask_seed_ptr, dropout_ptr, seen_ptr,
    total, H, step, offset, size, offset_before, known, offset_after, later,
    KIND: tl.constexpr, HAS_STATE: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_P: tl.constexpr, DRAW: tl.constexpr,
    KEEP: tl.constexpr, KEEP_SCALES: tl.constexpr, PROJECTED: tl.constexpr,
    GATE: tl.constexpr, GATE_LEAK: tl.constexpr, GATE_CLIP: tl.constexpr,
    STATE: tl.constexpr, STATE_LEAK: tl.constexpr, STATE_CLIP: tl.constexpr, IS_HARD: tl.constexpr,
    RESET: tl.constexpr, RESET_STATE: tl.constexpr, ROWS: tl.constexpr, DROPOUT: tl.constexpr,
    DRAW_MASKS: tl.constexpr, ZONEOUT_H: tl.constexpr, ZONEOUT_C: tl.constexpr, LIMIT_H: tl.constexpr,
    LIMIT_C: tl.constexpr, NUMBER: tl.constexpr, BB: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """Run one step.

    a: [total, G H], the pre-activations with their biases; for the GRU the input's part of them, and q: [B, 3 H] the
    recurrent product, whose bias for n is added here. h0, c0, hn and cn: [B, H]. state: [B, H] in NUMBER, the running c
    or, for the GRU, h. y: [total, H]. m: if PROJECTED, [B, H], written instead of y and hn. extra: with KEEP, [total,
    H], the LSTM's c or the GRU's W_hn h + b_hn, and with ZONEOUT_C the c after zoneout in `total` further rows. seen:
    [B, H], h as the next recurrent product sees it, with RESET or DROPOUT.
    """
    G: tl.constexpr = 4 if KIND == LSTM else (3 if KIND == GRU else 1)
    m = tl.program_id(0) * BB + tl.arange(0, BB)
    n = tl.program_id(1) * BU + tl.arange(0, BU)
    in_units = n < H
    active = (m < size)[:, None] & in_units[None, :]
    had, fresh = active & (m < known)[:, None], active & (m >= known)[:, None]
    tile = m.to(tl.int64)[:, None] * H + n[None, :]
    row = (offset + m).to(tl.int64)[:, None]
    dtype = y_ptr.dtype.element_ty
    gate_scale, state_scale = tl.load(gate_scale_ptr).to(NUMBER), tl.load(state_scale_ptr).to(NUMBER)
    if KEEP_SCALES:  # backward must use the scales of this pass, which may be changed before it
        if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
            tl.store(kept_gate_scale_ptr, tl.load(gate_scale_ptr).to(tl.float32))
            tl.store(kept_state_scale_ptr, tl.load(state_scale_ptr).to(tl.float32))
    place = places(rows_ptr, m, m < size, ROWS)
    again = had
    if RESET:
        again = tl.load(reset_ptr + offset + m, mask=m < size, other=0)[:, None] != 0
    word_h, word_c = tile, tile
    if DRAW_MASKS:
        word_h, word_c = keep_masks(mask_seed_ptr, n, place, step)
    zero = tl.zeros((BB, BU), NUMBER)
    xi0, xi1, xi2, xi3, xi4 = zero, zero, zero, zero, zero
    if DRAW:
        seed = tl.load(seed_ptr)
        xi0, xi1, xi2, xi3 = draw_four(seed, n, place, step, 0, NUMBER)
        if KIND == LSTM:
            xi4, _, _, _ = draw_four(seed, n, place, step, 1, NUMBER)
    a = a_ptr + row * (G * H) + n[None, :]
    a0 = tl.load(a, mask=active, other=0.0).to(NUMBER)
    p0 = per_unit(p_ptr, n, in_units, HAS_P, 1.0, NUMBER)
    if G > 1:
        a1 = tl.load(a + H, mask=active, other=0.0).to(NUMBER)
        a2 = tl.load(a + 2 * H, mask=active, other=0.0).to(NUMBER)
        p1 = per_unit(p_ptr, H + n, in_units, HAS_P, 1.0, NUMBER)
        p2 = per_unit(p_ptr, 2 * H + n, in_units, HAS_P, 1.0, NUMBER)
    if KIND == LSTM:
        a3 = tl.load(a + 3 * H, mask=active, other=0.0).to(NUMBER)
        p3 = per_unit(p_ptr, 3 * H + n, in_units, HAS_P, 1.0, NUMBER)
        p4 = per_unit(p_ptr, 4 * H + n, in_units, HAS_P, 1.0, NUMBER)
        old = state_before(
            state_ptr, tile, had, c0_ptr, tile, fresh, again, reset_c_ptr, NUMBER, HAS_STATE, RESET, RESET_STATE
        )  # fmt: skip
        new, c, kept = lstm_values(
            a0, a1, a2, a3, old, p0, p1, p2, p3, p4, xi0, xi1, xi2, xi3, xi4, gate_scale, state_scale, dtype,
            GATE, GATE_LEAK, GATE_CLIP, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW,
        )  # fmt: skip
        if ZONEOUT_C > 0.0:
            c = mixed(c, old, word_c, ZONEOUT_C, LIMIT_C, DRAW_MASKS)
            if KEEP:
                tl.store(extra_ptr + (total + row) * H + n[None, :], c.to(dtype), mask=active)
        tl.store(state_ptr + tile, c, mask=active)
        tl.store(cn_ptr + tile, c.to(dtype), mask=active & (m >= later)[:, None])
        if KEEP:
            tl.store(extra_ptr + row * H + n[None, :], kept, mask=active)
    elif KIND == GRU:
        q = q_ptr + m.to(tl.int64)[:, None] * (3 * H) + n[None, :]
        has_product = active
        if not (HAS_STATE or RESET_STATE):
            has_product = had
        a0 = (a0 + tl.load(q, mask=has_product, other=0.0).to(NUMBER)).to(dtype).to(NUMBER)
        a1 = (a1 + tl.load(q + H, mask=has_product, other=0.0).to(NUMBER)).to(dtype).to(NUMBER)
        q2 = tl.load(q + 2 * H, mask=has_product, other=0.0).to(NUMBER)
        kept = (q2 + per_unit(bh_ptr, 2 * H + n, in_units, HAS_BIAS, 0.0, NUMBER)).to(dtype)
        old = state_before(
            state_ptr, tile, had, h0_ptr, tile, fresh, again, reset_h_ptr, NUMBER, HAS_STATE, RESET, RESET_STATE
        )  # fmt: skip
        new, a2 = gru_values(
            a0, a1, a2, kept.to(NUMBER), old, p0, p1, p2, xi0, xi1, xi2, gate_scale, state_scale, dtype,
            GATE, GATE_LEAK, GATE_CLIP, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW,
        )  # fmt: skip
        if ZONEOUT_H > 0.0:
            new = mixed(new, old, word_h, ZONEOUT_H, LIMIT_H, DRAW_MASKS)
        tl.store(state_ptr + tile, new, mask=active)
        if KEEP:
            tl.store(a, a0.to(dtype), mask=active)
            tl.store(a + H, a1.to(dtype), mask=active)
            tl.store(a + 2 * H, a2.to(dtype), mask=active)
            tl.store(extra_ptr + row * H + n[None, :], kept, mask=active)
    else:
        new = tanh(a0, p0, xi0, state_scale, KIND, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW)
    if PROJECTED:
        tl.store(m_ptr + tile, new.to(dtype), mask=active)
    else:
        if ZONEOUT_H > 0.0 and KIND != GRU:
            before = (offset_before + m).to(tl.int64)[:, None] * H + n[None, :]
            old = state_before(
                y_ptr, before, had, h0_ptr, tile, fresh, again, reset_h_ptr, NUMBER, HAS_STATE, RESET, RESET_STATE
            )  # fmt: skip
            new = mixed(new, old, word_h, ZONEOUT_H, LIMIT_H, DRAW_MASKS)
        end_step(
            new, y_ptr, hn_ptr, seen_ptr, dropout_ptr, reset_ptr, reset_h_ptr, m, n, H, active, offset, offset_after,
            later, NUMBER, RESET, RESET_STATE, DROPOUT,
        )  # fmt: skip


@triton.jit(do_not_specialize=[*POSITION], do_not_specialize_on_alignment=["mask_seed_ptr"])
def state_kernel(
    h0_ptr, y_ptr, hn_ptr, reset_ptr, reset_h_ptr, rows_ptr, mask_seed_ptr, dropout_ptr, seen_ptr,
    H, step, offset, size, offset_before, known, offset_after, later,
    HAS_STATE: tl.constexpr, RESET: tl.constexpr, RESET_STATE: tl.constexpr, ROWS: tl.constexpr,
    DROPOUT: tl.constexpr, DRAW_MASKS: tl.constexpr, ZONEOUT_H: tl.constexpr, LIMIT_H: tl.constexpr,
    NUMBER: tl.constexpr, BB: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """Apply the rules to the projected h of one step, which is in y: [total, H]."""
    m = tl.program_id(0) * BB + tl.arange(0, BB)
    n = tl.program_id(1) * BU + tl.arange(0, BU)
    active = (m < size)[:, None] & (n < H)[None, :]
    tile = m.to(tl.int64)[:, None] * H + n[None, :]
    h = tl.load(y_ptr + (offset + m).to(tl.int64)[:, None] * H + n[None, :], mask=active, other=0.0).to(NUMBER)
    if ZONEOUT_H > 0.0:
        had, fresh = active & (m < known)[:, None], active & (m >= known)[:, None]
        again, word = had, tile
        if RESET:
            again = tl.load(reset_ptr + offset + m, mask=m < size, other=0)[:, None] != 0
        if DRAW_MASKS:
            word, _ = keep_masks(mask_seed_ptr, n, places(rows_ptr, m, m < size, ROWS), step)
        before = (offset_before + m).to(tl.int64)[:, None] * H + n[None, :]
        old = state_before(
            y_ptr, before, had, h0_ptr, tile, fresh, again, reset_h_ptr, NUMBER, HAS_STATE, RESET, RESET_STATE
        )  # fmt: skip
        h = mixed(h, old, word, ZONEOUT_H, LIMIT_H, DRAW_MASKS)
    end_step(
        h, y_ptr, hn_ptr, seen_ptr, dropout_ptr, reset_ptr, reset_h_ptr, m, n, H, active, offset, offset_after, later,
        NUMBER, RESET, RESET_STATE, DROPOUT,
    )  # fmt: skip
