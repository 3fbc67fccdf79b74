"""The activation in Triton: one pass over memory in each direction; xi is computed from the seed and the position.

Element ``64 g + 16 l + j`` uses normal l of counter ``16 g + j``. A tile consists of GROUPS such groups and is
processed in four parts, one for each l, of shape [GROUPS, 16]. A thread has the same counters in all four parts, so it
uses every random word that it computes, and still reads and writes 16 bytes at a time.

A program processes every P-th tile, where P is the number of programs. If p has one value for each element of a row, P
tiles cover whole rows: all tiles of a program use the same elements of p, so the program reads them once and sums their
gradients in registers. FUNCTION holds the last arguments of phi: SCHEME, LEAK, CLIP, SLOPE, OFFSET, LOW, HIGH, SOFT.
"""

from __future__ import annotations

import triton
import triton.language as tl

from noisyact.ops.triton.instructions import INTERPRETED
from noisyact.ops.triton.normal import four_words, normal_pair
from noisyact.ops.triton.phi import drawn_epsilon, phi, phi_derivatives

__all__ = ["backward_kernel", "forward_kernel", "scale_of", "seed_of", "tile_epsilons", "tile_places"]


@triton.jit(do_not_specialize=["n", "features"])
def forward_kernel(
    x_ptr, p_ptr, scale, seed_ptr, y_ptr, used_ptr, n, features, GROUPS: tl.constexpr, PER_FEATURE: tl.constexpr,
    EXPECTED: tl.constexpr, FUNCTION: tl.constexpr,
):  # fmt: skip
    """Compute phi of the n elements of x.

    p_ptr may be None for p = 1. For the expectation seed_ptr is None and EXPECTED is epsilon; otherwise EXPECTED is
    None. The scale is a number or a pointer to one. It is stored at used_ptr unless that is None.
    """
    scale = scale_of(scale)
    if used_ptr is not None:
        tl.store(used_ptr, scale, mask=tl.program_id(0) == 0)
    seed = seed_of(seed_ptr, EXPECTED)
    ps = _p(p_ptr, features, GROUPS, PER_FEATURE)
    whole, rest = _tiles(n, GROUPS)
    tile = tl.program_id(0)
    while tile < whole:
        _forward_tile(x_ptr, ps, scale, seed, y_ptr, tile, rest, GROUPS, True, EXPECTED, FUNCTION)
        tile += tl.num_programs(0)
    if tile == whole and rest > 0:
        _forward_tile(x_ptr, ps, scale, seed, y_ptr, tile, rest, GROUPS, False, EXPECTED, FUNCTION)


