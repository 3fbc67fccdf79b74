"""The gradient of W_hh where resets or recurrent dropout change the h that the recurrent products see."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from noisyact.ops.recurrent.gpu.call import StackCall
from noisyact.ops.recurrent.gpu.cells import LEARNED
from noisyact.ops.recurrent.gpu.rules import KernelRules
from noisyact.ops.triton.launch import Launcher

__all__ = ["ruled_weights"]

_ROWS, _UNITS = 16, 64


@triton.jit(do_not_specialize=["rows", "B"], do_not_specialize_on_alignment=["reset_ptr"])
def seen_kernel(
    y_ptr, h0_ptr, reset_ptr, reset_h_ptr, dropout_ptr, out_ptr, rows, B, H,
    HAS_STATE: tl.constexpr, RESET: tl.constexpr, DROPOUT: tl.constexpr, REVERSE: tl.constexpr,
    BB: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """out: [rows, H]. y: [rows, H], B rows for each step. h0, reset_h and dropout: [B, H]. reset: [rows]."""
    m = tl.program_id(0) * BB + tl.arange(0, BB)
    n = tl.program_id(1) * BU + tl.arange(0, BU)
    in_rows, in_units = m < rows, (n < H)[None, :]
    before = m + B if REVERSE else m - B
    known = in_rows & (before >= 0) & (before < rows)
    h = tl.load(y_ptr + before.to(tl.int64)[:, None] * H + n[None, :], mask=known[:, None] & in_units, other=0.0)
    of_row = (m % B)[:, None] * H + n[None, :]
    inside = in_rows[:, None] & in_units
    if HAS_STATE:
        first = tl.load(h0_ptr + of_row, mask=inside & ~known[:, None], other=0.0)
        h = tl.where(known[:, None], h, first)
    if RESET > 0:
        again = (tl.load(reset_ptr + m, mask=in_rows, other=0) != 0)[:, None]
        anew = tl.zeros(h.shape, h.dtype)  # not h * 0, because h may not be finite
        if RESET == LEARNED:
            anew = tl.load(reset_h_ptr + of_row, mask=inside & again, other=0.0)
        h = tl.where(again, anew, h)
    if DROPOUT:
        h = (h * tl.load(dropout_ptr + of_row, mask=inside, other=0.0)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + m.to(tl.int64)[:, None] * H + n[None, :], h, mask=inside)


def ruled_weights(dgates: Tensor, y: Tensor, h0: Tensor | None, call: StackCall, rules: KernelRules) -> Tensor:
    """The gradient of W_hh where resets or recurrent dropout change what the recurrent product sees.

    Args:
        dgates: [rows, gates H], the gradients of W_hh h.
        y: h at every step.
        h0: [batch, H], the initial h; None for zeros.
        rules: the layer's :class:`KernelRules`.
    """
    hidden, batch = y.shape[-1], call.batch
    if call.offsets is not None and call.before is not None:  # without resets
        first = y.new_zeros(batch, hidden) if h0 is None else h0
        sizes = call.offsets.diff()
        starts = torch.repeat_interleave(call.offsets[:-1], sizes, output_size=len(dgates))
        place = torch.arange(len(dgates), device=y.device) - starts
        return torch.mm(dgates.t(), rules.times_dropout(torch.cat([y, first])[call.before], place))
    return torch.mm(dgates.t(), _seen_by_products(y, h0, call, rules))


def _seen_by_products(y: Tensor, h0: Tensor | None, call: StackCall, rules: KernelRules) -> Tensor:
    """The h before each step of a rectangular batch as its recurrent product saw it, [rows, H].

    Args:
        y: h at every step.
        h0: [batch, H], the initial h; None for zeros.
        rules: the layer's rules.
    """
    reset, reset_h, _, _, _, dropout = rules.tensors
    hidden = y.shape[-1]
    out = y.new_empty(call.steps * call.batch, hidden)
    kind = 0 if reset is None else 1 if reset_h is None else LEARNED.value
    dtypes = y.dtype, None if dropout is None else dropout.dtype
    _launcher(h0 is not None, kind, dropout is not None, call.reverse, dtypes)(
        (-(-len(out) // _ROWS), -(-hidden // _UNITS)), (y, h0, reset, reset_h, dropout, out),
        (len(out), call.batch, hidden),
    )  # fmt: skip
    return out


@functools.lru_cache(maxsize=64)
def _launcher(has_state: bool, reset: int, dropout: bool, reverse: bool, dtypes: tuple[torch.dtype, ...]) -> Launcher:
    constants: dict[str, Any] = {
        "HAS_STATE": has_state, "RESET": reset, "DROPOUT": dropout, "REVERSE": reverse, "BB": _ROWS, "BU": _UNITS,
    }  # fmt: skip
    return Launcher(seen_kernel, constants)
