"""The products of a small layer over the rows of all steps, in its launches: four calls into torch less for the host.

Before the steps a = x W_ih^T. After those of backward dW_ih = dgates^T x, dW_hh = dgates^T h with the h before each
row, and dx = dgates W_ih. The programs share out tiles of them. A tile is one program's, which adds up in one order: no
atomic sums, equal repeats.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["write_input_product", "write_products"]

# Lines of a result, its columns, and how much of the inner dimension at a time. With 64 lines Triton takes the
# instructions that want float32 turned around in shared memory, and loads it number by number.
_LINES, _COLUMNS, _DEPTH, _STAGES = (tl.constexpr(size) for size in (32, 128, 32, 3))


@triton.jit
def write_input_product(
    x_ptr, w_ih_ptr, a_ptr, pid, rows, gates, inputs, MULTIPLE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """a [rows, gates] = x W_ih^T; to be read once every program has written its part."""
    gates, inputs = (gates // MULTIPLE) * MULTIPLE, (inputs // MULTIPLE) * MULTIPLE  # as below
    lines = tl.cdiv(rows, _LINES)
    for tile in range(pid, lines * tl.cdiv(gates, _COLUMNS), tl.num_programs(0)):
        line, column = _place(tile, lines)
        total = tl.zeros((_LINES, _COLUMNS), tl.float32)
        total = _add_product(
            total, x_ptr, inputs, 1, w_ih_ptr, 1, inputs, rows, inputs, gates, line, column, PRECISION
        )  # fmt: skip
        _store(a_ptr, total, line, column, rows, gates)


@triton.jit
def write_products(
    dgates_ptr, x_ptr, y_ptr, h0_ptr, w_ih_ptr, dw_ih_ptr, dw_hh_ptr, dx_ptr, pid, layer, T, B, H, inputs, complete,
    G: tl.constexpr, ROW: tl.constexpr, MULTIPLE: tl.constexpr, WANTS_X: tl.constexpr, REVERSE: tl.constexpr,
    HAS_STATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Once every program has written its part of dgates. All results are NaN where one did not come (`complete`).

    dgates: [T B, ROW H], in a row first those of W_ih x, last those of W_hh h. x: [T B, inputs]. y: [T B, H].
    h0: [layers, B, H]. dx: where WANTS_X.
    """
    # The same numbers, but Triton then knows what they are multiples of, and loads as much at a time.
    H, inputs = (H // MULTIPLE) * MULTIPLE, (inputs // MULTIPLE) * MULTIPLE
    rows, gates, width = T * B, G * H, ROW * H
    lines = tl.cdiv(gates, _LINES)
    of_w_ih, of_w_hh, of_x = lines * tl.cdiv(inputs, _COLUMNS), lines * tl.cdiv(H, _COLUMNS), 0
    if WANTS_X:
        of_x = tl.cdiv(rows, _LINES) * tl.cdiv(inputs, _COLUMNS)
    for tile in range(pid, of_x + of_w_ih + of_w_hh, tl.num_programs(0)):
        total = tl.zeros((_LINES, _COLUMNS), tl.float32) + tl.where(complete, 0.0, float("nan"))
        if WANTS_X and tile < of_x:  # first, since they take longest
            line, column = _place(tile, tl.cdiv(rows, _LINES))
            total = _add_product(
                total, dgates_ptr, width, 1, w_ih_ptr, inputs, 1, rows, gates, inputs, line, column, PRECISION
            )
            _store(dx_ptr, total, line, column, rows, inputs)
        elif tile < of_x + of_w_ih:
            line, column = _place(tile - of_x, lines)
            total = _add_product(
                total, dgates_ptr, 1, width, x_ptr, inputs, 1, gates, rows, inputs, line, column, PRECISION
            )
            _store(dw_ih_ptr, total, line, column, gates, inputs)
        else:
            line, column = _place(tile - of_x - of_w_ih, lines)
            d, later, earlier, entry = dgates_ptr + width - gates, B, 0, 0
            if REVERSE:
                later, earlier, entry = 0, B, rows - B
            total = _add_product(
                total, d + later * width, 1, width, y_ptr + earlier * H, H, 1, gates, rows - B, H, line, column,
                PRECISION,
            )  # fmt: skip
            if HAS_STATE:
                h0 = h0_ptr + layer * B * H
                total = _add_product(total, d + entry * width, 1, width, h0, H, 1, gates, B, H, line, column, PRECISION)
            _store(dw_hh_ptr, total, line, column, gates, H)


@triton.jit
def _place(tile, lines):
    """The lines and columns of a tile, of which `lines` stand one below the other."""
    return (tile % lines) * _LINES + tl.arange(0, _LINES), (tile // lines) * _COLUMNS + tl.arange(0, _COLUMNS)


@triton.jit
def _add_product(
    total, d_ptr, d_line, d_inner, x_ptr, x_inner, x_column, lines, depth, columns, line, column,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The total and d x, of d [lines, depth] and x [depth, columns] that lie with these strides."""
    k = tl.arange(0, _DEPTH)
    d = d_ptr + line[:, None] * d_line + k[None, :] * d_inner
    x = x_ptr + k[:, None] * x_inner + column[None, :] * x_column
    is_line, is_column = (line < lines)[:, None], (column < columns)[None, :]
    for k0 in tl.range(0, depth, _DEPTH, num_stages=_STAGES):  # pyright: ignore[reportGeneralTypeIssues]
        inside = k0 + k < depth
        # Others have written dgates in this launch: not from the cache of this processor alone.
        dk = tl.load(d + k0 * d_inner, mask=is_line & inside[None, :], other=0.0, cache_modifier=".cg")
        xk = tl.load(x + k0 * x_inner, mask=is_column & inside[:, None], other=0.0)
        total = tl.dot(dk, xk, total, input_precision=PRECISION)
    return total


@triton.jit
def _store(to_ptr, total, line, column, lines, columns):
    inside = (line < lines)[:, None] & (column < columns)[None, :]
    tl.store(to_ptr + line[:, None] * columns + column[None, :], total, mask=inside)
