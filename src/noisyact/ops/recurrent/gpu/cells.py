"""The cells in Triton on tiles of sequences and units: values for forward, factors of the gradients for backward; and
the masks of zoneout and recurrent dropout, which StateRules in ../types.py specifies.

They must equal reference.py. The compile-time constants are KIND; GATE (a scheme's code), GATE_LEAK and GATE_CLIP of
the sigmoids; STATE, STATE_LEAK and STATE_CLIP of the tanh; IS_HARD; and DRAW, which selects xi or its expectation. All
numbers are float32 or, in a layer of float64, float64; NUMBER is this dtype.
"""

from __future__ import annotations

import triton
import triton.language as tl

from noisyact.ops.triton.normal import four_words, normal_pair
from noisyact.ops.triton.phi import HARD, SOFT_SIGMOID, SOFT_TANH, drawn_epsilon, expected_epsilon, phi, phi_derivatives

__all__ = [
    "GRU", "LEARNED", "LSTM", "RNN_RELU", "RNN_TANH", "draw_four", "draw_words", "dropout_kernel", "gru_factors",
    "gru_values", "lstm_factors", "lstm_values", "mixed", "per_unit", "sigm", "sigm_d", "tanh", "tanh_d", "zone",
]  # fmt: skip

LSTM, GRU, RNN_TANH, RNN_RELU = (tl.constexpr(code) for code in range(4))
LEARNED = tl.constexpr(2)
"""The RESET of a layer with `reset_h`; 1 stands for resets to zeros, and 0 for none."""


@triton.jit
def per_unit(
    pointer, n, inside, PRESENT: tl.constexpr, otherwise: tl.constexpr, NUMBER: tl.constexpr = tl.float32
):  # fmt: skip
    """Load one number for each unit, [1, units]; `otherwise` if the tensor is not PRESENT."""
    if PRESENT:
        return tl.load(pointer + n, mask=inside, other=0.0).to(NUMBER)[None, :]
    return (n[None, :] * 0).to(NUMBER) + otherwise


@triton.jit
def one_by_one(n, H):
    """The units n, in a form that hides from Triton which of them are adjacent in memory.

    Otherwise it would give a thread several adjacent units, while a product gives it others. All values of a step would
    then be exchanged between the threads instead of the product alone.
    """
    return n + tl.where(H > 0, 0, 1)


@triton.jit
def draw_four(seed, unit, row, step, block: tl.constexpr, NUMBER: tl.constexpr = tl.float32):
    """The four normals of counter (unit, row, step, block) for every row and unit."""
    zero = (row[:, None] * 0 + unit[None, :] * 0).to(tl.uint32)
    w0, w1, w2, w3 = four_words(
        seed, zero + unit[None, :].to(tl.uint32), zero + row[:, None].to(tl.uint32), zero + step, zero + block
    )
    n0, n1 = normal_pair(w0, w1, NUMBER)
    n2, n3 = normal_pair(w2, w3, NUMBER)
    return n0, n1, n2, n3


@triton.jit
def draw_words(seed, unit, row, step, block: tl.constexpr):
    """Words 0 and 1 of counter (unit, row, step, block) for every row and unit. Of a row number 32 bits count."""
    zero = (row[:, None] * 0 + unit[None, :] * 0).to(tl.uint32)
    w0, w1, _, _ = four_words(
        seed, zero + unit[None, :].to(tl.uint32), zero + row[:, None].to(tl.uint32), zero + step, zero + block
    )
    return w0, w1


@triton.jit
def _epsilon(xi, SCHEME: tl.constexpr, DRAW: tl.constexpr):
    if DRAW:
        return drawn_epsilon(xi, SCHEME)
    return expected_epsilon(xi, SCHEME)


@triton.jit
def sigm(x, p, xi, scale, SCHEME: tl.constexpr, LEAK: tl.constexpr, CLIP: tl.constexpr, IS_HARD: tl.constexpr,
         DRAW: tl.constexpr):  # fmt: skip
    """The noisy sigmoid."""
    SOFT: tl.constexpr = HARD if IS_HARD else SOFT_SIGMOID
    return phi(x, p, _epsilon(xi, SCHEME, DRAW), scale, SCHEME, LEAK, CLIP, 0.25, 0.5, 0.0, 1.0, SOFT)


@triton.jit
def sigm_d(x, p, xi, scale, SCHEME: tl.constexpr, LEAK: tl.constexpr, CLIP: tl.constexpr, IS_HARD: tl.constexpr,
           DRAW: tl.constexpr):  # fmt: skip
    """The noisy sigmoid, and its derivatives with respect to x and p."""
    SOFT: tl.constexpr = HARD if IS_HARD else SOFT_SIGMOID
    return phi_derivatives(x, p, _epsilon(xi, SCHEME, DRAW), scale, SCHEME, LEAK, CLIP, 0.25, 0.5, 0.0, 1.0, SOFT)


