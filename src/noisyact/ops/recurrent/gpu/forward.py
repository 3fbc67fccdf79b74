"""The forward pass of a recurrent layer on a GPU: one launch runs all time steps, and each program owns some units.

A program keeps the state of BU units of BB sequences in registers. At each step it needs the previous h of all units:
the programs of a batch block exchange h through a buffer and wait for each other. With BY_VALUE each step has a slot of
this buffer, and programs wait for the values in it; otherwise there are two slots and a counter. Work that does not
depend on the previous h (the input's part, the noise) is done before the wait. Results that the other programs do not
need are stored after this program has signalled the others.

The results must equal ../reference.py; ../README.md explains the notation.
"""

from __future__ import annotations

import triton
import triton.language as tl

from noisyact.ops.recurrent.gpu.cells import (
    GRU,
    LEARNED,
    LSTM,
    draw_four,
    draw_words,
    gru_values,
    lstm_values,
    mixed,
    one_by_one,
    per_unit,
    tanh,
    zone,
)
from noisyact.ops.recurrent.gpu.packing import pack_lines
from noisyact.ops.recurrent.gpu.products import write_input_product
from noisyact.ops.recurrent.gpu.sums import sum_of_slices
from noisyact.ops.triton.barrier import ABSENT, PATIENCE, arrive, await_values, marked, wait

__all__ = ["forward_kernel"]


@triton.jit
def _position(i, T, B, offsets_ptr, REVERSE: tl.constexpr, PACKED: tl.constexpr):
    """A step in the order of the recurrence: its number, its first row and its size, 0 past the end."""
    t = T - 1 - i if REVERSE else i
    if PACKED:
        offset = tl.load(offsets_ptr + t, mask=i < T, other=0)
        return t, offset, tl.load(offsets_ptr + t + 1, mask=i < T, other=0) - offset
    else:
        return t, t * B, tl.where(i < T, B, 0)


@triton.jit
def _inputs(i, T, B, H, m, n, inside, a_ptr, offsets_ptr, G: tl.constexpr, REVERSE: tl.constexpr, PACKED: tl.constexpr):
    """The input's part of the pre-activations of a step."""
    _, offset, size = _position(i, T, B, offsets_ptr, REVERSE, PACKED)
    active = inside & (m < size)[:, None]
    a = a_ptr + (offset + m).to(tl.int64)[:, None] * (G * H) + n[None, :]
    a0 = tl.load(a, mask=active, other=0.0).to(tl.float32)
    a1, a2, a3 = a0, a0, a0
    if G > 1:
        a1 = tl.load(a + H, mask=active, other=0.0).to(tl.float32)
        a2 = tl.load(a + 2 * H, mask=active, other=0.0).to(tl.float32)
    if G > 3:
        a3 = tl.load(a + 3 * H, mask=active, other=0.0).to(tl.float32)
    return a0, a1, a2, a3


