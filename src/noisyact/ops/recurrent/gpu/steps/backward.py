"""The gradient of the pointwise part of one step, in one launch; the steps are processed from the last to the first.

The results must equal the gradients of ../../reference.py; ../../README.md derives them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from noisyact.ops.recurrent.gpu.cells import (
    GRU,
    LSTM,
    draw_four,
    gru_factors,
    lstm_factors,
    per_unit,
    sigm,
    tanh,
    tanh_d,
)
from noisyact.ops.recurrent.gpu.steps.forward import POSITION
from noisyact.ops.recurrent.gpu.steps.state import keep_masks, places, state_before, taken_back
from noisyact.ops.recurrent.gpu.sums import add_five_sums, add_four_sums, add_three_sums, store_sums

__all__ = ["backward_kernel", "state_backward_kernel"]


@triton.jit
def _owed_h(
    dh_ptr, carry_h_ptr, dy_ptr, dhn_ptr, dreset_h_ptr, reset_ptr, dropout_ptr, m, n, H, active, offset, offset_after,
    later, NUMBER: tl.constexpr, HAS_DY: tl.constexpr, HAS_DHN: tl.constexpr, CARRY_H: tl.constexpr,
    RESET: tl.constexpr, RESET_STATE: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """The gradient of h after a step: through the next recurrent product, directly, and from outside."""
    tile = m.to(tl.int64)[:, None] * H + n[None, :]
    has_later = active & (m < later)[:, None]
    owed = tl.load(dh_ptr + tile, mask=has_later, other=0.0).to(NUMBER)
    if DROPOUT:
        owed *= tl.load(dropout_ptr + tile, mask=has_later, other=0.0)
    if CARRY_H:
        owed += tl.load(carry_h_ptr + tile, mask=has_later, other=0.0)
    if RESET:
        owed = _cut(owed, dreset_h_ptr, reset_ptr, m, tile, has_later, offset_after, later, RESET_STATE)
    if HAS_DHN:
        owed += tl.load(dhn_ptr + tile, mask=active & (m >= later)[:, None], other=0.0).to(NUMBER)
    if HAS_DY:
        at = (offset + m).to(tl.int64)[:, None] * H + n[None, :]
        owed += tl.load(dy_ptr + at, mask=active, other=0.0).to(NUMBER)
    return owed


@triton.jit
def _cut(d, total_ptr, reset_ptr, m, tile, has_later, offset_after, later, RESET_STATE: tl.constexpr):
    """The gradient of the state before a reset is 0. What is cut belongs to the state of the reset."""
    again = tl.load(reset_ptr + offset_after + m, mask=m < later, other=0)[:, None] != 0
    if RESET_STATE:
        chosen = has_later & again
        tl.store(total_ptr + tile, tl.load(total_ptr + tile, mask=chosen, other=0.0) + d, mask=chosen)
    return tl.where(again, 0.0, d)


@triton.jit(
    do_not_specialize=["total", *POSITION],
    do_not_specialize_on_alignment=["seed_ptr", "mask_seed_ptr"],
)
def backward_kernel(
    a_ptr, extra_ptr, y_ptr, p_ptr, seed_ptr, gate_scale_ptr, state_scale_ptr, h0_ptr, c0_ptr, dh_ptr, dy_ptr, dhn_ptr,
    dcn_ptr, carry_h_ptr, carry_c_ptr, dgates_ptr, m_ptr, sums_ptr, reset_ptr, reset_h_ptr, reset_c_ptr, dreset_h_ptr,
    dreset_c_ptr, rows_ptr, mask_seed_ptr, dropout_ptr,
    total, H, step, offset, size, offset_before, known, offset_after, later,
    KIND: tl.constexpr, HAS_STATE: tl.constexpr, HAS_P: tl.constexpr, HAS_DY: tl.constexpr, HAS_DHN: tl.constexpr,
    HAS_DCN: tl.constexpr, PROJECTED: tl.constexpr, DRAW: tl.constexpr,
    GATE: tl.constexpr, GATE_LEAK: tl.constexpr, GATE_CLIP: tl.constexpr,
    STATE: tl.constexpr, STATE_LEAK: tl.constexpr, STATE_CLIP: tl.constexpr, IS_HARD: tl.constexpr,
    RESET: tl.constexpr, RESET_STATE: tl.constexpr, ROWS: tl.constexpr, DROPOUT: tl.constexpr,
    DRAW_MASKS: tl.constexpr, ZONEOUT_H: tl.constexpr, ZONEOUT_C: tl.constexpr, LIMIT_H: tl.constexpr,
    LIMIT_C: tl.constexpr, NUMBER: tl.constexpr, BB: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """Compute one step.

    dh: [B, H], the gradient of h through the next recurrent product; if PROJECTED, of the h before the projection, m.
    dy: [total, H]. dhn, dcn: [B, H], the gradients of the final h and c. carry_h, carry_c: [B, H] in NUMBER, the other
    gradients of h (of a GRU or with ZONEOUT_H) and of c from the next step. dgates: [total, G H]; for the GRU [total,
    6 H], the gradients of W_ih x and then those of W_hh h, which differ only in n. m: if PROJECTED, [total, H]. sums:
    for each block of rows the gradients of p (if HAS_P), then the sums of those of i, f, g, o, or of r, z, n through h
    and n through x; initially zero. dreset_h, dreset_c: [B, H] in NUMBER, with RESET_STATE, initially zero.
    """
    G: tl.constexpr = 4 if KIND == LSTM else (3 if KIND == GRU else 1)
    WIDE: tl.constexpr = 1 if G == 1 else 4  # the number of distinct gradients of gates
    ROW: tl.constexpr = 6 if KIND == GRU else G  # the number of gates in a row of dgates
    SUMS: tl.constexpr = 0 if not HAS_P else (5 if KIND == LSTM else G)
    CARRY_H: tl.constexpr = KIND == GRU or ZONEOUT_H > 0.0
    m = tl.program_id(0) * BB + tl.arange(0, BB)
    n = tl.program_id(1) * BU + tl.arange(0, BU)
    in_units = n < H
    active = (m < size)[:, None] & in_units[None, :]
    had, fresh = active & (m < known)[:, None], active & (m >= known)[:, None]
    has_later, ends = active & (m < later)[:, None], active & (m >= later)[:, None]
    tile = m.to(tl.int64)[:, None] * H + n[None, :]
    row = (offset + m).to(tl.int64)[:, None]
    before = (offset_before + m).to(tl.int64)[:, None] * H + n[None, :]
    dtype = y_ptr.dtype.element_ty
    gate_scale, state_scale = tl.load(gate_scale_ptr).to(NUMBER), tl.load(state_scale_ptr).to(NUMBER)
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

    held = zero
    if PROJECTED:
        owed = tl.load(dh_ptr + tile, mask=active, other=0.0).to(NUMBER)
    else:
        owed = _owed_h(
            dh_ptr, carry_h_ptr, dy_ptr, dhn_ptr, dreset_h_ptr, reset_ptr, dropout_ptr, m, n, H, active, offset,
            offset_after, later, NUMBER, HAS_DY, HAS_DHN, CARRY_H, RESET, RESET_STATE, DROPOUT,
        )  # fmt: skip
        if ZONEOUT_H > 0.0:
            owed, held = taken_back(owed, word_h, ZONEOUT_H, LIMIT_H, DRAW_MASKS)
    a = a_ptr + row * (G * H) + n[None, :]
    d = dgates_ptr + row * (ROW * H) + n[None, :]
    sums = sums_ptr + tl.program_id(0) * ((SUMS + WIDE) * H) + n
    sums_b = sums + SUMS * H
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
        after_zoneout = extra_ptr + (total * H if ZONEOUT_C > 0.0 else 0)
        c_now = tl.load(extra_ptr + row * H + n[None, :], mask=active, other=0.0).to(NUMBER)
        c_before = state_before(
            after_zoneout, before, had, c0_ptr, tile, fresh, again, reset_c_ptr, NUMBER, HAS_STATE, RESET, RESET_STATE
        )  # fmt: skip
        dc = tl.load(carry_c_ptr + tile, mask=has_later, other=0.0)
        if RESET:
            dc = _cut(dc, dreset_c_ptr, reset_ptr, m, tile, has_later, offset_after, later, RESET_STATE)
        if HAS_DCN:
            dc += tl.load(dcn_ptr + tile, mask=ends, other=0.0).to(NUMBER)
        held_c = zero
        if ZONEOUT_C > 0.0:
            dc, held_c = taken_back(dc, word_c, ZONEOUT_C, LIMIT_C, DRAW_MASKS)
        to_c, to0, to1, to2, to3, gf, top0, top1, top2, top3, top4 = lstm_factors(
            a0, a1, a2, a3, c_before, c_now, p0, p1, p2, p3, p4, xi0, xi1, xi2, xi3, xi4, gate_scale, state_scale,
            GATE, GATE_LEAK, GATE_CLIP, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW,
        )  # fmt: skip
        if PROJECTED:
            o = sigm(a3, p3, xi3, gate_scale, GATE, GATE_LEAK, GATE_CLIP, IS_HARD, DRAW)
            out = tanh(c_now, p4, xi4, state_scale, KIND, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW)
            tl.store(m_ptr + row * H + n[None, :], (o * out).to(dtype), mask=active)
        dc += owed * to_c
        g0, g1, g2, g3 = dc * to0, dc * to1, dc * to2, owed * to3
        tl.store(d, g0.to(dtype), mask=active)
        tl.store(d + H, g1.to(dtype), mask=active)
        tl.store(d + 2 * H, g2.to(dtype), mask=active)
        tl.store(d + 3 * H, g3.to(dtype), mask=active)
        tl.store(carry_c_ptr + tile, dc * gf + held_c, mask=active)
        if HAS_P:
            add_five_sums(sums, H, dc * top0, dc * top1, dc * top2, owed * top3, owed * top4, in_units)
        add_four_sums(sums_b, H, g0, g1, g2, g3, in_units)
    elif KIND == GRU:
        q = tl.load(extra_ptr + row * H + n[None, :], mask=active, other=0.0).to(NUMBER)
        h_before = state_before(
            y_ptr, before, had, h0_ptr, tile, fresh, again, reset_h_ptr, NUMBER, HAS_STATE, RESET, RESET_STATE
        )  # fmt: skip
        to0, to1, to2, to3, z, top0, top1, top2 = gru_factors(
            a0, a1, a2, q, h_before, p0, p1, p2, xi0, xi1, xi2, gate_scale, state_scale,
            GATE, GATE_LEAK, GATE_CLIP, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW,
        )  # fmt: skip
        g0, g1, g2, g3 = owed * to0, owed * to1, owed * to2, owed * to3
        tl.store(d, g0.to(dtype), mask=active)
        tl.store(d + H, g1.to(dtype), mask=active)
        tl.store(d + 2 * H, g3.to(dtype), mask=active)
        tl.store(d + 3 * H, g0.to(dtype), mask=active)
        tl.store(d + 4 * H, g1.to(dtype), mask=active)
        tl.store(d + 5 * H, g2.to(dtype), mask=active)
        held += owed * z
        if HAS_P:
            add_three_sums(sums, H, owed * top0, owed * top1, owed * top2, in_units)
        add_four_sums(sums_b, H, g0, g1, g2, g3, in_units)
    else:
        _, to0, top0 = tanh_d(a0, p0, xi0, state_scale, KIND, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW)
        g0 = owed * to0
        tl.store(d, g0.to(dtype), mask=active)
        if HAS_P:
            store_sums(sums, owed * top0, in_units, True)
        store_sums(sums_b, g0, in_units, True)
    if CARRY_H and not PROJECTED:
        tl.store(carry_h_ptr + tile, held, mask=active)


@triton.jit(do_not_specialize=[*POSITION], do_not_specialize_on_alignment=["mask_seed_ptr"])
def state_backward_kernel(
    dh_ptr, carry_h_ptr, dy_ptr, dhn_ptr, owed_ptr, dreset_h_ptr, reset_ptr, rows_ptr, mask_seed_ptr, dropout_ptr,
    H, step, offset, size, offset_before, known, offset_after, later,
    HAS_DY: tl.constexpr, HAS_DHN: tl.constexpr, RESET: tl.constexpr, RESET_STATE: tl.constexpr, ROWS: tl.constexpr,
    DROPOUT: tl.constexpr, DRAW_MASKS: tl.constexpr, ZONEOUT_H: tl.constexpr, LIMIT_H: tl.constexpr,
    NUMBER: tl.constexpr, BB: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """The gradient of the projected h of one step before the rules: owed, [total, H]."""
    m = tl.program_id(0) * BB + tl.arange(0, BB)
    n = tl.program_id(1) * BU + tl.arange(0, BU)
    active = (m < size)[:, None] & (n < H)[None, :]
    owed = _owed_h(
        dh_ptr, carry_h_ptr, dy_ptr, dhn_ptr, dreset_h_ptr, reset_ptr, dropout_ptr, m, n, H, active, offset,
        offset_after, later, NUMBER, HAS_DY, HAS_DHN, ZONEOUT_H > 0.0, RESET, RESET_STATE, DROPOUT,
    )  # fmt: skip
    if ZONEOUT_H > 0.0:
        word = m.to(tl.int64)[:, None] + n[None, :]
        if DRAW_MASKS:
            word, _ = keep_masks(mask_seed_ptr, n, places(rows_ptr, m, m < size, ROWS), step)
        owed, held = taken_back(owed, word, ZONEOUT_H, LIMIT_H, DRAW_MASKS)
        tl.store(carry_h_ptr + m.to(tl.int64)[:, None] * H + n[None, :], held, mask=active)
    at = (offset + m).to(tl.int64)[:, None] * H + n[None, :]
    tl.store(owed_ptr + at, owed.to(owed_ptr.dtype.element_ty), mask=active)