@triton.jit
def tanh(x, p, xi, scale, KIND: tl.constexpr, SCHEME: tl.constexpr, LEAK: tl.constexpr, CLIP: tl.constexpr,
         IS_HARD: tl.constexpr, DRAW: tl.constexpr):  # fmt: skip
    """The noisy tanh, or the noisy ReLU."""
    SOFT: tl.constexpr = HARD if (IS_HARD or KIND == RNN_RELU) else SOFT_TANH
    LOW: tl.constexpr = 0.0 if KIND == RNN_RELU else -1.0
    HIGH: tl.constexpr = float("inf") if KIND == RNN_RELU else 1.0
    return phi(x, p, _epsilon(xi, SCHEME, DRAW), scale, SCHEME, LEAK, CLIP, 1.0, 0.0, LOW, HIGH, SOFT)


@triton.jit
def tanh_d(x, p, xi, scale, KIND: tl.constexpr, SCHEME: tl.constexpr, LEAK: tl.constexpr, CLIP: tl.constexpr,
           IS_HARD: tl.constexpr, DRAW: tl.constexpr):  # fmt: skip
    """The noisy tanh, or the noisy ReLU, and its derivatives by x and by p."""
    SOFT: tl.constexpr = HARD if (IS_HARD or KIND == RNN_RELU) else SOFT_TANH
    LOW: tl.constexpr = 0.0 if KIND == RNN_RELU else -1.0
    HIGH: tl.constexpr = float("inf") if KIND == RNN_RELU else 1.0
    return phi_derivatives(x, p, _epsilon(xi, SCHEME, DRAW), scale, SCHEME, LEAK, CLIP, 1.0, 0.0, LOW, HIGH, SOFT)


@triton.jit
def lstm_values(
    a0, a1, a2, a3, c, p0, p1, p2, p3, p4, xi0, xi1, xi2, xi3, xi4, gate_scale, state_scale, dtype: tl.constexpr,
    GATE: tl.constexpr, GATE_LEAK: tl.constexpr, GATE_CLIP: tl.constexpr, STATE: tl.constexpr,
    STATE_LEAK: tl.constexpr, STATE_CLIP: tl.constexpr, IS_HARD: tl.constexpr, DRAW: tl.constexpr,
):  # fmt: skip
    """The new h, the new c, and the new c as saved. The tanh is applied to the saved c, which backward will see."""
    gi = sigm(a0, p0, xi0, gate_scale, GATE, GATE_LEAK, GATE_CLIP, IS_HARD, DRAW)
    gf = sigm(a1, p1, xi1, gate_scale, GATE, GATE_LEAK, GATE_CLIP, IS_HARD, DRAW)
    gg = tanh(a2, p2, xi2, state_scale, LSTM, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW)
    go = sigm(a3, p3, xi3, gate_scale, GATE, GATE_LEAK, GATE_CLIP, IS_HARD, DRAW)
    c = gf * c + gi * gg
    kept = c.to(dtype)
    out = tanh(kept.to(c.dtype), p4, xi4, state_scale, LSTM, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW)
    return go * out, c, kept


@triton.jit
def lstm_factors(
    a0, a1, a2, a3, c_before, c_now, p0, p1, p2, p3, p4, xi0, xi1, xi2, xi3, xi4, gate_scale, state_scale,
    GATE: tl.constexpr, GATE_LEAK: tl.constexpr, GATE_CLIP: tl.constexpr, STATE: tl.constexpr,
    STATE_LEAK: tl.constexpr, STATE_CLIP: tl.constexpr, IS_HARD: tl.constexpr, DRAW: tl.constexpr,
):  # fmt: skip
    """The factors of the gradients. With the gradients dh and dc from the later steps, ``dc' = dc + dh to_c``.

    Returns: to_c; the factors of dc' for the pre-activations i, f, g, and of dh for o; f, the factor of dc' for the
    previous c; the factors of dc' for p of i, f, g, and of dh for p of o and of the tanh of c.
    """
    gi, gi_x, gi_p = sigm_d(a0, p0, xi0, gate_scale, GATE, GATE_LEAK, GATE_CLIP, IS_HARD, DRAW)
    gf, gf_x, gf_p = sigm_d(a1, p1, xi1, gate_scale, GATE, GATE_LEAK, GATE_CLIP, IS_HARD, DRAW)
    gg, gg_x, gg_p = tanh_d(a2, p2, xi2, state_scale, LSTM, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW)
    go, go_x, go_p = sigm_d(a3, p3, xi3, gate_scale, GATE, GATE_LEAK, GATE_CLIP, IS_HARD, DRAW)
    out, out_x, out_p = tanh_d(c_now, p4, xi4, state_scale, LSTM, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW)
    return (
        go * out_x, gg * gi_x, c_before * gf_x, gi * gg_x, out * go_x, gf,
        gg * gi_p, c_before * gf_p, gi * gg_p, out * go_p, go * out_p,
    )  # fmt: skip


