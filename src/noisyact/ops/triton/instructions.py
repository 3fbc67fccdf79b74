"""Elementary float32 functions as single GPU instructions. Triton's own functions are more accurate but slower.

Triton's interpreter, which needs no GPU, and float64 use the exact functions. The instructions flush subnormal numbers
to 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["cosine", "exp2", "flip_sign", "log2", "reciprocal", "sine", "square_root"]

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def _instruction(NAME: tl.constexpr, x):
    return tl.inline_asm_elementwise(NAME + " $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def exp2(x):
    """2^x, relative error 2^-22."""
    if INTERPRETED or x.dtype == tl.float64:
        return tl.exp2(x)
    else:
        return _instruction("ex2.approx.ftz.f32", x)


@triton.jit
def log2(x):
    """The base-2 logarithm, with an error of 2^-22: absolute for x in (1/2, 2), relative elsewhere."""
    if INTERPRETED or x.dtype == tl.float64:
        return tl.log2(x)
    else:
        return _instruction("lg2.approx.ftz.f32", x)


@triton.jit
def reciprocal(x):
    """1 / x, with an error of one unit in the last place; exact for powers of two."""
    if INTERPRETED or x.dtype == tl.float64:
        return 1.0 / x
    else:
        return _instruction("rcp.approx.ftz.f32", x)


@triton.jit
def square_root(x):
    """The square root, relative error 2^-23."""
    if INTERPRETED or x.dtype == tl.float64:
        return tl.sqrt(x)
    else:
        return _instruction("sqrt.approx.ftz.f32", x)


@triton.jit
def flip_sign(v, x, WHERE_SET: tl.constexpr):
    """v, float32, with its sign bit flipped where that of x is set, or where that of x is not set."""
    if INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        if not WHERE_SET:
            bits = ~bits
        return (v.to(tl.int32, bitcast=True) ^ (bits & -0x80000000)).to(tl.float32, bitcast=True)
    elif WHERE_SET:
        return _logic("0x78", v, x)
    else:
        return _logic("0xd2", v, x)


@triton.jit
def _logic(TABLE: tl.constexpr, v, x):
    """The bits of v, of x and of the sign combined by a truth table. Triton takes long for four operations."""
    return tl.inline_asm_elementwise(
        "lop3.b32 $0, $1, $2, 0x80000000, " + TABLE + ";", "=f,f,f", [v, x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def cosine(x):
    """The cosine of x in [-pi, pi], absolute error 2^-20.5."""
    if INTERPRETED or x.dtype == tl.float64:
        return tl.cos(x)
    else:
        return _instruction("cos.approx.ftz.f32", x)


@triton.jit
def sine(x):
    """The sine of x in [-pi, pi], absolute error 2^-20.5."""
    if INTERPRETED or x.dtype == tl.float64:
        return tl.sin(x)
    else:
        return _instruction("sin.approx.ftz.f32", x)
