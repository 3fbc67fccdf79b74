"""A recurrent layer on a GPU step by step: a product of torch and a pointwise kernel for each step.

It serves the layers that the kernels with the whole time loop do not: those whose programs cannot all run at once,
projections, and float64. All buffers are allocated before the loop, and the products over all steps are one each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from noisyact.ops.recurrent.gpu.call import StackCall
from noisyact.ops.recurrent.gpu.cublas import recurrent_weights
from noisyact.ops.recurrent.gpu.settings import functions
from noisyact.ops.recurrent.gpu.steps.backward import backward_kernel, state_backward_kernel
from noisyact.ops.recurrent.gpu.steps.forward import forward_kernel, state_kernel
from noisyact.ops.recurrent.gpu.steps.timeline import timeline
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES, CellNoise, LayerWeights
from noisyact.ops.triton.launch import Launcher

__all__ = ["LayerGradients", "layer_backward", "layer_forward"]

_UNITS, _PROGRAMS = 32, 128
"""The units of a program, and the number of programs that fill a GPU."""
_NO_RULES = {
    "RESET": False, "RESET_STATE": False, "ROWS": False, "DROPOUT": False, "DRAW_MASKS": False, "ZONEOUT_H": 0.0,
    "ZONEOUT_C": 0.0, "LIMIT_H": 0, "LIMIT_C": 0,
}  # fmt: skip


class LayerGradients(NamedTuple):
    """The gradients of one layer. One that is not wanted is None."""

    x: Tensor | None
    weights: LayerWeights
    h0: Tensor | None
    c0: Tensor | None


def layer_forward(
    call: StackCall, index: int, x: Tensor, h0: Tensor | None, c0: Tensor | None, h_n: Tensor, c_n: Tensor | None,
    weights: LayerWeights, keep: bool, kept_noise: CellNoise | None, form: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Run one layer, like reference.layer with xi from the seed.

    Args:
        index: the layer's index in the call.
        x: [rows, input].
        h0, c0: [batch, H], the initial state; None for zeros.
        h_n, c_n: [batch, H], receive the final state.
        weights: contiguous tensors.
        keep: whether backward will follow.
        kept_noise: receives the scales that the kernels used.
        form: the leading dimensions of the output: the number of rows, or steps and batch.

    Returns: h at every step; and for backward the pre-activations, and the LSTM's c or the GRU's W_hn h + b_hn.
    """
    kind, batch, (output, hidden) = call.kind, call.batch, _widths(weights)
    noise, seed, projected, number = call.noise, call.seeds[index], weights.w_hr is not None, _number(x)
    a = _from_input(kind, x, weights)
    y = x.new_empty(*form, output)
    extra = x.new_empty(len(x) if keep and GATES[kind] > 1 else 0, hidden)
    state = torch.empty(batch, hidden, dtype=number, device=x.device) if kind in ("lstm", "gru") else None
    q = x.new_empty(batch, 3 * hidden) if kind == "gru" else None
    m = x.new_empty(batch, hidden) if projected else None
    kept_scales = (None, None) if kept_noise is None else (kept_noise.gate_scale, kept_noise.state_scale)
    flags = _NO_RULES | {
        "HAS_STATE": h0 is not None, "HAS_BIAS": weights.b_hh is not None, "HAS_P": weights.p is not None, "KEEP": keep,
        "KEEP_SCALES": kept_noise is not None, "PROJECTED": projected,
    }  # fmt: skip
    settings = (kind, noise.state, noise.gate, noise.hard, seed is not None), flags, (x.dtype, noise.state_scale.dtype, noise.gate_scale.dtype)
    run = _prepared(
        forward_kernel, batch, hidden, settings,
        (a, q, weights.b_hh, weights.p, seed, noise.gate_scale, noise.state_scale, *kept_scales, h0, c0, state, y, m,
         extra, h_n, c_n, None, None, None, None, None, None, None),
        (len(x), hidden),
    )  # fmt: skip
    end = None
    if projected:
        end = _prepared(
            state_kernel, batch, output, settings, (h0, y, h_n, None, None, None, None, None, None), (output,)
        )
    sizes, w = call.every_size(), weights.w_hh.t()
    outputs, sums = y.view(-1, output).split(sizes), a.split(sizes)
    for t, before, size, known, position in timeline(sizes, call.reverse):
        if known:
            seen, to = _first(outputs[before], known), _first(sums[t] if q is None else q, known)
            torch.mm(seen, w, out=to) if q is not None else to.addmm_(seen, w)
        if h0 is not None and known < size:
            seen, to = h0[known:size], (sums[t] if q is None else q)[known:size]
            torch.mm(seen, w, out=to) if q is not None else to.addmm_(seen, w)
        run(size, *position)
        if end is not None:
            torch.mm(_first(m, size), weights.w_hr.t(), out=outputs[t])
            end(size, *position)
    return y, a, extra


