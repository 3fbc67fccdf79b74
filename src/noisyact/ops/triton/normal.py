"""Standard normal noise from a counter in Triton, the same xi as in noisyact/noise.py and ops/native/philox.h."""

from __future__ import annotations

import triton
import triton.language as tl

from noisyact.ops.triton.instructions import INTERPRETED, cosine, log2, sine, square_root

__all__ = ["four_words", "normal_pair"]

_ROUNDS = tl.constexpr(7)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def _keys_in_ptx() -> str:
    """The keys of all rounds but the first, $0 to $11, from those of the first round, $12 and $13."""
    rounds = range(1, _ROUNDS.value)
    steps = [index * step & 0xFFFFFFFF for index in rounds for step in _KEY_STEPS]
    return "\n".join(f"add.u32 ${i}, ${len(steps) + i % 2}, {step};" for i, step in enumerate(steps))


def _philox_in_ptx() -> str:
    """Philox4x32: the words $4 to $7 of a counter give $0 to $3, with two keys for each round from $8 on."""
    lines = ["{", ".reg .b32 c<4>, low<2>, high<2>;", ".reg .b64 a, b;"]
    lines += [f"mov.b32 c{i}, ${4 + i};" for i in range(4)]
    for index in range(_ROUNDS.value):
        lines += [
            "mul.wide.u32 a, c0, 0xD2511F53;", "mov.b64 {low0, high0}, a;",
            "mul.wide.u32 b, c2, 0xCD9E8D57;", "mov.b64 {low1, high1}, b;",
            "xor.b32 c0, high1, c1;", f"xor.b32 c0, c0, ${8 + 2 * index};",
            "xor.b32 c2, high0, c3;", f"xor.b32 c2, c2, ${9 + 2 * index};",
            "mov.b32 c1, low1;", "mov.b32 c3, low0;",
        ]  # fmt: skip
    return "\n".join([*lines, *(f"mov.b32 ${i}, c{i};" for i in range(4)), "}"])


def _constraints(outputs: int, inputs: int) -> str:
    return ",".join(["=r"] * outputs + ["r"] * inputs)


# Two operations instead of a hundred, because the time in which Triton compiles a kernel is cubic in their number. The
# keys are apart, so that they are computed once for all counters.
_KEYS, _PHILOX = tl.constexpr(_keys_in_ptx()), tl.constexpr(_philox_in_ptx())
_OF_KEYS = tl.constexpr(_constraints(2 * _ROUNDS.value - 2, 2))
_OF_PHILOX = tl.constexpr(_constraints(4, 4 + 2 * _ROUNDS.value))
_FOUR, _TWELVE = tl.constexpr((tl.uint32,) * 4), tl.constexpr((tl.uint32,) * (2 * _ROUNDS.value - 2))


@triton.jit
def four_words(seed, c0, c1, c2, c3):
    """Philox4x32: the four words of each counter (c0, c1, c2, c3), uint32 tensors of one shape; seed: one int64."""
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    if INTERPRETED:
        return _four_words(k0, k1, c0, c1, c2, c3)
    else:
        given = (c0, c1, c2, c3, k0, k1)
        keys = tl.inline_asm_elementwise(_KEYS, _OF_KEYS, (k0, k1), _TWELVE, is_pure=True, pack=1)
        return tl.inline_asm_elementwise(_PHILOX, _OF_PHILOX, given + keys, _FOUR, is_pure=True, pack=1)


@triton.jit
def _four_words(k0, k1, c0, c1, c2, c3):
    """The same without PTX, in 64 bits, because the interpreter warns of an overflow of 32 bits."""
    for _ in tl.static_range(_ROUNDS):
        a = _product(c0, 0xD2511F53)
        b = _product(c2, 0xCD9E8D57)
        c0 = (b >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (a >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = b.to(tl.uint32)
        c3 = a.to(tl.uint32)
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