@triton.jit(do_not_specialize=["n", "features"])
def backward_kernel(
    g_ptr, x_ptr, p_ptr, scale, seed_ptr, gx_ptr, partial_ptr, n, features, GROUPS: tl.constexpr,
    PER_FEATURE: tl.constexpr, EXPECTED: tl.constexpr, FUNCTION: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of x and each program's part of p's gradient: one sum, or one for each element of a tile.

    The arguments are those of forward_kernel. partial_ptr is None if p_ptr is.
    """
    scale = scale_of(scale)
    seed = seed_of(seed_ptr, EXPECTED)
    ps = _p(p_ptr, features, GROUPS, PER_FEATURE)
    zero = tl.zeros([GROUPS, 16], tl.float32)
    sums = (zero, zero, zero, zero)
    whole, rest = _tiles(n, GROUPS)
    tile = tl.program_id(0)
    while tile < whole:
        sums = _backward_tile(g_ptr, x_ptr, ps, scale, seed, gx_ptr, sums, tile, rest, GROUPS, True, PER_FEATURE,
                              EXPECTED, FUNCTION)  # fmt: skip
        tile += tl.num_programs(0)
    if tile == whole and rest > 0:
        sums = _backward_tile(g_ptr, x_ptr, ps, scale, seed, gx_ptr, sums, tile, rest, GROUPS, False, PER_FEATURE,
                              EXPECTED, FUNCTION)  # fmt: skip
    if partial_ptr is not None:
        if PER_FEATURE:
            first = tl.program_id(0).to(tl.int64) * (GROUPS * 64)
            for part in tl.static_range(4):
                places = tile_places(part, GROUPS)
                tl.store(partial_ptr + first + places, sums[part], mask=places < n - first)
        else:
            tl.store(partial_ptr + tl.program_id(0), tl.sum(sums[0]))


@triton.jit
def _forward_tile(
    x_ptr, ps, scale, seed, y_ptr, tile, rest, GROUPS: tl.constexpr, WHOLE: tl.constexpr, EXPECTED: tl.constexpr,
    FUNCTION: tl.constexpr,
):  # fmt: skip
    first = tile.to(tl.int64) * (GROUPS * 64)
    xs = _load(x_ptr + first, rest, GROUPS, WHOLE)
    epsilons = tile_epsilons(seed, xs[0], tile, GROUPS, FUNCTION[0], EXPECTED)
    for part in tl.static_range(4):
        y = phi(xs[part], ps[part], epsilons[part], scale, FUNCTION[0], FUNCTION[1], FUNCTION[2], FUNCTION[3],
                FUNCTION[4], FUNCTION[5], FUNCTION[6], FUNCTION[7])  # fmt: skip
        _store_part(y_ptr + first, y, rest, part, GROUPS, WHOLE)


@triton.jit
def _backward_tile(
    g_ptr, x_ptr, ps, scale, seed, gx_ptr, sums, tile, rest, GROUPS: tl.constexpr, WHOLE: tl.constexpr,
    PER_FEATURE: tl.constexpr, EXPECTED: tl.constexpr, FUNCTION: tl.constexpr,
):  # fmt: skip
    """Return the sums including the tile's contribution; without PER_FEATURE only the first sum is used."""
    first = tile.to(tl.int64) * (GROUPS * 64)
    gs = _load(g_ptr + first, rest, GROUPS, WHOLE)
    xs = _load(x_ptr + first, rest, GROUPS, WHOLE)
    epsilons = tile_epsilons(seed, xs[0], tile, GROUPS, FUNCTION[0], EXPECTED)
    s0, s1, s2, s3 = sums
    for part in tl.static_range(4):
        _, dx, dp = phi_derivatives(
            xs[part], ps[part], epsilons[part], scale, FUNCTION[0], FUNCTION[1], FUNCTION[2], FUNCTION[3], FUNCTION[4],
            FUNCTION[5], FUNCTION[6], FUNCTION[7],
        )  # fmt: skip
        _store_part(gx_ptr + first, gs[part] * dx, rest, part, GROUPS, WHOLE)
        if part == 0 or not PER_FEATURE:
            s0 += gs[part] * dp
        elif part == 1:
            s1 += gs[part] * dp
        elif part == 2:
            s2 += gs[part] * dp
        else:
            s3 += gs[part] * dp
    return s0, s1, s2, s3


@triton.jit
def scale_of(scale):
    """The scale, loaded from memory if it is a pointer."""
    if scale.dtype.is_ptr():
        return tl.load(scale).to(tl.float32)
    else:
        return scale


@triton.jit
def seed_of(seed_ptr, EXPECTED: tl.constexpr):
    """The seed; 0 if no noise is drawn."""
    if EXPECTED is None:
        return tl.load(seed_ptr)
    else:
        return tl.full([], 0, tl.int64)


@triton.jit
def _tiles(n, GROUPS: tl.constexpr):
    """The number of whole tiles, and the number of elements after them."""
    return (n // (GROUPS * 64)).to(tl.int32), (n % (GROUPS * 64)).to(tl.int32)


@triton.jit
def tile_places(PART: tl.constexpr, GROUPS: tl.constexpr):
    """The offsets of a part's elements from the tile's first element."""
    return tl.arange(0, GROUPS)[:, None] * 64 + (tl.arange(0, 16)[None, :] + 16 * PART)


@triton.jit
def _p(p_ptr, features, GROUPS: tl.constexpr, PER_FEATURE: tl.constexpr):
    """p for the four parts of a tile; it is the same for all tiles of a program."""
    if p_ptr is None:
        one = tl.full([1, 1], 1.0, tl.float32)
        return one, one, one, one
    elif PER_FEATURE:
        first = ((tl.program_id(0).to(tl.int64) * (GROUPS * 64)) % features).to(tl.int32)
        return (
            tl.load(p_ptr + (first + tile_places(0, GROUPS)) % features).to(tl.float32),
            tl.load(p_ptr + (first + tile_places(1, GROUPS)) % features).to(tl.float32),
            tl.load(p_ptr + (first + tile_places(2, GROUPS)) % features).to(tl.float32),
            tl.load(p_ptr + (first + tile_places(3, GROUPS)) % features).to(tl.float32),
        )
    else:
        p = tl.load(p_ptr).to(tl.float32)
        return p, p, p, p


@triton.jit
def tile_epsilons(seed, x, tile, GROUPS: tl.constexpr, SCHEME: tl.constexpr, EXPECTED: tl.constexpr):
    """epsilon for the four parts of a tile, or of several tiles, [tiles, 1, 1]. x is one part, for its layout."""
    if EXPECTED is not None:
        expected = tl.full([1, 1], EXPECTED, tl.float32)
        return expected, expected, expected, expected
    else:
        first = tile.to(tl.int64) * (GROUPS * 16)  # GROUPS * 16 divides 2^32, so a tile has a single upper word
        counter = tl.arange(0, GROUPS)[:, None] * 16 + tl.arange(0, 16)[None, :]
        counter = (first & 0xFFFFFFFF).to(tl.uint32) + counter.to(tl.uint32)
        zero = tl.zeros([1, 1], tl.uint32)
        w0, w1, w2, w3 = four_words(seed, _beside(counter, x), (first >> 32).to(tl.uint32), zero, zero)
        n0, n1 = normal_pair(w0, w1)
        n2, n3 = normal_pair(w2, w3)
        return (
            drawn_epsilon(n0, SCHEME), drawn_epsilon(n1, SCHEME), drawn_epsilon(n2, SCHEME), drawn_epsilon(n3, SCHEME),
        )  # fmt: skip


@triton.jit
def _beside(counter, x):
    """Give the counter x's layout. Otherwise the compiler would choose another one and have to move all the noise."""
    if INTERPRETED:
        return counter
    else:
        return tl.inline_asm_elementwise("mov.b32 $0, $1; // $2", "=r,r,f", [counter, x], tl.uint32, True, 1)


@triton.jit
def _load(pointer, rest, GROUPS: tl.constexpr, WHOLE: tl.constexpr):
    """Load the four parts of a tile. Unless it is WHOLE, the tile has `rest` elements."""
    return (
        _load_part(pointer, rest, 0, GROUPS, WHOLE), _load_part(pointer, rest, 1, GROUPS, WHOLE),
        _load_part(pointer, rest, 2, GROUPS, WHOLE), _load_part(pointer, rest, 3, GROUPS, WHOLE),
    )  # fmt: skip


@triton.jit
def _load_part(pointer, rest, PART: tl.constexpr, GROUPS: tl.constexpr, WHOLE: tl.constexpr):
    places = tile_places(PART, GROUPS)
    if WHOLE:  # without a mask, because Triton would load elements one by one under a mask that may end anywhere
        return tl.load(pointer + places).to(tl.float32)
    else:
        return tl.load(pointer + places, mask=places < rest, other=0.0).to(tl.float32)


@triton.jit
def _store_part(pointer, values, rest, PART: tl.constexpr, GROUPS: tl.constexpr, WHOLE: tl.constexpr):
    places = tile_places(PART, GROUPS)
    if WHOLE:
        tl.store(pointer + places, values)
    else:
        tl.store(pointer + places, values, mask=places < rest)
