"""What the heads of a Neural Turing Machine do in a step, as one kernel forward and one backward: `ntm.turn` on a GPU.

A program has one sequence of the batch. All that is in proportion to the memory's rows, [heads, N], stays in its
registers; the memory is read column by column, so it is kept as [batch, W, N]. Backward computes again what forward did
and keeps nothing of it. Each sum is taken by one program in a fixed order, so repeats are equal to the bit.

The letters: k a head (those that read first), i a row of the memory, w a column. Sizes that are no powers of two are
filled up: heads beyond the last have gradients of zero, rows beyond the last have weights of zero.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from noisyact.ops.triton import check, on

__all__ = ["turn"]

_LIMIT = tl.constexpr(20.0)
_TINY = tl.constexpr(1e-6)
_LEAST = tl.constexpr(1e-12)
_MINUS_INFINITY = tl.constexpr(float("-inf"))


@triton.jit
def _clamped(x):
    return tl.minimum(tl.maximum(x, -_LIMIT), _LIMIT)


@triton.jit
def _inside(x):
    """The derivative of the clamp."""
    return tl.where((x >= -_LIMIT) & (x <= _LIMIT), 1.0, 0.0)


@triton.jit
def _store_of_heads(pointers, values, mask, i):
    """Store a number for each head, [heads], from the thread that holds the first place of its row in [heads, N].

    Stored as [heads], which is smaller than a warp, each would be written by several threads.
    """
    first = (i == 0)[None, :]
    tl.store(pointers[:, None] + 0 * i[None, :], tl.where(first, values[:, None], 0.0), mask[:, None] & first)


@triton.jit
def _store_inside(told, dtold, gradient, mask, i):
    _store_of_heads(dtold, gradient * _inside(tl.load(told, mask, 0.0)), mask, i)


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _softmax(x):
    """Over rows, [heads, N]."""
    e = tl.exp(x - tl.max(x, axis=1)[:, None])
    return e / tl.sum(e, axis=1)[:, None]


@triton.jit
def _softmax_back(y, dy):
    return y * (dy - tl.sum(y * dy, axis=1)[:, None])


@triton.jit
def _rolled(x, i, by: tl.constexpr, N: tl.constexpr):
    """``x[(i + by) % N]`` of each head."""
    index = tl.broadcast_to(((i + by + N) % N)[None, :], x.shape)
    return tl.gather(x, index, axis=1)


@triton.jit
def _addressed(
    told, memory, before, k, i, HEADS: tl.constexpr, N: tl.constexpr, W: tl.constexpr, K: tl.constexpr, B: tl.constexpr
):
    """All stages of the addressing, with what backward needs of them; pointers are those of the sequence."""
    head, row = k < 2 * HEADS, i < N
    both = head[:, None] & row[None, :]
    scalars = told + 4 * HEADS * W + k * 6  # of a head: strength, power, gate, the shares of three shifts
    beta = tl.log(1.0 + tl.exp(_clamped(tl.load(scalars, head, 0.0))))
    power = 1.0 + tl.log(1.0 + tl.exp(_clamped(tl.load(scalars + 1, head, 0.0))))
    gate = tl.sigmoid(_clamped(tl.load(scalars + 2, head, 0.0)))
    back, stay, on = (
        tl.exp(_clamped(tl.load(scalars + 3, head, 0.0))),
        tl.exp(_clamped(tl.load(scalars + 4, head, 0.0))),
        tl.exp(_clamped(tl.load(scalars + 5, head, 0.0))),
    )
    all_shares = back + stay + on
    back, stay, on = back / all_shares, stay / all_shares, on / all_shares
    product = tl.zeros([K, B], tl.float32)
    key_squares, row_squares = tl.zeros([K], tl.float32), tl.zeros([B], tl.float32)
    for w in range(W):
        key = _tanh(_clamped(tl.load(told + (2 * HEADS + k) * W + w, head, 0.0)))
        m = tl.load(memory + w * N + i, row, 0.0)
        product += key[:, None] * m[None, :]
        key_squares += key * key
        row_squares += m * m
    key_norm, row_norm = tl.rsqrt(key_squares + _TINY), tl.rsqrt(row_squares + _TINY)
    cosine = key_norm[:, None] * row_norm[None, :] * product
    found = _softmax(tl.where(row[None, :], beta[:, None] * cosine, _MINUS_INFINITY))
    old = tl.load(before + k[:, None] * N + i[None, :], both, 0.0)
    mixed = old + gate[:, None] * (found - old)
    moved = back[:, None] * _rolled(mixed, i, 1, N) + stay[:, None] * mixed + on[:, None] * _rolled(mixed, i, -1, N)
    logarithm = tl.log(moved + _LEAST)
    weighting = _softmax(tl.where(row[None, :], power[:, None] * logarithm, _MINUS_INFINITY))
    return (
        weighting, logarithm, moved, mixed, old, found, cosine, key_norm, row_norm, beta, power, gate, back,
        stay, on,
    )  # fmt: skip


@triton.jit
def _row_of(x, k, which):
    """The row of one head, [heads, N] to [N]."""
    return tl.sum(tl.where((k == which)[:, None], x, 0.0), axis=0)


@triton.jit
def forward_kernel(
    told_ptr, memory_ptr, before_ptr, reads_ptr, new_memory_ptr, weighting_ptr, HEADS: tl.constexpr, N: tl.constexpr,
    W: tl.constexpr, K: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Reads, the new memory and the weightings of one sequence."""
    sequence = tl.program_id(0)
    told = told_ptr + sequence * HEADS * (4 * W + 12)
    memory, new_memory = memory_ptr + sequence * W * N, new_memory_ptr + sequence * W * N
    places, reads = sequence * 2 * HEADS * N, reads_ptr + sequence * HEADS * W
    k, i = tl.arange(0, K), tl.arange(0, B)
    row = i < N
    addressed = _addressed(told, memory, before_ptr + places, k, i, HEADS, N, W, K, B)
    weighting = addressed[0]
    both = (k < 2 * HEADS)[:, None] & row[None, :]
    tl.store(weighting_ptr + places + k[:, None] * N + i[None, :], weighting, both)
    for w in range(W):
        m = tl.load(memory + w * N + i, row, 0.0)
        _store_of_heads(reads + k * W + w, tl.sum(weighting * m[None, :], axis=1), k < HEADS, i)
        added = tl.zeros([B], tl.float32)
        for j in tl.static_range(HEADS):
            writing = _row_of(weighting, k, HEADS + j)
            erased = tl.sigmoid(_clamped(tl.load(told + j * W + w)))
            m = m * (1.0 - writing * erased)
            added += writing * _tanh(_clamped(tl.load(told + (HEADS + j) * W + w)))
        tl.store(new_memory + w * N + i, m + added, row)