def layer_backward(
    call: StackCall, index: int, dy: Tensor | None, dh_n: Tensor | None, dc_n: Tensor | None, h0: Tensor | None,
    c0: Tensor | None, x: Tensor, kept: Sequence[Tensor], weights: LayerWeights, dgates: Tensor, wants_x: bool,
    wants_h0: bool, wants_weights: bool,
) -> LayerGradients:  # fmt: skip
    """The gradients of one layer.

    Args:
        dy: the gradient of h at every step; dh_n and dc_n: [batch, H], those of the final state. None for zeros.
        x: [rows, input].
        kept: the results of :func:`layer_forward`.
        dgates: [rows, gates H], a buffer for the gradients of the pre-activations; for the GRU [rows, 6 H], those of
            W_ih x and then those of W_hh h.
    """
    kind, batch, (output, hidden) = call.kind, call.batch, _widths(weights)
    (y, a, extra), p, w_hh, w_hr, number = kept, weights.p, weights.w_hh, weights.w_hr, _number(x)
    noise, seed, projected, rows = call.noise, call.seeds[index], weights.w_hr is not None, len(x)
    wide = w_hh.shape[0]
    dh = x.new_empty(batch, output)
    carry_h = torch.empty(batch, output, dtype=number, device=x.device) if kind == "gru" else None
    carry_c = torch.empty(batch, hidden, dtype=number, device=x.device) if kind == "lstm" else None
    shapes = (rows, output), (batch, hidden), (rows, hidden)
    owed, dm, m = (x.new_empty(*shape) if projected else None for shape in shapes)
    count = (NONLINEARITIES[kind] if p is not None else 0) + (4 if GATES[kind] > 1 else 1)
    blocks = -(-batch // _rows_of(batch, hidden))
    sums = torch.zeros(blocks, count * hidden, dtype=number, device=x.device)
    flags = _NO_RULES | {
        "HAS_STATE": h0 is not None, "HAS_P": p is not None, "HAS_DY": dy is not None, "HAS_DHN": dh_n is not None,
        "HAS_DCN": dc_n is not None, "PROJECTED": projected,
    }  # fmt: skip
    settings = (kind, noise.state, noise.gate, noise.hard, seed is not None), flags, (x.dtype, noise.state_scale.dtype, noise.gate_scale.dtype)
    run = _prepared(
        backward_kernel, batch, hidden, settings,
        (a, extra, y, p, seed, noise.gate_scale, noise.state_scale, h0, c0, dm if projected else dh, dy, dh_n, dc_n,
         carry_h, carry_c, dgates, m, sums, None, None, None, None, None, None, None, None),
        (rows, hidden),
    )  # fmt: skip
    begin = None
    if projected:
        begin = _prepared(
            state_backward_kernel, batch, output, settings,
            (dh, carry_h, dy, dh_n, owed, None, None, None, None, None), (output,),
        )  # fmt: skip
    sizes = call.every_size()
    of_steps, of_owed = dgates[:, -wide:].split(sizes), None if owed is None else owed.split(sizes)
    for t, _, size, known, position in reversed(timeline(sizes, call.reverse)):
        if begin is not None:
            begin(size, *position)
            torch.mm(of_owed[t], w_hr, out=_first(dm, size))
        run(size, *position)
        needed = size if wants_h0 else known
        if needed:
            torch.mm(_first(of_steps[t], needed), w_hh, out=_first(dh, needed))
    d_ih, dw_ih, dw_hh, dw_hr = dgates[:, :wide], None, None, None
    if wants_weights:
        dw_ih = torch.mm(d_ih.t(), x)
        dw_hh = recurrent_weights(dgates, wide, y, h0, call.before, batch, call.reverse)
        dw_hr = None if owed is None or m is None else torch.mm(owed.t(), m)
    dp, db_ih, db_hh = _small_gradients(kind, sums, hidden, x.dtype)
    of_weights = LayerWeights(dw_ih, dw_hh, db_ih, db_hh, dp, dw_hr)
    dx = torch.mm(d_ih, weights.w_ih) if wants_x else None
    if not wants_h0:
        return LayerGradients(dx, of_weights, None, None)
    dh0 = dh if carry_h is None else (dh + carry_h).to(x.dtype)
    return LayerGradients(dx, of_weights, dh0, None if carry_c is None else carry_c.to(x.dtype))


def _prepared(
    kernel: Any, batch: int, width: int, settings: tuple, tensors: Sequence[Tensor | None], numbers: tuple[int, ...]
) -> Callable[..., None]:
    """A function of the number of rows and the position of a step that launches a kernel."""
    cell, flags, dtypes = settings
    rows, across = _rows_of(batch, width), -(-width // _UNITS)
    launch = _launcher(kernel, rows, cell, tuple(flags.items()), dtypes).prepared(tensors, numbers)

    def run(size: int, *position: int) -> None:
        launch((-(-size // rows), across), *position)

    return run


@functools.lru_cache(maxsize=1024)
def _launcher(kernel: Any, rows: int, cell: tuple, flags: tuple, dtypes: tuple[torch.dtype, ...]) -> Launcher:
    number = tl.float64 if dtypes[0] is torch.float64 else tl.float32
    constants = functions(*cell) | dict(flags) | {"NUMBER": number, "BB": rows, "BU": _UNITS}
    return Launcher(kernel, {name: constants[name] for name in kernel.arg_names if name in constants})


def _rows_of(batch: int, width: int) -> int:
    """The rows of a program: few of a small layer, so that its programs fill the GPU."""
    for rows in (32, 16):
        if -(-batch // rows) * -(-width // _UNITS) >= _PROGRAMS:
            return rows
    return 8


def _first(tensor: Any, count: int) -> Tensor:
    return tensor if tensor.shape[0] == count else tensor[:count]


def _widths(weights: LayerWeights) -> tuple[int, int]:
    """The width of h, and the number of units."""
    output = weights.w_hh.shape[1]
    return output, output if weights.w_hr is None else weights.w_hr.shape[1]


def _number(x: Tensor) -> torch.dtype:
    """The dtype in which the kernels compute."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _from_input(kind: str, x: Tensor, weights: LayerWeights) -> Tensor:
    """W_ih x and the biases of all steps, without the GRU's b_hn, which belongs to its recurrent product."""
    w_ih, w_hh, b_ih, b_hh, _, _ = weights
    if b_ih is None or b_hh is None:
        return torch.mm(x, w_ih.t())
    if kind == "gru":
        gates = 2 * w_hh.shape[1]
        bias = torch.cat([b_ih[:gates] + b_hh[:gates], b_ih[gates:]])
    else:
        bias = b_ih + b_hh
    return torch.addmm(bias, x, w_ih.t())


def _small_gradients(kind: str, sums: Tensor, hidden: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of p (empty without p), b_ih and b_hh from the sums of the programs, in the order of the kernel."""
    gates = GATES[kind]
    wide = (4 if gates > 1 else 1) * hidden
    total = sums.sum(0).to(dtype)
    dp, db = total[: len(total) - wide], total[len(total) - wide :]
    if kind != "gru":
        return dp, db, db.clone()
    return dp, torch.cat([db[: 2 * hidden], db[3 * hidden :]]), db[: 3 * hidden]
