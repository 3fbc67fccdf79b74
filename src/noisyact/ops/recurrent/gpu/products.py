"""The products of a small layer over the rows of all steps, inside its launches. This saves the host four torch calls.

Forward computes a = x W_ih^T before the steps. Backward computes dW_ih = dgates^T x, dW_hh = dgates^T h, with the
previous h of each row, and dx = dgates W_ih after them. The programs divide the tiles of the results. One program sums
a whole tile in a fixed order, without atomics, so that repeated runs are bit-identical.
"""

from __future__ import annotations

import triton
import triton.language as tl

from noisyact.ops.recurrent.gpu.plan import TILE

__all__ = ["write_input_product", "write_products"]

# The lines and columns of a tile, the depth per iteration, and the stages. With 64 lines Triton would choose
# instructions that need float32 transposed in shared memory, and load it number by number.
_LINES, _COLUMNS, _DEPTH, _STAGES = (tl.constexpr(size) for size in (*TILE, 32, 3))


@triton.jit
def write_input_product(
    x_ptr, w_ih_ptr, a_ptr, pid, rows, gates, inputs, MULTIPLE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """a [rows, gates] = x W_ih^T. It may be read once every program has written its part."""
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
    dgates_ptr, x_ptr, y_ptr, h0_ptr, seen_ptr, w_ih_ptr, dw_ih_ptr, dw_hh_ptr, dx_ptr, pid, layer, T, B, H, inputs,
    complete, G: tl.constexpr, ROW: tl.constexpr, MULTIPLE: tl.constexpr, WANTS_X: tl.constexpr,
    REVERSE: tl.constexpr, HAS_STATE: tl.constexpr, SEEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dW_ih, dW_hh and, if WANTS_X, dx, once every program has written its part of dgates.

    All results are NaN unless `complete`, that is, if a program did not arrive. dgates: [T B, ROW H]; a row begins with
    the gradients of W_ih x and ends with those of W_hh h. x: [T B, inputs]. y: [T B, H]. h0: [layers, B, H]. seen:
    [T B, H], written by this launch: with SEEN the previous h of each row, in place of y and h0.
    """
    # The values do not change, but Triton learns what they are multiples of and can use wider loads.
    H, inputs = (H // MULTIPLE) * MULTIPLE, (inputs // MULTIPLE) * MULTIPLE
    rows, gates, width = T * B, G * H, ROW * H
    lines = tl.cdiv(gates, _LINES)
    of_w_ih, of_w_hh, of_x = lines * tl.cdiv(inputs, _COLUMNS), lines * tl.cdiv(H, _COLUMNS), 0
    if WANTS_X:
        of_x = tl.cdiv(rows, _LINES) * tl.cdiv(inputs, _COLUMNS)
    for tile in range(pid, of_x + of_w_ih + of_w_hh, tl.num_programs(0)):
        total = tl.zeros((_LINES, _COLUMNS), tl.float32) + tl.where(complete, 0.0, float("nan"))
        if WANTS_X and tile < of_x:  # these tiles come first, because they take longest
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
            if SEEN:
                total = _add_product(total, d, 1, width, seen_ptr, H, 1, gates, rows, H, line, column, PRECISION)
            else:
                total = _add_product(
                    total, d + later * width, 1, width, y_ptr + earlier * H, H, 1, gates, rows - B, H, line, column,
                    PRECISION,
                )  # fmt: skip
                if HAS_STATE:
                    h0 = h0_ptr + layer * B * H
                    total = _add_product(
                        total, d + entry * width, 1, width, h0, H, 1, gates, B, H, line, column, PRECISION
                    )
            _store(dw_hh_ptr, total, line, column, gates, H)


@triton.jit
def _place(tile, lines):
    """The lines and columns of a tile; `lines` is the number of tiles in a column."""
    return (tile % lines) * _LINES + tl.arange(0, _LINES), (tile // lines) * _COLUMNS + tl.arange(0, _COLUMNS)


@triton.jit
def _add_product(
    total, d_ptr, d_line, d_inner, x_ptr, x_inner, x_column, lines, depth, columns, line, column,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The total plus the product of d, [lines, depth], and x, [depth, columns], with the given strides."""
    k = tl.arange(0, _DEPTH)
    d = d_ptr + line[:, None] * d_line + k[None, :] * d_inner
    x = x_ptr + k[:, None] * x_inner + column[None, :] * x_column
    is_line, is_column = (line < lines)[:, None], (column < columns)[None, :]
    for k0 in tl.range(0, depth, _DEPTH, num_stages=_STAGES):  # pyright: ignore[reportGeneralTypeIssues]
        inside = k0 + k < depth
        # Other programs have written dgates and seen in this launch, so the loads must bypass the L1 cache.
        dk = tl.load(d + k0 * d_inner, mask=is_line & inside[None, :], other=0.0, cache_modifier=".cg")
        xk = tl.load(x + k0 * x_inner, mask=is_column & inside[:, None], other=0.0, cache_modifier=".cg")
        total = tl.dot(dk, xk, total, input_precision=PRECISION)
    return total


@triton.jit
def _store(to_ptr, total, line, column, lines, columns):
    inside = (line < lines)[:, None] & (column < columns)[None, :]
    tl.store(to_ptr + line[:, None] * columns + column[None, :], total, mask=inside)
