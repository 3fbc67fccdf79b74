"""The backward pass of a recurrent layer on a GPU: the programs and the exchange of forward, in reverse order.

At each step a program needs the gradients of all pre-activations of the next step: dgates, [BB, G H], times W_hh. In a
large layer these would be more to read than the program's weights. Therefore adjacent programs form a team: each
multiplies a slice of the gradients for the units of the whole team, and they exchange the sums. One slot is enough for
the sums, because a program overwrites it only after all programs have signalled the next step.

Work that does not depend on the gradients is done while waiting for other programs: the noise is recomputed before the
first wait, and the functions' values and slopes before the last, after which one multiplication per gate remains. The
gradients of p and of the biases are summed in registers over all steps and stored once.
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
    gru_factors,
    lstm_factors,
    mixed,
    one_by_one,
    per_unit,
    tanh_d,
    zone,
)
from noisyact.ops.recurrent.gpu.packing import pack_columns, pack_team_columns
from noisyact.ops.recurrent.gpu.products import write_products
from noisyact.ops.recurrent.gpu.saved import position, saved
from noisyact.ops.recurrent.gpu.sums import finish_sums, store_sums, sum_of_slices, sum_over_last
from noisyact.ops.triton.barrier import ABSENT, PATIENCE, arrive, await_values, marked, wait

__all__ = ["backward_kernel"]


@triton.jit(
    do_not_specialize=["layer", "rounds", "T", "B", "programs", "inputs", "first_step", "limit_h", "limit_c"],
    do_not_specialize_on_alignment=["seed_ptr", "out_ptr", "alarm_ptr", "reset_ptr", "rows_ptr", "mask_seed_ptr"],
)
def backward_kernel(
    a_ptr, extra_ptr, y_ptr, w_ptr, packed_ptr, p_ptr, seed_ptr, gate_scale_ptr, state_scale_ptr, h0_ptr, c0_ptr,
    offsets_ptr, dy_ptr, dhn_ptr, dcn_ptr, dgates_ptr, dh0_ptr, dc0_ptr, sums_ptr, out_ptr, exchange_ptr, alarm_ptr,
    x_ptr, w_ih_ptr, dw_ih_ptr, dw_hh_ptr, dx_ptr, seen_ptr, dreset_h_ptr, dreset_c_ptr,
    reset_ptr, reset_h_ptr, reset_c_ptr, rows_ptr, mask_seed_ptr, dropout_ptr,
    layer, rounds, T, B, H, P, slice_size, programs, exchange_size, counters, inputs, first_step, limit_h, limit_c,
    KIND: tl.constexpr, HAS_STATE: tl.constexpr, HAS_P: tl.constexpr, HAS_DY: tl.constexpr, HAS_DHN: tl.constexpr,
    HAS_DCN: tl.constexpr, WANTS_STATE: tl.constexpr, PRODUCTS_MULTIPLE: tl.constexpr, WANTS_X: tl.constexpr,
    SEEN: tl.constexpr, WANTS_RESET: tl.constexpr, DRAW: tl.constexpr, REVERSE: tl.constexpr, PACKED: tl.constexpr,
    RULED: tl.constexpr, RESET: tl.constexpr, ZONEOUT_H: tl.constexpr,
    ZONEOUT_C: tl.constexpr, MASKED: tl.constexpr, DROPOUT: tl.constexpr, HAS_ROWS: tl.constexpr,
    GATE: tl.constexpr, GATE_LEAK: tl.constexpr, GATE_CLIP: tl.constexpr,
    STATE: tl.constexpr, STATE_LEAK: tl.constexpr, STATE_CLIP: tl.constexpr, IS_HARD: tl.constexpr,
    BB: tl.constexpr, BU: tl.constexpr, BK: tl.constexpr, SLICES: tl.constexpr, TEAM: tl.constexpr,
    RESIDENT: tl.constexpr, ALONE: tl.constexpr, SINGLE: tl.constexpr, BY_VALUE: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Run `rounds` steps, T or T + 1, from the end of the recurrence. Step T computes dh0, and what a reset at the
    first step adds to dreset_h.

    dgates: [rows, G H]; for the GRU [rows, 6 H], the gradients of W_ih x and then those of W_hh h, which differ only in
    n. h0, c0, dh0, dc0, dhn, dcn, dreset_h and dreset_c: [layers, B, H], of which one layer is used; dhn and dcn are
    the gradients of the final h and c. sums: for each block of the batch the gradients of p (if HAS_P), then the sums
    of those of i, f, g, o, or of r, z, n through h and n through x. out: the gradients of p, b_ih and b_hh. packed: a
    buffer for the weights, then for the sums of teams, [programs, BB, TEAM BU] in float32. exchange: as in forward,
    with slots [rows padded to a multiple of BB, G, P], and a counter for each team after the one for all programs.
    PRODUCTS_MULTIPLE: a common divisor of H and the number of inputs if this launch also computes the products of
    dgates, else 0.

    The arguments from reset to dropout, first_step and the limits are those of KernelRules; without rules they are not
    used. With SEEN, seen, [rows, H], receives the h that the recurrent product of each row saw, after resets and times
    the mask of the recurrent dropout: the gradient of the weights is a product with it.
    """
    G: tl.constexpr = 4 if KIND == LSTM else (3 if KIND == GRU else 1)
    GP: tl.constexpr = 4 if G > 1 else 1
    WIDE: tl.constexpr = GP  # the number of distinct gradients of gates
    ROW: tl.constexpr = 6 if KIND == GRU else G  # the number of gates in a row of dgates
    SUMS: tl.constexpr = 0 if not HAS_P else (5 if KIND == LSTM else G)
    pid = tl.program_id(0)
    block = pid // programs
    m = block * BB + tl.arange(0, BB)
    n = (pid % programs) * BU + tl.arange(0, BU)
    n = one_by_one(n, H) if SINGLE else n
    k = tl.arange(0, BK)
    in_rows, in_units = m < B, n < H
    if ALONE and PRODUCTS_MULTIPLE > 0:  # programs beyond the last block of the batch only compute products
        in_units = n < tl.where(block < tl.cdiv(B, BB), H, 0)
        rounds = tl.where(block < tl.cdiv(B, BB), rounds, 0)
    inside = in_rows[:, None] & in_units[None, :]
    tile = (layer * B + m)[:, None] * H + n[None, :]
    if RESIDENT:
        exchange_ptr += layer * exchange_size
    dtype = y_ptr.dtype.element_ty
    seed = tl.load(seed_ptr) if DRAW else 0
    gate_scale, state_scale = tl.load(gate_scale_ptr).to(tl.float32), tl.load(state_scale_ptr).to(tl.float32)
    p0 = per_unit(p_ptr, n, in_units, HAS_P, 1.0)
    if G > 1:
        p1, p2 = per_unit(p_ptr, H + n, in_units, HAS_P, 1.0), per_unit(p_ptr, 2 * H + n, in_units, HAS_P, 1.0)
    if G > 3:
        p3, p4 = per_unit(p_ptr, 3 * H + n, in_units, HAS_P, 1.0), per_unit(p_ptr, 4 * H + n, in_units, HAS_P, 1.0)
    zero = tl.zeros((BB, BU), tl.float32)
    dh, dc = zero, zero  # the gradients of these states from the later steps, without the product
    if HAS_DHN:
        dh = tl.load(dhn_ptr + tile, mask=inside, other=0.0).to(tl.float32)
    if HAS_DCN:
        dc = tl.load(dcn_ptr + tile, mask=inside, other=0.0).to(tl.float32)
    dp0, dp1, dp2, dp3, dp4 = zero, zero, zero, zero, zero
    db0, db1, db2, db3 = zero, zero, zero, zero
    place, seen_factors = m, 1.0  # as in forward
    if HAS_ROWS:
        place = tl.load(rows_ptr + m, mask=in_rows, other=0).to(tl.uint32)
    if DROPOUT:
        seen_factors = tl.load(dropout_ptr + m[:, None] * H + n[None, :], mask=inside, other=0.0)
    anew_h, anew_c, dreset_h, dreset_c = zero, zero, zero, zero  # the state after a reset, and its gradient
    if RESET == LEARNED:
        if KIND == GRU or SEEN:
            anew_h = tl.load(reset_h_ptr + m[:, None] * H + n[None, :], mask=inside, other=0.0).to(tl.float32)
        if KIND == LSTM:
            anew_c = tl.load(reset_c_ptr + m[:, None] * H + n[None, :], mask=inside, other=0.0).to(tl.float32)
    if MASKED:
        mask_seed = tl.load(mask_seed_ptr)
    extra_c_ptr = extra_ptr  # the c that the next step has
    if ZONEOUT_C:
        total = tl.load(offsets_ptr + T).to(tl.int64) if PACKED else T.to(tl.int64) * B
        extra_c_ptr += total * H
    slot_size = tl.cdiv(B, BB) * BB * G * P
    if BY_VALUE:
        slot_size = slot_size.to(tl.int64)  # of as many slots as rounds
    slots_ptr = (exchange_ptr + counters).to(tl.pointer_type(dtype), bitcast=True)
    counter = exchange_ptr + block
    FIRST: tl.constexpr = ABSENT if BY_VALUE else 0  # where the counters begin
    own = slots_ptr + m[:, None] * (G * P) + n[None, :]
    # The inner dimension of the product, all gates of all units, is divided into slices: one for each program of a team
    # or, without teams, one for each warp.
    if TEAM > 1:
        member, line = pid % TEAM, tl.arange(0, TEAM * BU)
        inner = member * slice_size + k
        others = slots_ptr + m[None, :] * (G * P) + inner[:, None]
        packed = packed_ptr + pid.to(tl.int64) * (TEAM * BU * slice_size)
        mine = packed + line[:, None] * slice_size + k[None, :]
        shared = packed_ptr + tl.num_programs(0).to(tl.int64) * (TEAM * BU * slice_size)
        team_sums = shared.to(tl.pointer_type(tl.float32), bitcast=True) + (pid - member) * (BB * TEAM * BU)
        team_row = tl.arange(0, BB)[:, None] * (TEAM * BU)
        own_sums = team_sums + member * (BB * TEAM * BU) + team_row + line[None, :]
        of_own = tl.arange(0, BU)
        of_own = one_by_one(of_own, H) if SINGLE else of_own
        sums_for_own = team_sums + team_row + member * BU + of_own[None, :]
    else:
        inner = tl.arange(0, SLICES)[:, None] * slice_size + k[None, :]
        others = slots_ptr + m[None, :, None] * (G * P) + inner[:, None, :]
        if not RESIDENT:
            packed = packed_ptr + pid.to(tl.int64) * (G * P * BU)
            mine = packed + inner[:, :, None] * BU + tl.arange(0, BU)[None, None, :]
    team_counter = counter - block + (2 + tl.cdiv(B, BB) // 32 + pid // TEAM) * 32  # each in its own cache line
    polls = 0
    if ALONE:  # the gradients of the next step do not leave the registers; a slice has one gate, or 16 units
        PARTS: tl.constexpr = GP if GP > 1 else BU // 16
        part, unit = tl.arange(0, PARTS)[:, None, None], tl.arange(0, GP * BU // PARTS)[None, None, :]
        weights = w_ptr + (part * (H if GP > 1 else 16) + unit) * H + n[None, :, None]
        is_weight = (part < G) & (unit < H) if GP > 1 else part * 16 + unit < H
        held = tl.load(weights, mask=is_weight & in_units[None, :, None], other=0.0)
    elif RESIDENT:
        inner_inside = (k[None, :] < slice_size) & (inner < G * P)
        weights = w_ptr + ((inner // P) * H + inner % P)[:, :, None] * H + n[None, None, :]
        is_weight = (inner_inside & (inner % P < H))[:, :, None] & in_units[None, None, :]
        held = tl.load(weights, mask=is_weight, other=0.0)
    elif TEAM > 1:
        team_unit = (pid % programs - member) * BU + line
        pack_team_columns(w_ptr, packed, line, team_unit, member * slice_size, slice_size, H, P, G)
    else:
        pack_columns(w_ptr, packed, n, in_units, H, P, G, BU)
    g0, g1, g2, g3 = zero, zero, zero, zero
    state_ptr, state0_ptr = extra_c_ptr, c0_ptr
    if KIND == GRU:
        state_ptr, state0_ptr = y_ptr, h0_ptr
    if ALONE:
        next0, next1, next2, next3, next_dy, next_now, next_earlier = saved(
            0, T, B, H, m, n, inside, tile, a_ptr, dy_ptr, extra_ptr, state_ptr, state0_ptr, offsets_ptr,
            G, HAS_DY, HAS_STATE, REVERSE, PACKED,
        )  # fmt: skip
    for i in range(rounds):
        t, offset, size, offset_before, known = position(i, T, B, offsets_ptr, REVERSE, PACKED)
        active = inside & (m < size)[:, None]
        row = (offset + m).to(tl.int64)[:, None]
        if ALONE:  # nothing else hides the time of the loads, so they are those of the next round
            a0, a1, a2, a3, dy, now, earlier = next0, next1, next2, next3, next_dy, next_now, next_earlier
            next0, next1, next2, next3, next_dy, next_now, next_earlier = saved(
                i + 1, T, B, H, m, n, inside, tile, a_ptr, dy_ptr, extra_ptr, state_ptr, state0_ptr, offsets_ptr,
                G, HAS_DY, HAS_STATE, REVERSE, PACKED,
            )  # fmt: skip
        else:
            a0, a1, a2, a3, dy, now, earlier = saved(
                i, T, B, H, m, n, inside, tile, a_ptr, dy_ptr, extra_ptr, state_ptr, state0_ptr, offsets_ptr,
                G, HAS_DY, HAS_STATE, REVERSE, PACKED,
            )  # fmt: skip
        h_before = zero
        if SEEN and KIND != GRU:  # long before it is stored, because a store waits for its value
            before = y_ptr + (offset_before + m).to(tl.int64)[:, None] * H + n[None, :]
            h_before = tl.load(before, mask=active & (m < known)[:, None], other=0.0).to(tl.float32)
            if HAS_STATE:
                h_before += tl.load(h0_ptr + tile, mask=active & (m >= known)[:, None], other=0.0).to(tl.float32)
        xi0, xi1, xi2, xi3, xi4 = zero, zero, zero, zero, zero
        step = first_step + t if RULED else t
        if DRAW:
            xi0, xi1, xi2, xi3 = draw_four(seed, n, place, step, 0)
        if RESET > 0:  # of this step, and of the next one, whose gradients arrive
            fresh = tl.load(reset_ptr + t * B + m, mask=m < tl.where(i < T, B, 0), other=0).to(tl.int1)[:, None]
            after = (t - 1 if REVERSE else t + 1) * B + m
            cut = tl.load(reset_ptr + after, mask=m < tl.where(i > 0, B, 0), other=0).to(tl.int1)[:, None]
        if ZONEOUT_H or ZONEOUT_C:
            words_h, words_c = 0, 0
            if MASKED:
                words_h, words_c = draw_words(mask_seed, n, place, step, 2)
            zone_h, zone_c = zone(words_h, limit_h, MASKED), zone(words_c, limit_c, MASKED)
        if KIND == LSTM:
            if DRAW:
                xi4, _, _, _ = draw_four(seed, n, place, step, 1)
        if RESET > 0:
            earlier = tl.where(fresh, anew_h if KIND == GRU else anew_c, earlier)

        if TEAM > 1:
            if i > 0:
                polls = wait(counter, i * programs, polls)
                source = others + ((i + 1) & 1) * slot_size
                product = tl.zeros((TEAM * BU, BB), tl.float32)
                for k0 in tl.range(0, slice_size, BK, num_stages=STAGES):
                    mask = in_rows[None, :]
                    if G % TEAM != 0:  # the last slice may extend past the end
                        mask = mask & (inner + k0 < G * P)[:, None]
                    dk = tl.load(source + k0, mask=mask, other=0.0, cache_modifier=".cg")
                    product = tl.dot(tl.load(mine + k0), dk, product, input_precision=PRECISION)
                tl.store(own_sums, tl.trans(product))
                arrive(team_counter)

        if KIND == LSTM:
            to_c, to0, to1, to2, to3, gf, top0, top1, top2, top3, top4 = lstm_factors(
                a0, a1, a2, a3, earlier, now, p0, p1, p2, p3, p4, xi0, xi1, xi2, xi3, xi4, gate_scale, state_scale,
                GATE, GATE_LEAK, GATE_CLIP, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW,
            )  # fmt: skip
        elif KIND == GRU:
            to0, to1, to2, to3, z, top0, top1, top2 = gru_factors(
                a0, a1, a2, now, earlier, p0, p1, p2, xi0, xi1, xi2, gate_scale, state_scale,
                GATE, GATE_LEAK, GATE_CLIP, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW,
            )  # fmt: skip
        else:
            _, to0, top0 = tanh_d(a0, p0, xi0, state_scale, KIND, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW)

        owed = zero if DROPOUT else dh
        if ALONE:
            if GP > 1:
                g = tl.permute(tl.reshape(tl.join(tl.join(g0, g2), tl.join(g1, g3)), (BB, BU, GP)), (2, 1, 0))
            else:
                g = tl.permute(tl.reshape(g0, (BB, PARTS, 16)), (1, 2, 0))
            product = tl.dot(held, g.to(dtype), input_precision=PRECISION)
            owed += sum_over_last(tl.permute(product, (2, 1, 0)))
        elif i > 0:
            if TEAM > 1:
                polls = wait(team_counter, i * TEAM, polls)
                for other in tl.static_range(TEAM):
                    owed += tl.load(sums_for_own + other * (BB * TEAM * BU), cache_modifier=".cg")
            else:
                product = tl.zeros((SLICES, BB, BU), tl.float32)
                if BY_VALUE:
                    mask = in_rows[None, :, None] & (inner_inside & (inner % P < H))[:, None, :]
                    dk, polls = await_values(others + (i - 1) * slot_size, mask, polls)
                    product = tl.dot(dk, held, product, input_precision=PRECISION)
                else:
                    polls = wait(counter, i * programs, polls)
                    source = others + ((i + 1) & 1) * slot_size
                    if RESIDENT:
                        mask = in_rows[None, :, None] & inner_inside[:, None, :]
                        dk = tl.load(source, mask=mask, other=0.0, cache_modifier=".cg")
                        product = tl.dot(dk, held, product, input_precision=PRECISION)
                    else:
                        for k0 in tl.range(0, slice_size, BK, num_stages=STAGES):
                            left = inner + k0 < G * P
                            mask = in_rows[None, :, None] & left[:, None, :]
                            dk = tl.load(source + k0, mask=mask, other=0.0, cache_modifier=".cg")
                            wk = tl.load(mine + k0 * BU, mask=left[:, :, None], other=0.0)
                            product = tl.dot(dk, wk, product, input_precision=PRECISION)
                owed += sum_of_slices(product)
        if DROPOUT:
            owed = dh + owed * seen_factors
        if RESET > 0:  # the gradients of what the next step has had belong to the state after the reset
            if WANTS_RESET:
                dreset_h += tl.where(cut, owed, 0.0)
                dreset_c += tl.where(cut, dc, 0.0)
            owed, dc = tl.where(cut, 0.0, owed), tl.where(cut, 0.0, dc)
        d = tl.where(active, owed + dy, 0.0)
        d = tl.where(polls < PATIENCE, d, float("nan"))
        past, past_c = zero, zero  # the gradients that pass by the cell
        if ZONEOUT_H:
            past, d = mixed(zone_h, d, zero, MASKED), mixed(zone_h, zero, d, MASKED)
        to = own + (i if BY_VALUE else i & 1) * slot_size
        if KIND == LSTM:
            if ZONEOUT_C:
                past_c, dc_new = mixed(zone_c, dc, zero, MASKED), mixed(zone_c, zero, dc, MASKED)
            else:
                dc_new = dc
            dc_now = tl.where(active, dc_new + d * to_c, 0.0)
            g0, g1, g2, g3 = dc_now * to0, dc_now * to1, dc_now * to2, d * to3
        elif KIND == GRU:
            g0, g1, g2, g3 = d * to0, d * to1, d * to2, d * to3
        else:
            g0 = d * to0
        if BY_VALUE:
            tl.store(to, marked(g0.to(dtype)))
            if G > 1:
                tl.store(to + P, marked(g1.to(dtype)))
                tl.store(to + 2 * P, marked(g2.to(dtype)))
            if G > 3:
                tl.store(to + 3 * P, marked(g3.to(dtype)))
        elif not ALONE:
            tl.store(to, g0.to(dtype))
            if G > 1:
                tl.store(to + P, g1.to(dtype))
                tl.store(to + 2 * P, g2.to(dtype))
            if G > 3:
                tl.store(to + 3 * P, g3.to(dtype))
            arrive(counter)

        if SEEN:
            h = earlier if KIND == GRU else (tl.where(fresh, anew_h, h_before) if RESET > 0 else h_before)
            tl.store(seen_ptr + row * H + n[None, :], (h * seen_factors if DROPOUT else h).to(dtype), mask=active)
        out = dgates_ptr + row * (ROW * H) + n[None, :]
        tl.store(out, g0.to(dtype), mask=active)
        db0 += g0
        if G > 1:
            tl.store(out + H, g1.to(dtype), mask=active)
            tl.store(out + 2 * H, (g3 if KIND == GRU else g2).to(dtype), mask=active)
            tl.store(out + 3 * H, (g0 if KIND == GRU else g3).to(dtype), mask=active)
            db1 += g1
            db2 += g2
            db3 += g3
        if KIND == GRU:
            tl.store(out + 4 * H, g1.to(dtype), mask=active)
            tl.store(out + 5 * H, g2.to(dtype), mask=active)
        if KIND == LSTM:
            dp0 += dc_now * top0
            dp1 += dc_now * top1
            dp2 += dc_now * top2
            dp3 += d * top3
            dp4 += d * top4
            dh = tl.where(active, past if ZONEOUT_H else 0.0, owed)
            dc = tl.where(active, dc_now * gf + past_c if ZONEOUT_C else dc_now * gf, dc)
        elif KIND == GRU:
            dp0 += d * top0
            dp1 += d * top1
            dp2 += d * top2
            dh = tl.where(active, d * z + past if ZONEOUT_H else d * z, owed)
        else:
            dp0 += d * top0
            dh = tl.where(active, past if ZONEOUT_H else 0.0, owed)
    if WANTS_RESET:
        tl.store(dreset_h_ptr + tile, dreset_h, mask=inside)
        if KIND == LSTM:
            tl.store(dreset_c_ptr + tile, dreset_c, mask=inside)
    if WANTS_STATE:
        tl.store(dh0_ptr + tile, dh, mask=inside)
        if KIND == LSTM:
            tl.store(dc0_ptr + tile, dc, mask=inside)
    sums = sums_ptr + block * ((SUMS + WIDE) * H) + n
    if HAS_P:
        store_sums(sums, dp0, in_units, False)
        if G > 1:
            store_sums(sums + H, dp1, in_units, False)
            store_sums(sums + 2 * H, dp2, in_units, False)
        if G > 3:
            store_sums(sums + 3 * H, dp3, in_units, False)
            store_sums(sums + 4 * H, dp4, in_units, False)
    sums += SUMS * H
    store_sums(sums, db0, in_units, False)
    if G > 1:
        store_sums(sums + H, db1, in_units, False)
        store_sums(sums + 2 * H, db2, in_units, False)
        store_sums(sums + 3 * H, db3, in_units, False)
    blocks = tl.cdiv(B, BB)
    for_all = counter - block + blocks
    arrive(for_all)
    if PRODUCTS_MULTIPLE > 0 or block == 0:
        polls = wait(for_all, tl.num_programs(0) + FIRST, polls)
    if block == 0:
        finish_sums(sums_ptr, out_ptr, n, in_units, H, blocks, SUMS, WIDE, G, KIND == GRU)
    if PRODUCTS_MULTIPLE > 0:
        write_products(
            dgates_ptr, x_ptr, y_ptr, h0_ptr, seen_ptr, w_ih_ptr, dw_ih_ptr, dw_hh_ptr, dx_ptr, pid, layer, T, B, H,
            inputs, polls < PATIENCE, G, ROW, PRODUCTS_MULTIPLE, WANTS_X, REVERSE, HAS_STATE, SEEN, PRECISION,
        )  # fmt: skip
    if polls >= PATIENCE:
        tl.store(alarm_ptr, 1)