@triton.jit
def gru_values(
    a0, a1, a2, q, h, p0, p1, p2, xi0, xi1, xi2, gate_scale, state_scale, dtype: tl.constexpr,
    GATE: tl.constexpr, GATE_LEAK: tl.constexpr, GATE_CLIP: tl.constexpr, STATE: tl.constexpr,
    STATE_LEAK: tl.constexpr, STATE_CLIP: tl.constexpr, IS_HARD: tl.constexpr, DRAW: tl.constexpr,
):  # fmt: skip
    """The new h and the candidate's pre-activation. a0 and a1 are complete; a2 is the input's part of it."""
    r = sigm(a0, p0, xi0, gate_scale, GATE, GATE_LEAK, GATE_CLIP, IS_HARD, DRAW)
    z = sigm(a1, p1, xi1, gate_scale, GATE, GATE_LEAK, GATE_CLIP, IS_HARD, DRAW)
    a2 = (a2 + r * q).to(dtype).to(h.dtype)
    candidate = tanh(a2, p2, xi2, state_scale, GRU, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW)
    return candidate + z * (h - candidate), a2


@triton.jit
def gru_factors(
    a0, a1, a2, q, h, p0, p1, p2, xi0, xi1, xi2, gate_scale, state_scale,
    GATE: tl.constexpr, GATE_LEAK: tl.constexpr, GATE_CLIP: tl.constexpr, STATE: tl.constexpr,
    STATE_LEAK: tl.constexpr, STATE_CLIP: tl.constexpr, IS_HARD: tl.constexpr, DRAW: tl.constexpr,
):  # fmt: skip
    """The factors of dh in the gradients.

    Returns: the factors for the pre-activations r, z, n through the recurrent product and n through the input; z, the
    factor for the previous h; the factors for p of r, z, n.
    """
    r, r_x, r_p = sigm_d(a0, p0, xi0, gate_scale, GATE, GATE_LEAK, GATE_CLIP, IS_HARD, DRAW)
    z, z_x, z_p = sigm_d(a1, p1, xi1, gate_scale, GATE, GATE_LEAK, GATE_CLIP, IS_HARD, DRAW)
    candidate, n_x, n_p = tanh_d(a2, p2, xi2, state_scale, GRU, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW)
    to_n = (1.0 - z) * n_x
    to_q = to_n * q
    return (
        to_q * r_x, (h - candidate) * z_x, to_n * r, to_n, z,
        to_q * r_p, (h - candidate) * z_p, (1.0 - z) * n_p,
    )  # fmt: skip


@triton.jit
def zone(words, limit, MASKED: tl.constexpr):
    """The zoneout of a tile for :func:`mixed`: the units whose word is below the limit, or the expectation."""
    if MASKED:
        return words < limit.to(tl.uint32)
    else:
        return limit.to(tl.uint32).to(tl.float32) * 2.3283064365386963e-10  # 2^-32


@triton.jit
def mixed(chosen, old, new, MASKED: tl.constexpr):
    """The old values in the units of a zone, and the new ones in the others; without masks the expectation."""
    if MASKED:
        return tl.where(chosen, old, new)
    else:
        return chosen * old + (1.0 - chosen) * new


@triton.jit(do_not_specialize=["limit", "B", "H"])
def dropout_kernel(
    factors_ptr, rows_ptr, seed_ptr, scale, limit, B, H, HAS_ROWS: tl.constexpr, BB: tl.constexpr, BU: tl.constexpr
):
    """Write 0 for the chosen units, and the scale for all others."""
    m = tl.program_id(0) * BB + tl.arange(0, BB)
    n = tl.program_id(1) * BU + tl.arange(0, BU)
    inside = (m < B)[:, None] & (n < H)[None, :]
    row = m
    if HAS_ROWS:
        row = tl.load(rows_ptr + m, mask=m < B, other=0)
    word, _ = draw_words(tl.load(seed_ptr), n, row, 0, 3)
    factors = tl.where(zone(word, limit, True), 0.0, scale)
    tl.store(factors_ptr + m.to(tl.int64)[:, None] * H + n[None, :], factors, mask=inside)