@triton.jit
def backward_kernel(
    told_ptr, memory_ptr, before_ptr, dreads_ptr, dnew_ptr, dweighting_ptr, dtold_ptr, dmemory_ptr, dbefore_ptr,
    HEADS: tl.constexpr, N: tl.constexpr, W: tl.constexpr, K: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The gradients of one sequence."""
    sequence = tl.program_id(0)
    of_told = sequence * HEADS * (4 * W + 12)
    told, dtold = told_ptr + of_told, dtold_ptr + of_told
    memory, dnew = memory_ptr + sequence * W * N, dnew_ptr + sequence * W * N
    dmemory, dreads = dmemory_ptr + sequence * W * N, dreads_ptr + sequence * HEADS * W
    places = sequence * 2 * HEADS * N
    k, i = tl.arange(0, K), tl.arange(0, B)
    head, row = k < 2 * HEADS, i < N
    reads, writes = k < HEADS, (k >= HEADS) & (k < 2 * HEADS)
    both = head[:, None] & row[None, :]
    (
        weighting, logarithm, moved, mixed, old, found, cosine, key_norm, row_norm, beta, power, gate, back,
        stay, on,
    ) = _addressed(told, memory, before_ptr + places, k, i, HEADS, N, W, K, B)  # fmt: skip

    # Reading and writing: the gradient of the weightings, of what is erased and added, and of the memory in part.
    dweighting = tl.load(dweighting_ptr + places + k[:, None] * N + i[None, :], both, 0.0)
    for w in range(W):
        m, dm = tl.load(memory + w * N + i, row, 0.0), tl.load(dnew + w * N + i, row, 0.0)
        dread = tl.load(dreads + k * W + w, reads, 0.0)
        at = k - HEADS
        erase_told = tl.load(told + at * W + w, writes, 0.0)
        add_told = tl.load(told + k * W + w, writes, 0.0)
        erase = tl.where(writes, tl.sigmoid(_clamped(erase_told)), 0.0)
        add = _tanh(_clamped(add_told))
        # The product of what the other heads leave, for each head that writes; it divides by nothing.
        others, all_kept = tl.full([K, B], 1.0, tl.float32), tl.full([B], 1.0, tl.float32)
        for j in tl.static_range(HEADS):
            kept = 1.0 - _row_of(weighting, k, HEADS + j) * tl.sigmoid(_clamped(tl.load(told + j * W + w)))
            others *= tl.where((k == HEADS + j)[:, None], 1.0, kept[None, :])
            all_kept *= kept
        lost = (m * dm)[None, :] * others
        dweighting += dread[:, None] * m[None, :] + tl.where(
            writes[:, None], add[:, None] * dm[None, :] - erase[:, None] * lost, 0.0
        )
        dadd = tl.sum(weighting * dm[None, :], axis=1) * (1.0 - add * add)
        derase = -tl.sum(weighting * lost, axis=1) * erase * (1.0 - erase)
        _store_of_heads(dtold + k * W + w, dadd * _inside(add_told), writes, i)
        _store_of_heads(dtold + at * W + w, derase * _inside(erase_told), writes, i)
        tl.store(dmemory + w * N + i, dm * all_kept, row)

    # Sharpening.
    dscaled = _softmax_back(weighting, dweighting)
    dpower = tl.sum(dscaled * logarithm, axis=1)
    dmoved = tl.where(both, dscaled * power[:, None] / (moved + _LEAST), 0.0)
    # Shift.
    dback = tl.sum(dmoved * _rolled(mixed, i, 1, N), axis=1)
    dstay, don = tl.sum(dmoved * mixed, axis=1), tl.sum(dmoved * _rolled(mixed, i, -1, N), axis=1)
    dmixed = back[:, None] * _rolled(dmoved, i, -1, N) + stay[:, None] * dmoved + on[:, None] * _rolled(dmoved, i, 1, N)
    dmixed = tl.where(both, dmixed, 0.0)
    # Interpolation.
    dgate = tl.sum(dmixed * (found - old), axis=1)
    tl.store(dbefore_ptr + places + k[:, None] * N + i[None, :], (1.0 - gate)[:, None] * dmixed, both)
    # Content.
    dscore = _softmax_back(found, gate[:, None] * dmixed)
    dbeta = tl.sum(dscore * cosine, axis=1)
    dcosine = dscore * beta[:, None]
    # Of the squared norms: d rsqrt(s) = -rsqrt(s)^3 / 2 ds, and the cosine has each norm as a factor.
    dkey_squares = -0.5 * tl.sum(dcosine * cosine, axis=1) * key_norm * key_norm
    drow_squares = -0.5 * tl.sum(dcosine * cosine, axis=0) * row_norm * row_norm
    dproduct = dcosine * key_norm[:, None] * row_norm[None, :]
    tl.debug_barrier()  # the gradient of the memory may be read by another thread than the one that wrote it
    for w in range(W):
        m = tl.load(memory + w * N + i, row, 0.0)
        key_told = tl.load(told + (2 * HEADS + k) * W + w, head, 0.0)
        key = _tanh(_clamped(key_told))
        dkey = tl.sum(dproduct * m[None, :], axis=1) + 2.0 * key * dkey_squares
        _store_of_heads(dtold + (2 * HEADS + k) * W + w, dkey * (1.0 - key * key) * _inside(key_told), head, i)
        dread = tl.load(dreads + k * W + w, reads, 0.0)
        dm = tl.sum(dproduct * key[:, None] + weighting * dread[:, None], axis=0) + 2.0 * m * drow_squares
        tl.store(dmemory + w * N + i, tl.load(dmemory + w * N + i, row, 0.0) + dm, row)

    scalars, dscalars = told + 4 * HEADS * W + k * 6, dtold + 4 * HEADS * W + k * 6
    shares = back * dback + stay * dstay + on * don
    # The derivative of softplus is a sigmoid: 1 - exp(-softplus).
    _store_inside(scalars, dscalars, dbeta * (1.0 - tl.exp(-beta)), head, i)
    _store_inside(scalars + 1, dscalars + 1, dpower * (1.0 - tl.exp(1.0 - power)), head, i)
    _store_inside(scalars + 2, dscalars + 2, dgate * gate * (1.0 - gate), head, i)
    _store_inside(scalars + 3, dscalars + 3, back * (dback - shares), head, i)
    _store_inside(scalars + 4, dscalars + 4, stay * (dstay - shares), head, i)
    _store_inside(scalars + 5, dscalars + 5, on * (don - shares), head, i)


class _Turn(torch.autograd.Function):
    """Both kernels."""

    @staticmethod
    def forward(ctx: Any, told: Tensor, columns: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        told, columns, before = told.contiguous(), columns.contiguous(), before.contiguous()
        ctx.save_for_backward(told, columns, before)
        batch, width, _ = columns.shape
        reads = told.new_empty(batch, before.shape[1] // 2 * width)
        new, weighting = torch.empty_like(columns), torch.empty_like(before)
        with on(told.device):
            forward_kernel[(batch,)](told, columns, before, reads, new, weighting, **_sizes(columns, before))
        return reads, new, weighting

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        told, columns, before = ctx.saved_tensors
        results = [torch.empty_like(tensor) for tensor in (told, columns, before)]
        given = [gradient.contiguous() for gradient in gradients]
        with on(told.device):
            backward_kernel[(len(columns),)](told, columns, before, *given, *results, **_sizes(columns, before))
        return results[0], results[1], results[2]


def _sizes(columns: Tensor, before: Tensor) -> dict[str, Any]:
    _, width, rows = columns.shape
    heads = before.shape[1] // 2
    blocks = {"K": triton.next_power_of_2(2 * heads), "B": triton.next_power_of_2(rows)}
    # One warp: sums over heads stay in a thread, those over rows take shuffles, and nobody waits for another warp. A
    # processor has room for many such programs, so several machines can be trained at once.
    # Without fused multiply-adds: fused with the first shuffle of a sum, each thread would round another product, and
    # the threads of a row would hold sums that differ in the last bit.
    return {"HEADS": heads, "N": rows, "W": width, **blocks, "num_warps": 1, "enable_fp_fusion": False}


def turn(told: Tensor, memory: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`ntm.turn`, in float32; the memory that it returns is laid out column by column."""
    if memory.dim() != 3 or before.dim() != 3 or before.shape[1] % 2 or not (memory.numel() and before.numel()):
        raise ValueError(
            f"a memory [batch, N, W] and weightings [batch, 2 heads, N] are wanted, not {tuple(memory.shape)} and "
            f"{tuple(before.shape)}"
        )
    (batch, rows, width), heads = memory.shape, before.shape[1] // 2
    check(
        memory, memory=(memory, memory.shape), before=(before, (batch, 2 * heads, rows)),
        told=(told, (batch, heads * (4 * width + 12))),
    )  # fmt: skip
    reads, columns, weighting = _Turn.apply(told, memory.transpose(1, 2), before)
    return reads, columns.transpose(1, 2), weighting