@triton.jit(
    do_not_specialize=["layer", "T", "B", "programs", "inputs", "first_step", "limit_h", "limit_c"],
    do_not_specialize_on_alignment=[
        "seed_ptr", "kept_gate_scale_ptr", "kept_state_scale_ptr", "alarm_ptr", "reset_ptr", "rows_ptr",
        "mask_seed_ptr",
    ],
)  # fmt: skip
def forward_kernel(
    a_ptr, w_ptr, packed_ptr, bi_ptr, bh_ptr, p_ptr, seed_ptr, gate_scale_ptr, state_scale_ptr,
    kept_gate_scale_ptr, kept_state_scale_ptr, h0_ptr, c0_ptr, offsets_ptr, y_ptr, extra_ptr, hn_ptr, cn_ptr,
    exchange_ptr, alarm_ptr, x_ptr, w_ih_ptr, reset_ptr, reset_h_ptr, reset_c_ptr, rows_ptr, mask_seed_ptr, dropout_ptr,
    layer, T, B, H, P, programs, exchange_size, counters, inputs, first_step, limit_h, limit_c,
    KIND: tl.constexpr, HAS_STATE: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_P: tl.constexpr, DRAW: tl.constexpr,
    KEEP: tl.constexpr, KEEP_SCALES: tl.constexpr, PRODUCT_MULTIPLE: tl.constexpr, REVERSE: tl.constexpr,
    PACKED: tl.constexpr, RULED: tl.constexpr, RESET: tl.constexpr, ZONEOUT_H: tl.constexpr,
    ZONEOUT_C: tl.constexpr, MASKED: tl.constexpr, DROPOUT: tl.constexpr, HAS_ROWS: tl.constexpr,
    GATE: tl.constexpr, GATE_LEAK: tl.constexpr, GATE_CLIP: tl.constexpr,
    STATE: tl.constexpr, STATE_LEAK: tl.constexpr, STATE_CLIP: tl.constexpr, IS_HARD: tl.constexpr,
    BB: tl.constexpr, BU: tl.constexpr, BK: tl.constexpr, SLICES: tl.constexpr, RESIDENT: tl.constexpr,
    ALONE: tl.constexpr, SINGLE: tl.constexpr, BY_VALUE: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Run all steps in the order of the recurrence.

    h0, c0, hn and cn: [layers, B, H], of which one layer is used. a: [rows, G H], W_ih x; computed here from x if
    PRODUCT_MULTIPLE is not 0; with KEEP it receives the pre-activations. w: [G H, H]. packed: a buffer for the weights
    in reading order. y: [rows, H]. extra: with KEEP, [rows, H], the LSTM's c or the GRU's W_hn h + b_hn. exchange:
    int32, initially zero, with BY_VALUE ABSENT: `counters` numbers, first a counter for each block of the batch, then
    one for all programs; then the slots, each [rows padded to a multiple of BB, P] of y's dtype. If RESIDENT it holds
    `exchange_size` numbers for each layer, else those of this layer only, because a large layer has no register left
    for an offset.

    The arguments from reset to dropout, first_step and the limits are those of KernelRules; without rules they are not
    used. What the programs exchange is what the next product must see: h after the resets of the next step, times the
    mask of the recurrent dropout. With ZONEOUT_C extra is [2 rows, H]: c before zoneout, and then after it.
    """
    G: tl.constexpr = 4 if KIND == LSTM else (3 if KIND == GRU else 1)
    GP: tl.constexpr = 4 if G > 1 else 1
    pid = tl.program_id(0)
    block = pid // programs
    m = block * BB + tl.arange(0, BB)
    n = (pid % programs) * BU + tl.arange(0, BU)
    n = one_by_one(n, H) if SINGLE else n
    k = tl.arange(0, BK)
    in_rows, in_units = m < B, n < H
    inside = in_rows[:, None] & in_units[None, :]
    tile = (layer * B + m)[:, None] * H + n[None, :]
    if RESIDENT:
        exchange_ptr += layer * exchange_size
    dtype = y_ptr.dtype.element_ty
    seed = tl.load(seed_ptr) if DRAW else 0
    gate_scale, state_scale = tl.load(gate_scale_ptr).to(tl.float32), tl.load(state_scale_ptr).to(tl.float32)
    if KEEP_SCALES:  # backward must use the scales of this pass, which may be changed before it
        if pid == 0:
            tl.store(kept_gate_scale_ptr, gate_scale)
            tl.store(kept_state_scale_ptr, state_scale)
    p0 = per_unit(p_ptr, n, in_units, HAS_P, 1.0)
    bi0, bh0 = per_unit(bi_ptr, n, in_units, HAS_BIAS, 0.0), per_unit(bh_ptr, n, in_units, HAS_BIAS, 0.0)
    if G > 1:
        p1, p2 = per_unit(p_ptr, H + n, in_units, HAS_P, 1.0), per_unit(p_ptr, 2 * H + n, in_units, HAS_P, 1.0)
        bi1, bh1 = per_unit(bi_ptr, H + n, in_units, HAS_BIAS, 0.0), per_unit(bh_ptr, H + n, in_units, HAS_BIAS, 0.0)
        bi2 = per_unit(bi_ptr, 2 * H + n, in_units, HAS_BIAS, 0.0)
        bh2 = per_unit(bh_ptr, 2 * H + n, in_units, HAS_BIAS, 0.0)
    if G > 3:
        p3, p4 = per_unit(p_ptr, 3 * H + n, in_units, HAS_P, 1.0), per_unit(p_ptr, 4 * H + n, in_units, HAS_P, 1.0)
        bi3 = per_unit(bi_ptr, 3 * H + n, in_units, HAS_BIAS, 0.0)
        bh3 = per_unit(bh_ptr, 3 * H + n, in_units, HAS_BIAS, 0.0)
    h = tl.zeros((BB, BU), tl.float32)
    c = tl.zeros((BB, BU), tl.float32)
    if HAS_STATE:
        h = tl.load(h0_ptr + tile, mask=inside, other=0.0).to(tl.float32)
        if KIND == LSTM:
            c = tl.load(c0_ptr + tile, mask=inside, other=0.0).to(tl.float32)
    place, seen_factors = m, 1.0  # the row in the noise's counters, and the factors of h in the product
    if HAS_ROWS:
        place = tl.load(rows_ptr + m, mask=in_rows, other=0).to(tl.uint32)
    if DROPOUT:
        seen_factors = tl.load(dropout_ptr + m[:, None] * H + n[None, :], mask=inside, other=0.0)
    anew_h, anew_c = tl.zeros((BB, BU), tl.float32), tl.zeros((BB, BU), tl.float32)  # the state after a reset
    if RESET == LEARNED:
        anew_h = tl.load(reset_h_ptr + m[:, None] * H + n[None, :], mask=inside, other=0.0).to(tl.float32)
        if KIND == LSTM:
            anew_c = tl.load(reset_c_ptr + m[:, None] * H + n[None, :], mask=inside, other=0.0).to(tl.float32)
    if RESET > 0:
        entry = (T - 1) * B + m if REVERSE else m
        begins = tl.load(reset_ptr + entry, mask=in_rows, other=0).to(tl.int1)[:, None]
        h, c = tl.where(begins, anew_h, h), tl.where(begins, anew_c, c)
    if MASKED:
        mask_seed = tl.load(mask_seed_ptr)
    slot_size = tl.cdiv(B, BB) * BB * P
    if BY_VALUE:
        slot_size = slot_size.to(tl.int64)  # of as many slots as steps
    slots_ptr = (exchange_ptr + counters).to(tl.pointer_type(dtype), bitcast=True)
    counter = exchange_ptr + block
    FIRST: tl.constexpr = ABSENT if BY_VALUE else 0  # where the counters begin
    own = slots_ptr + m[:, None] * P + n[None, :]
    # A line of the product is a gate of a unit; the gates of a unit are adjacent and padded to a power of two. If there
    # are enough lines to fill the tensor cores' 64 rows, they are the rows of the product, otherwise the columns.
    line = tl.arange(0, GP * BU)
    gate, unit = line % GP, (pid % programs) * BU + line // GP
    LINES_FIRST: tl.constexpr = ALONE or (GP * BU >= 64 and not RESIDENT)
    if (
        RESIDENT and not ALONE
    ):  # each warp has a slice of the inner dimension, because the sums of one wait for each other
        inner = tl.arange(0, SLICES)[:, None] * BK + k[None, :]
        others, is_known = slots_ptr + m[None, :, None] * P + inner[:, None, :], (inner < H)[:, None, :]
        in_batch = in_rows[None, :, None] & is_known
    elif LINES_FIRST:
        others, in_batch = slots_ptr + m[None, :] * P + k[:, None], in_rows[None, :]
    else:
        others, in_batch = slots_ptr + m[:, None] * P + k[None, :], in_rows[:, None]
    if not RESIDENT:
        packed = packed_ptr + pid.to(tl.int64) * (GP * BU * P)
        mine = packed + (line[:, None] * P + k[None, :] if LINES_FIRST else line[None, :] * P + k[:, None])
    polls = 0
    if PRODUCT_MULTIPLE > 0:
        write_input_product(x_ptr, w_ih_ptr, a_ptr, pid, T * B, G * H, inputs, PRODUCT_MULTIPLE, PRECISION)
        arrive(exchange_ptr + tl.cdiv(B, BB))
        polls = wait(exchange_ptr + tl.cdiv(B, BB), tl.num_programs(0) + FIRST, polls)
    BEGINS: tl.constexpr = HAS_STATE or RESET == LEARNED  # whether the state before step 0 may be other than zeros
    START: tl.constexpr = 0 if BEGINS else 1  # the first step with a nonzero previous state
    told = 1 if BEGINS else 0  # how often every program has arrived before step 0
    if ALONE and GP > 1:  # h does not leave the registers
        weights = w_ptr + (gate * H + unit)[:, None] * H + k[None, :]
        held = tl.load(weights, mask=((gate < G) & (unit < H))[:, None] & (k < H)[None, :], other=0.0)
    elif ALONE:
        PARTS: tl.constexpr = BU // 16
        inner = tl.arange(0, PARTS)[:, None, None] * 16 + tl.arange(0, 16)[None, None, :]
        weights = w_ptr + n[None, :, None] * H + inner
        held = tl.load(weights, mask=in_units[None, :, None] & (inner < H), other=0.0)
    elif RESIDENT:
        weights = w_ptr + (gate * H + unit)[None, None, :] * H + inner[:, :, None]
        is_weight = ((gate < G) & (unit < H))[None, None, :] & (inner < H)[:, :, None]
        held = tl.load(weights, mask=is_weight, other=0.0)
    else:
        pack_lines(w_ptr, packed, line, gate * H + unit, (gate < G) & (unit < H), H, P)
    if BEGINS and not ALONE:
        seen = (h * seen_factors if DROPOUT else h).to(dtype)
        if BY_VALUE:
            tl.store(own, marked(seen))
        else:
            tl.store(own + slot_size, seen)
            arrive(counter)
    if ALONE:
        next0, next1, next2, next3 = _inputs(0, T, B, H, m, n, inside, a_ptr, offsets_ptr, G, REVERSE, PACKED)
    steps = T
    if ALONE and PRODUCT_MULTIPLE > 0:  # programs beyond the last block of the batch only compute products
        steps = tl.where(block < tl.cdiv(B, BB), T, 0)
    for i in range(steps):
        t, offset, size = _position(i, T, B, offsets_ptr, REVERSE, PACKED)
        active = inside & (m < size)[:, None]
        row = (offset + m).to(tl.int64)[:, None]
        a = a_ptr + row * (G * H) + n[None, :]
        if ALONE:  # nothing else hides the time of the loads, so they are those of the next step
            a0, a1, a2, a3 = next0, next1, next2, next3
            next0, next1, next2, next3 = _inputs(i + 1, T, B, H, m, n, inside, a_ptr, offsets_ptr, G, REVERSE, PACKED)
        else:
            a0, a1, a2, a3 = _inputs(i, T, B, H, m, n, inside, a_ptr, offsets_ptr, G, REVERSE, PACKED)
        a0 += bi0 + bh0
        xi0, xi1, xi2, xi3, xi4 = h * 0, h * 0, h * 0, h * 0, h * 0
        if G > 1:
            a1 += bi1 + bh1
            a2 += bi2
        if G > 3:
            a3 += bi3 + bh3
        step = first_step + t if RULED else t
        if DRAW:
            xi0, xi1, xi2, xi3 = draw_four(seed, n, place, step, 0)
            if KIND == LSTM:
                xi4, _, _, _ = draw_four(seed, n, place, step, 1)
        if RESET > 0:  # of the next step
            after = (t - 1 if REVERSE else t + 1) * B + m
            fresh = tl.load(reset_ptr + after, mask=m < tl.where(i + 1 < T, B, 0), other=0).to(tl.int1)[:, None]
        if ZONEOUT_H or ZONEOUT_C:
            words_h, words_c = 0, 0
            if MASKED:
                words_h, words_c = draw_words(mask_seed, n, place, step, 2)
            zone_h, zone_c = zone(words_h, limit_h, MASKED), zone(words_c, limit_c, MASKED)

        product = tl.zeros((GP * BU, BB) if LINES_FIRST else (BB, GP * BU), tl.float32)
        if ALONE:
            seen = (h * seen_factors if DROPOUT else h).to(dtype)
            if GP > 1:
                product = tl.dot(held, tl.trans(seen), product, input_precision=PRECISION)
            else:
                parts = tl.permute(tl.reshape(seen, (BB, PARTS, 16)), (1, 2, 0))
                product = sum_of_slices(tl.dot(held, parts, input_precision=PRECISION))
        elif i >= START:
            if BY_VALUE:
                hk, polls = await_values(others + i * slot_size, in_batch, polls)
            else:
                polls = wait(counter, (i + told) * programs, polls)
                source = others + ((i + 1) & 1) * slot_size
                if RESIDENT:
                    hk = tl.load(source, mask=in_batch, other=0.0, cache_modifier=".cg")
                else:
                    for k0 in tl.range(0, P, BK, num_stages=STAGES):
                        hk = tl.load(source + k0, mask=in_batch, other=0.0, cache_modifier=".cg")
                        wk = tl.load(mine + k0)
                        if LINES_FIRST:
                            product = tl.dot(wk, hk, product, input_precision=PRECISION)
                        else:
                            product = tl.dot(hk, wk, product, input_precision=PRECISION)
            if RESIDENT:
                product = sum_of_slices(tl.dot(hk, held, input_precision=PRECISION))
        if LINES_FIRST:
            product = tl.trans(product)
        if GP == 4:
            even, odd = tl.split(tl.reshape(product, (BB, BU, 2, 2)))
            q0, q2 = tl.split(even)
            q1, q3 = tl.split(odd)
        else:
            q0 = product

        # Round to the dtype in which they are saved, so that backward finds each x on the same side of the kink.
        a0 = (a0 + q0).to(dtype).to(tl.float32)
        if KIND == LSTM:
            a1, a2 = (a1 + q1).to(dtype).to(tl.float32), (a2 + bh2 + q2).to(dtype).to(tl.float32)
            a3 = (a3 + q3).to(dtype).to(tl.float32)
            new, new_c, kept = lstm_values(
                a0, a1, a2, a3, c, p0, p1, p2, p3, p4, xi0, xi1, xi2, xi3, xi4, gate_scale, state_scale, dtype,
                GATE, GATE_LEAK, GATE_CLIP, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW,
            )  # fmt: skip
            if ZONEOUT_C:
                new_c = mixed(zone_c, c, new_c, MASKED)
            c = tl.where(active, new_c, c)
        elif KIND == GRU:
            a1 = (a1 + q1).to(dtype).to(tl.float32)
            kept = (q2 + bh2).to(dtype)
            new, a2 = gru_values(
                a0, a1, a2, kept.to(tl.float32), h, p0, p1, p2, xi0, xi1, xi2, gate_scale, state_scale, dtype,
                GATE, GATE_LEAK, GATE_CLIP, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW,
            )  # fmt: skip
        else:
            new = tanh(a0, p0, xi0, state_scale, KIND, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW)
        if ZONEOUT_H:
            new = mixed(zone_h, h, new, MASKED)
        h = tl.where(active, new, h)
        h = tl.where(polls < PATIENCE, h, float("nan"))
        out, out_c = h, c
        if RESET > 0:
            h, c = tl.where(fresh, anew_h, h), tl.where(fresh, anew_c, c)
        if BY_VALUE:
            tl.store(own + (i + 1) * slot_size, marked((h * seen_factors if DROPOUT else h).to(dtype)))
        elif not ALONE:
            tl.store(own + (i & 1) * slot_size, (h * seen_factors if DROPOUT else h).to(dtype))
            arrive(counter)
        tl.store(y_ptr + row * H + n[None, :], out.to(dtype), mask=active)
        if KEEP:
            tl.store(a, a0.to(dtype), mask=active)
            if G > 1:
                tl.store(a + H, a1.to(dtype), mask=active)
                tl.store(a + 2 * H, a2.to(dtype), mask=active)
                tl.store(extra_ptr + row * H + n[None, :], kept, mask=active)
            if G > 3:
                tl.store(a + 3 * H, a3.to(dtype), mask=active)
            if ZONEOUT_C:
                total = tl.load(offsets_ptr + T).to(tl.int64) if PACKED else T.to(tl.int64) * B
                tl.store(extra_ptr + (total + row) * H + n[None, :], out_c.to(dtype), mask=active)
    tl.store(hn_ptr + tile, h, mask=inside)
    if KIND == LSTM:
        tl.store(cn_ptr + tile, c, mask=inside)
    if polls >= PATIENCE:
        tl.store(alarm_ptr, 1)
