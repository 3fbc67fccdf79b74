"""The pointwise part of one step of a cell on a GPU: one kernel forward and one backward."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from noisyact.ops.recurrent.gpu.cells import (
    GRU,
    LSTM,
    draw_four,
    gru_factors,
    gru_values,
    lstm_factors,
    lstm_values,
    per_unit,
    tanh,
    tanh_d,
)
from noisyact.ops.recurrent.gpu.settings import functions
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES, CellNoise
from noisyact.ops.triton.launch import Launcher

__all__ = ["cell_backward", "cell_forward"]

_ROWS, _UNITS = 8, 64


@triton.jit(do_not_specialize=["B", "first_step"], do_not_specialize_on_alignment=["rows_ptr"])
def _forward_kernel(
    a_ptr, q_ptr, h_ptr, c_ptr, p_ptr, seed_ptr, gate_scale_ptr, state_scale_ptr, kept_gate_scale_ptr,
    kept_state_scale_ptr, kept_ptr, extra_ptr, new_ptr, rows_ptr, B, H, first_step,
    KIND: tl.constexpr, HAS_P: tl.constexpr, KEEP_SCALES: tl.constexpr, HAS_ROWS: tl.constexpr, DRAW: tl.constexpr,
    GATE: tl.constexpr, GATE_LEAK: tl.constexpr, GATE_CLIP: tl.constexpr,
    STATE: tl.constexpr, STATE_LEAK: tl.constexpr, STATE_CLIP: tl.constexpr, IS_HARD: tl.constexpr,
    NUMBER: tl.constexpr, BB: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    G: tl.constexpr = 4 if KIND == LSTM else (3 if KIND == GRU else 1)
    m = tl.program_id(0) * BB + tl.arange(0, BB)
    n = tl.program_id(1) * BU + tl.arange(0, BU)
    in_units = n < H
    inside = (m < B)[:, None] & in_units[None, :]
    tile = m.to(tl.int64)[:, None] * H + n[None, :]
    row = m.to(tl.int64)[:, None] * (G * H) + n[None, :]
    gate_scale, state_scale = tl.load(gate_scale_ptr).to(NUMBER), tl.load(state_scale_ptr).to(NUMBER)
    if KEEP_SCALES:
        if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
            tl.store(kept_gate_scale_ptr, gate_scale)
            tl.store(kept_state_scale_ptr, state_scale)
    zero = tl.zeros((BB, BU), NUMBER)
    xi0, xi1, xi2, xi3, xi4 = zero, zero, zero, zero, zero
    if DRAW:
        seed, place = tl.load(seed_ptr), m
        if HAS_ROWS:
            place = tl.load(rows_ptr + m, mask=m < B, other=0).to(tl.uint32)
        xi0, xi1, xi2, xi3 = draw_four(seed, n, place, first_step, 0, NUMBER)
        if KIND == LSTM:
            xi4, _, _, _ = draw_four(seed, n, place, first_step, 1, NUMBER)
    a0 = tl.load(a_ptr + row, mask=inside, other=0.0).to(NUMBER)
    p0 = per_unit(p_ptr, n, in_units, HAS_P, 1.0, NUMBER)
    if G > 1:
        a1 = tl.load(a_ptr + row + H, mask=inside, other=0.0).to(NUMBER)
        a2 = tl.load(a_ptr + row + 2 * H, mask=inside, other=0.0).to(NUMBER)
        p1 = per_unit(p_ptr, H + n, in_units, HAS_P, 1.0, NUMBER)
        p2 = per_unit(p_ptr, 2 * H + n, in_units, HAS_P, 1.0, NUMBER)
    if KIND == LSTM:
        a3 = tl.load(a_ptr + row + 3 * H, mask=inside, other=0.0).to(NUMBER)
        p3 = per_unit(p_ptr, 3 * H + n, in_units, HAS_P, 1.0, NUMBER)
        p4 = per_unit(p_ptr, 4 * H + n, in_units, HAS_P, 1.0, NUMBER)
        c = tl.load(c_ptr + tile, mask=inside, other=0.0).to(NUMBER)
        new, c, _ = lstm_values(
            a0, a1, a2, a3, c, p0, p1, p2, p3, p4, xi0, xi1, xi2, xi3, xi4, gate_scale, state_scale, NUMBER,
            GATE, GATE_LEAK, GATE_CLIP, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW,
        )  # fmt: skip
        tl.store(extra_ptr + tile, c, mask=inside)
    elif KIND == GRU:
        a0 += tl.load(q_ptr + row, mask=inside, other=0.0).to(NUMBER)
        a1 += tl.load(q_ptr + row + H, mask=inside, other=0.0).to(NUMBER)
        q = tl.load(q_ptr + row + 2 * H, mask=inside, other=0.0).to(NUMBER)
        h = tl.load(h_ptr + tile, mask=inside, other=0.0).to(NUMBER)
        new, a2 = gru_values(
            a0, a1, a2, q, h, p0, p1, p2, xi0, xi1, xi2, gate_scale, state_scale, NUMBER,
            GATE, GATE_LEAK, GATE_CLIP, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW,
        )  # fmt: skip
        tl.store(kept_ptr + row, a0, mask=inside)
        tl.store(kept_ptr + row + H, a1, mask=inside)
        tl.store(kept_ptr + row + 2 * H, a2, mask=inside)
        tl.store(extra_ptr + tile, q, mask=inside)
    else:
        new = tanh(a0, p0, xi0, state_scale, KIND, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW)
    tl.store(new_ptr + tile, new, mask=inside)


@triton.jit(do_not_specialize=["B", "first_step"], do_not_specialize_on_alignment=["rows_ptr"])
def _backward_kernel(
    dh_ptr, dc_ptr, a_ptr, extra_ptr, h_ptr, c_ptr, p_ptr, seed_ptr, gate_scale_ptr, state_scale_ptr, da_ptr, dq_ptr,
    carry_ptr, dp_ptr, rows_ptr, B, H, first_step,
    KIND: tl.constexpr, HAS_P: tl.constexpr, HAS_DC: tl.constexpr, HAS_ROWS: tl.constexpr, DRAW: tl.constexpr,
    GATE: tl.constexpr, GATE_LEAK: tl.constexpr, GATE_CLIP: tl.constexpr,
    STATE: tl.constexpr, STATE_LEAK: tl.constexpr, STATE_CLIP: tl.constexpr, IS_HARD: tl.constexpr,
    NUMBER: tl.constexpr, BB: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    G: tl.constexpr = 4 if KIND == LSTM else (3 if KIND == GRU else 1)
    SUMS: tl.constexpr = 5 if KIND == LSTM else G
    m = tl.program_id(0) * BB + tl.arange(0, BB)
    n = tl.program_id(1) * BU + tl.arange(0, BU)
    in_units = n < H
    inside = (m < B)[:, None] & in_units[None, :]
    tile = m.to(tl.int64)[:, None] * H + n[None, :]
    row = m.to(tl.int64)[:, None] * (G * H) + n[None, :]
    gate_scale, state_scale = tl.load(gate_scale_ptr).to(NUMBER), tl.load(state_scale_ptr).to(NUMBER)
    zero = tl.zeros((BB, BU), NUMBER)
    xi0, xi1, xi2, xi3, xi4 = zero, zero, zero, zero, zero
    if DRAW:
        seed, place = tl.load(seed_ptr), m
        if HAS_ROWS:
            place = tl.load(rows_ptr + m, mask=m < B, other=0).to(tl.uint32)
        xi0, xi1, xi2, xi3 = draw_four(seed, n, place, first_step, 0, NUMBER)
        if KIND == LSTM:
            xi4, _, _, _ = draw_four(seed, n, place, first_step, 1, NUMBER)
    a0 = tl.load(a_ptr + row, mask=inside, other=0.0).to(NUMBER)
    p0 = per_unit(p_ptr, n, in_units, HAS_P, 1.0, NUMBER)
    dh = tl.load(dh_ptr + tile, mask=inside, other=0.0).to(NUMBER)
    to = da_ptr + row
    sums = dp_ptr + tl.program_id(0) * (SUMS * H) + n
    if G > 1:
        a1 = tl.load(a_ptr + row + H, mask=inside, other=0.0).to(NUMBER)
        a2 = tl.load(a_ptr + row + 2 * H, mask=inside, other=0.0).to(NUMBER)
        p1 = per_unit(p_ptr, H + n, in_units, HAS_P, 1.0, NUMBER)
        p2 = per_unit(p_ptr, 2 * H + n, in_units, HAS_P, 1.0, NUMBER)
    if KIND == LSTM:
        a3 = tl.load(a_ptr + row + 3 * H, mask=inside, other=0.0).to(NUMBER)
        p3 = per_unit(p_ptr, 3 * H + n, in_units, HAS_P, 1.0, NUMBER)
        p4 = per_unit(p_ptr, 4 * H + n, in_units, HAS_P, 1.0, NUMBER)
        before = tl.load(c_ptr + tile, mask=inside, other=0.0).to(NUMBER)
        now = tl.load(extra_ptr + tile, mask=inside, other=0.0).to(NUMBER)
        to_c, to0, to1, to2, to3, gf, top0, top1, top2, top3, top4 = lstm_factors(
            a0, a1, a2, a3, before, now, p0, p1, p2, p3, p4, xi0, xi1, xi2, xi3, xi4, gate_scale, state_scale,
            GATE, GATE_LEAK, GATE_CLIP, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW,
        )  # fmt: skip
        dc = dh * to_c
        if HAS_DC:
            dc += tl.load(dc_ptr + tile, mask=inside, other=0.0).to(NUMBER)
        tl.store(to, dc * to0, mask=inside)
        tl.store(to + H, dc * to1, mask=inside)
        tl.store(to + 2 * H, dc * to2, mask=inside)
        tl.store(to + 3 * H, dh * to3, mask=inside)
        tl.store(carry_ptr + tile, dc * gf, mask=inside)
        tl.store(sums, tl.sum(dc * top0, axis=0), mask=in_units)
        tl.store(sums + H, tl.sum(dc * top1, axis=0), mask=in_units)
        tl.store(sums + 2 * H, tl.sum(dc * top2, axis=0), mask=in_units)
        tl.store(sums + 3 * H, tl.sum(dh * top3, axis=0), mask=in_units)
        tl.store(sums + 4 * H, tl.sum(dh * top4, axis=0), mask=in_units)
    elif KIND == GRU:
        q = tl.load(extra_ptr + tile, mask=inside, other=0.0).to(NUMBER)
        before = tl.load(h_ptr + tile, mask=inside, other=0.0).to(NUMBER)
        to0, to1, to2, to3, z, top0, top1, top2 = gru_factors(
            a0, a1, a2, q, before, p0, p1, p2, xi0, xi1, xi2, gate_scale, state_scale,
            GATE, GATE_LEAK, GATE_CLIP, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW,
        )  # fmt: skip
        tl.store(to, dh * to0, mask=inside)
        tl.store(to + H, dh * to1, mask=inside)
        tl.store(to + 2 * H, dh * to3, mask=inside)
        tl.store(dq_ptr + row, dh * to0, mask=inside)
        tl.store(dq_ptr + row + H, dh * to1, mask=inside)
        tl.store(dq_ptr + row + 2 * H, dh * to2, mask=inside)
        tl.store(carry_ptr + tile, dh * z, mask=inside)
        tl.store(sums, tl.sum(dh * top0, axis=0), mask=in_units)
        tl.store(sums + H, tl.sum(dh * top1, axis=0), mask=in_units)
        tl.store(sums + 2 * H, tl.sum(dh * top2, axis=0), mask=in_units)
    else:
        _, to0, top0 = tanh_d(a0, p0, xi0, state_scale, KIND, STATE, STATE_LEAK, STATE_CLIP, IS_HARD, DRAW)
        tl.store(to, dh * to0, mask=inside)
        tl.store(sums, tl.sum(dh * top0, axis=0), mask=in_units)


@functools.lru_cache(maxsize=256)
def _launcher(kernel: Any, functions_: tuple, dtypes: tuple, flags: tuple[tuple[str, bool], ...]) -> Launcher:
    number = tl.float64 if dtypes[0] is torch.float64 else tl.float32
    return Launcher(kernel, functions(*functions_) | dict(flags) | {"NUMBER": number, "BB": _ROWS, "BU": _UNITS})


def cell_forward(
    kind: str, a: Tensor, q: Tensor | None, h: Tensor | None, c: Tensor | None, p: Tensor | None, seed: Tensor | None,
    noise: CellNoise, kept_noise: CellNoise | None = None, first_step: int = 0, rows: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """One step: the new h; the LSTM's new c or the GRU's W_hn h + b_hn; and the pre-activations for backward.

    `kept_noise` receives the scales that the kernel used.
    """
    batch, hidden = a.shape[0], a.shape[1] // GATES[kind]
    new = a.new_empty(batch, hidden)
    extra = a.new_empty(batch, hidden) if GATES[kind] > 1 else a.new_zeros(batch, hidden)
    kept = torch.empty_like(a) if kind == "gru" else a
    if new.numel():
        kept_scales = (None, None) if kept_noise is None else (kept_noise.gate_scale, kept_noise.state_scale)
        flags = (("HAS_P", p is not None), ("KEEP_SCALES", kept_noise is not None), ("HAS_ROWS", rows is not None))
        _launcher(_forward_kernel, *_settings(kind, a, p, seed, noise), flags)(
            _grid(batch, hidden),
            (a, q, h, c, p, seed, noise.gate_scale, noise.state_scale, *kept_scales, kept, extra, new, rows),
            (batch, hidden, first_step),
        )  # fmt: skip
    return new, extra, kept


def cell_backward(
    kind: str, dh: Tensor, dc: Tensor | None, gates: Tensor, extra: Tensor, h: Tensor | None, c: Tensor | None,
    p: Tensor | None, seed: Tensor | None, noise: CellNoise, first_step: int = 0, rows: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:  # fmt: skip
    """The gradients of a, of the GRU's recurrent product, of p in parts, and the direct gradient of c or h."""
    batch, hidden = extra.shape
    da = torch.empty_like(gates)
    dq = torch.empty_like(gates) if kind == "gru" else None
    carry = torch.empty_like(extra) if GATES[kind] > 1 else torch.zeros_like(extra)
    grid = _grid(batch, hidden)
    dtype = torch.float64 if dh.dtype is torch.float64 else torch.float32
    dp = torch.empty(grid[0], NONLINEARITIES[kind] * hidden, dtype=dtype, device=dh.device)
    if da.numel():
        flags = (("HAS_P", p is not None), ("HAS_DC", dc is not None), ("HAS_ROWS", rows is not None))
        _launcher(_backward_kernel, *_settings(kind, dh, p, seed, noise), flags)(
            grid, (dh, dc, gates, extra, h, c, p, seed, noise.gate_scale, noise.state_scale, da, dq, carry, dp, rows),
            (batch, hidden, first_step),
        )  # fmt: skip
    return da, dq, dp, carry


def _settings(kind: str, like: Tensor, p: Tensor | None, seed: Tensor | None, noise: CellNoise) -> tuple[tuple, tuple]:
    """The functions of the cell, and the dtypes of the tensors."""
    dtypes = (like.dtype, None if p is None else p.dtype, noise.state_scale.dtype, noise.gate_scale.dtype)
    return (kind, noise.state, noise.gate, noise.hard, seed is not None), dtypes


def _grid(batch: int, hidden: int) -> tuple[int, int]:
    return -(-batch // _ROWS), -(-hidden // _UNITS)
