"""The scores of additive attention in Triton: phi(k + q) and its noise are summed in registers and never stored.

The noise is the same as in phi of the whole tensor k + q, [batch, width, places, size], with the same seed. A row of
that tensor, `size` elements, consists of TILES tiles of GROUPS times 64 elements. The four parts of a tile are those of
ops/activation/triton_kernels.py. FUNCTION holds the last arguments of phi.
"""

from __future__ import annotations

import triton
import triton.language as tl

from noisyact.ops.activation.triton_kernels import scale_of, seed_of, tile_epsilons, tile_places
from noisyact.ops.triton.phi import phi, phi_derivatives

__all__ = ["gradients_kernel", "scores_kernel"]


@triton.jit(do_not_specialize=["width", "places"])
def scores_kernel(
    keys_ptr, query_ptr, v_ptr, p_ptr, scale, seed_ptr, e_ptr, width, places, TILES: tl.constexpr,
    GROUPS: tl.constexpr, EXPECTED: tl.constexpr, FUNCTION: tl.constexpr,
):  # fmt: skip
    """e[b, w, s] = sum_a v[a] phi(k[b, s, a] + q[b, w, a]), one program for each score.

    p_ptr may be None for p = 1. For the expectation seed_ptr is None and EXPECTED is epsilon; otherwise EXPECTED is
    None. The scale is a number, a pointer to one, or None for a function without noise.
    """
    row = tl.program_id(0)
    query = row // places
    key = (query // width) * places + row % places
    scale, seed, p = _scale(scale), seed_of(seed_ptr, EXPECTED), _p(p_ptr)
    total = tl.zeros([GROUPS, 16], tl.float32)
    for tile in range(TILES):
        ks = _load(keys_ptr, key, tile, TILES, GROUPS)
        qs = _load(query_ptr, query, tile, TILES, GROUPS)
        vs = _load(v_ptr, row * 0, tile, TILES, GROUPS)
        epsilons = tile_epsilons(seed, ks[0], row.to(tl.int64) * TILES + tile, GROUPS, FUNCTION[0], EXPECTED)
        for part in tl.static_range(4):
            total += vs[part] * phi(
                ks[part] + qs[part], p, epsilons[part], scale, FUNCTION[0], FUNCTION[1], FUNCTION[2], FUNCTION[3],
                FUNCTION[4], FUNCTION[5], FUNCTION[6], FUNCTION[7],
            )  # fmt: skip
    tl.store(e_ptr + row, tl.sum(total))


@triton.jit(do_not_specialize=["width", "places", "share"])
def gradients_kernel(
    g_ptr, keys_ptr, query_ptr, v_ptr, p_ptr, scale, seed_ptr, gq_ptr, gk_ptr, gv_ptr, gp_ptr, width, places, share,
    TILES: tl.constexpr, GROUPS: tl.constexpr, AT_ONCE: tl.constexpr, EXPECTED: tl.constexpr, FUNCTION: tl.constexpr,
):  # fmt: skip
    """For the gradient g[b, w, s] of the scores, store q's gradient in parts and add to the gradients of k, v and p.

    A program processes a tile of one b and `share` of its places. It owns that part of gk; its parts of the other
    gradients are gq[share, b, w, a], gv[share, b, a] and gp[share, b, tile], which is None if p_ptr is. It loads
    AT_ONCE places at a time to hide the memory's latency.
    """
    b, tile, part_of_places = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = part_of_places * tl.num_programs(0) + b
    first, last = part_of_places * share, tl.minimum((part_of_places + 1) * share, places)
    scale, seed, p = _scale(scale), seed_of(seed_ptr, EXPECTED), _p(p_ptr)
    ahead = tl.arange(0, AT_ONCE)[:, None, None]
    one = tl.arange(0, 1)[:, None, None]
    vs = _load_rows(v_ptr, one, tile, one == 0, TILES, GROUPS)
    zero = tl.zeros([AT_ONCE, GROUPS, 16], tl.float32)
    v0, v1, v2, v3 = zero, zero, zero, zero
    p_sum = zero
    w = b * 0
    while w < width:
        query = b * width + w
        qs = _load_rows(query_ptr, query + one, tile, one == 0, TILES, GROUPS)
        q0, q1, q2, q3 = zero, zero, zero, zero
        s = first
        while s < last:
            inside = s + ahead < last
            row = query.to(tl.int64) * places + s + ahead
            g = tl.load(g_ptr + row, mask=inside, other=0.0)
            key = b * places + s + ahead
            ks = _load_rows(keys_ptr, key, tile, inside, TILES, GROUPS)
            gks = _load_rows(gk_ptr, key, tile, inside, TILES, GROUPS)
            epsilons = tile_epsilons(seed, ks[0], row * TILES + tile, GROUPS, FUNCTION[0], EXPECTED)
            for part in tl.static_range(4):
                value, dx, dp = phi_derivatives(
                    ks[part] + qs[part], p, epsilons[part], scale, FUNCTION[0], FUNCTION[1], FUNCTION[2], FUNCTION[3],
                    FUNCTION[4], FUNCTION[5], FUNCTION[6], FUNCTION[7],
                )  # fmt: skip
                through, value = g * vs[part] * dx, g * value
                p_sum += g * vs[part] * dp
                tl.store(_at(gk_ptr, key, tile, part, TILES, GROUPS), gks[part] + through, mask=inside)
                if part == 0:
                    q0, v0 = q0 + through, v0 + value
                elif part == 1:
                    q1, v1 = q1 + through, v1 + value
                elif part == 2:
                    q2, v2 = q2 + through, v2 + value
                else:
                    q3, v3 = q3 + through, v3 + value
            s += AT_ONCE
        query_row = (rows * width + w) + one
        _store_sum(gq_ptr, q0, query_row, tile, 0, TILES, GROUPS)
        _store_sum(gq_ptr, q1, query_row, tile, 1, TILES, GROUPS)
        _store_sum(gq_ptr, q2, query_row, tile, 2, TILES, GROUPS)
        _store_sum(gq_ptr, q3, query_row, tile, 3, TILES, GROUPS)
        w += 1
    before = _load_rows(gv_ptr, rows + one, tile, one == 0, TILES, GROUPS)
    _store_sum(gv_ptr, v0, rows + one, tile, 0, TILES, GROUPS, before[0])
    _store_sum(gv_ptr, v1, rows + one, tile, 1, TILES, GROUPS, before[1])
    _store_sum(gv_ptr, v2, rows + one, tile, 2, TILES, GROUPS, before[2])
    _store_sum(gv_ptr, v3, rows + one, tile, 3, TILES, GROUPS, before[3])
    if gp_ptr is not None:
        place = gp_ptr + rows * TILES + tile
        tl.store(place, tl.load(place) + tl.sum(p_sum))


@triton.jit
def _scale(scale):
    if scale is None:
        return 0.0
    else:
        return scale_of(scale)


@triton.jit
def _p(p_ptr):
    if p_ptr is None:
        return tl.full([1, 1], 1.0, tl.float32)
    else:
        return tl.load(p_ptr).to(tl.float32)


@triton.jit
def _at(pointer, row, tile, PART: tl.constexpr, TILES: tl.constexpr, GROUPS: tl.constexpr):
    """The addresses of a part of a row's tile; a row has TILES tiles."""
    return pointer + (row * TILES + tile).to(tl.int64) * (GROUPS * 64) + tile_places(PART, GROUPS)


@triton.jit
def _load(pointer, row, tile, TILES: tl.constexpr, GROUPS: tl.constexpr):
    """Load the four parts of a row's tile."""
    return (
        tl.load(_at(pointer, row, tile, 0, TILES, GROUPS)), tl.load(_at(pointer, row, tile, 1, TILES, GROUPS)),
        tl.load(_at(pointer, row, tile, 2, TILES, GROUPS)), tl.load(_at(pointer, row, tile, 3, TILES, GROUPS)),
    )  # fmt: skip


@triton.jit
def _load_rows(pointer, rows, tile, inside, TILES: tl.constexpr, GROUPS: tl.constexpr):
    """Load the four parts of a tile of several rows, [rows, 1, 1]; zeros for rows that are not inside."""
    return (
        tl.load(_at(pointer, rows, tile, 0, TILES, GROUPS), mask=inside, other=0.0),
        tl.load(_at(pointer, rows, tile, 1, TILES, GROUPS), mask=inside, other=0.0),
        tl.load(_at(pointer, rows, tile, 2, TILES, GROUPS), mask=inside, other=0.0),
        tl.load(_at(pointer, rows, tile, 3, TILES, GROUPS), mask=inside, other=0.0),
    )


@triton.jit
def _store_sum(pointer, values, row, tile, PART: tl.constexpr, TILES: tl.constexpr, GROUPS: tl.constexpr, before=0.0):
    """Store `before` plus the sum over the first dimension in a part of one row's tile."""
    tl.store(_at(pointer, row, tile, PART, TILES, GROUPS), before + tl.sum(values, axis=0, keep_dims=True))
