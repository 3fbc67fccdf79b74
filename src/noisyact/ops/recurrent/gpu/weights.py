"""The gradients of a small layer's weights in the launch of its backward pass: two calls into torch less for the host.

dW_ih = dgates^T x, and dW_hh = dgates^T h with the h before each row, over the rows of all steps. The programs share
out tiles of them. A tile is one program's, which takes the rows in their order: no atomic sums, equal repeats.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["write_weights"]

# Lines of the weights, their columns, and the rows at a time. With 64 lines Triton takes the instructions that want
# float32 turned around in shared memory, and loads it number by number.
_LINES, _COLUMNS, _DEPTH, _STAGES = (tl.constexpr(size) for size in (32, 128, 32, 3))


@triton.jit
def write_weights(
    dgates_ptr, x_ptr, y_ptr, h0_ptr, dw_ih_ptr, dw_hh_ptr, pid, layer, T, B, H, inputs, complete,
    G: tl.constexpr, ROW: tl.constexpr, MULTIPLE: tl.constexpr, REVERSE: tl.constexpr, HAS_STATE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Once every program has written its part of dgates. Both gradients are NaN where one did not come (`complete`).

    dgates: [T B, ROW H], in a row first those of W_ih x, last those of W_hh h. x: [T B, inputs]. y: [T B, H].
    h0: [layers, B, H].
    """
    # The same numbers, but Triton then knows what they are multiples of, and loads as much at a time.
    H, inputs = (H // MULTIPLE) * MULTIPLE, (inputs // MULTIPLE) * MULTIPLE
    lines = tl.cdiv(G * H, _LINES)
    of_input, of_state = lines * tl.cdiv(inputs, _COLUMNS), lines * tl.cdiv(H, _COLUMNS)
    for tile in range(pid, of_input + of_state, tl.num_programs(0)):
        line = (tile % lines) * _LINES + tl.arange(0, _LINES)
        total = tl.zeros((_LINES, _COLUMNS), tl.float32)
        if tile < of_input:
            column = (tile // lines) * _COLUMNS + tl.arange(0, _COLUMNS)
            total = _add_rows(total, dgates_ptr, x_ptr, T * B, ROW * H, inputs, line, column, G * H, PRECISION)
            _store(dw_ih_ptr, total, line, column, G * H, inputs, complete)
        else:
            column = ((tile - of_input) // lines) * _COLUMNS + tl.arange(0, _COLUMNS)
            d, later, earlier, entry = dgates_ptr + (ROW - G) * H, B, 0, 0
            if REVERSE:
                later, earlier, entry = 0, B, (T - 1) * B
            total = _add_rows(
                total, d + later * ROW * H, y_ptr + earlier * H, (T - 1) * B, ROW * H, H, line, column, G * H, PRECISION
            )
            if HAS_STATE:
                h0 = h0_ptr + layer * B * H
                total = _add_rows(total, d + entry * ROW * H, h0, B, ROW * H, H, line, column, G * H, PRECISION)
            _store(dw_hh_ptr, total, line, column, G * H, H, complete)


@triton.jit
def _add_rows(total, d_ptr, x_ptr, rows, d_width, x_width, line, column, lines, PRECISION: tl.constexpr):
    """The total and d^T x, of a tile's lines and columns."""
    k = tl.arange(0, _DEPTH)
    d = d_ptr + k[None, :] * d_width + line[:, None]
    x = x_ptr + k[:, None] * x_width + column[None, :]
    is_line, is_column = (line < lines)[:, None], (column < x_width)[None, :]
    for k0 in tl.range(0, rows, _DEPTH, num_stages=_STAGES):  # pyright: ignore[reportGeneralTypeIssues]
        is_row = k0 + k < rows
        # Others have written dgates in this launch: not from the cache of this processor alone.
        dk = tl.load(d + k0 * d_width, mask=is_line & is_row[None, :], other=0.0, cache_modifier=".cg")
        xk = tl.load(x + k0 * x_width, mask=is_column & is_row[:, None], other=0.0)
        total = tl.dot(dk, xk, total, input_precision=PRECISION)
    return total


@triton.jit
def _store(to_ptr, total, line, column, lines, columns, complete):
    total = tl.where(complete, total, float("nan"))
    inside = (line < lines)[:, None] & (column < columns)[None, :]
    tl.store(to_ptr + line[:, None] * columns + column[None, :], total, mask=inside)
