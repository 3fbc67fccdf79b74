"""Standard normal noise from a counter in Triton, the same xi as in noisyact/noise.py and ops/native/philox.h."""

from __future__ import annotations

import triton
import triton.language as tl

from noisyact.ops.triton.instructions import cosine, log2, sine, square_root

__all__ = ["four_words", "normal_pair"]

ROUNDS = tl.constexpr(7)


@triton.jit
def four_words(seed, c0, c1, c2, c3):
    """Philox4x32: the four words of each counter (c0, c1, c2, c3), uint32 tensors of one shape; seed: one int64."""
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        a = _product(c0, 0xD2511F53)
        b = _product(c2, 0xCD9E8D57)
        c0 = (b >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (a >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = b.to(tl.uint32)
        c3 = a.to(tl.uint32)
        # 64 bits, because a debug build reports the overflow of 32 bits. The compiler narrows the sum again.
        k0 = (k0.to(tl.uint64) + 0x9E3779B9).to(tl.uint32)
        k1 = (k1.to(tl.uint64) + 0xBB67AE85).to(tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def _product(c, FACTOR: tl.constexpr):
    """All 64 bits of a product in one instruction; tl.philox uses one instruction for each half."""
    return c.to(tl.uint64) * tl.full([1], FACTOR, tl.uint64)


@triton.jit
def normal_pair(w0, w1, NUMBER: tl.constexpr = tl.float32):
    """Box-Muller: the radius from 31 bits, never exactly 0; the angle from 32 bits as a signed fraction of 2 pi.

    NUMBER is the dtype of the result, float32 or float64.
    """
    if NUMBER == tl.float64:
        wide = ((w0 >> 1).to(tl.float64) + 0.5) * 4.656612873077393e-10  # 2^-31
        turn = w1.to(tl.int32, bitcast=True).to(tl.float64) * 1.4629180792671596e-09  # 2 pi / 2^32
        length = tl.sqrt(tl.log(wide) * -2.0)
        return length * tl.cos(turn), length * tl.sin(turn)
    else:
        u = (w0 >> 1).to(tl.int32).to(tl.float32) * 4.656612873077393e-10 + 2.3283064365386963e-10
        radius = square_root(_minus_two_logarithm(u))
        angle = w1.to(tl.int32, bitcast=True).to(tl.float32) * 1.4629180792671596e-09  # 2 pi / 2^32
        return radius * cosine(angle), radius * sine(angle)


@triton.jit
def _minus_two_logarithm(u):
    """-2 ln(u) for u in (0, 1]. Near 1 by a series, because the result is as small as the instruction's error."""
    v = 1.0 - u
    near = v * (2.0 + v * (1.0 + v * 0.6666667))
    return tl.where(v < 0.0078125, near, log2(u) * -1.3862943611198906)
