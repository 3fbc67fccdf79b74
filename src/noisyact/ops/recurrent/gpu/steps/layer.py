"""A recurrent layer on a GPU step by step: a product of torch and a pointwise kernel for each step.

It serves the layers that the kernels with the whole time loop do not: those for which they would be slower,
projections, and float64. All buffers are allocated before the first step. A pass runs in parts of the sequence, so that
layers above each other can run at the same time (wavefront.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from noisyact.ops.recurrent.gpu.call import StackCall, extra_rows
from noisyact.ops.recurrent.gpu.settings import functions
from noisyact.ops.recurrent.gpu.steps.backward import backward_kernel, state_backward_kernel
from noisyact.ops.recurrent.gpu.steps.cublas import recurrent_weights
from noisyact.ops.recurrent.gpu.steps.forward import forward_kernel, state_kernel
from noisyact.ops.recurrent.gpu.steps.routine import Launch, Place, Product, Routine
from noisyact.ops.recurrent.gpu.steps.rules import step_rules
from noisyact.ops.recurrent.gpu.steps.seen import ruled_weights
from noisyact.ops.recurrent.gpu.steps.timeline import Step, rows_of, timeline
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES, CellNoise, LayerWeights
from noisyact.ops.triton.launch import Launcher

__all__ = ["LayerGradients", "layer_backward", "layer_forward"]

_ROWS, _UNITS = 8, 32
"""The rows and units of a program. Larger ones need so many registers that few programs run at once."""
_MANY_PROGRAMS = 256
"""From this number of programs on, those of float32 have four warps; fewer programs, and float64, have eight."""


Part = Callable[[slice], None]
"""Computes a part of a pass: these steps, of all in the order of the recurrence."""


class LayerGradients(NamedTuple):
    """The gradients of one layer's weights and states. One that is not wanted is None."""

    weights: LayerWeights
    h0: Tensor | None
    c0: Tensor | None
    reset_h: Tensor | None
    reset_c: Tensor | None


def layer_forward(
    call: StackCall, index: int, x: Tensor, h0: Tensor | None, c0: Tensor | None, h_n: Tensor, c_n: Tensor | None,
    weights: LayerWeights, keep: bool, kept_noise: CellNoise | None, form: Sequence[int],
) -> tuple[tuple[Tensor, Tensor, Tensor], Part]:  # fmt: skip
    """Prepare one layer, like reference.layer with xi from the seed.

    Args:
        index: the layer's index in the call.
        x: [rows, input].
        h0, c0: [batch, H], the initial state; None for zeros.
        h_n, c_n: [batch, H], receive the final state.
        weights: contiguous tensors.
        keep: whether backward will follow.
        kept_noise: receives the scales that the kernels used.
        form: the leading dimensions of the output: the number of rows, or steps and batch.

    Returns: h at every step; and for backward the pre-activations, and the LSTM's c or the GRU's W_hn h + b_hn. Then a
    function that computes a part of the steps, whose rows of x must be there by then.
    """
    kind, batch, (output, hidden) = call.kind, call.batch, _widths(weights)
    noise, seed, projected, number = call.noise, call.seeds[index], weights.w_hr is not None, _number(x)
    a, bias, w_ih = x.new_empty(len(x), len(weights.w_ih)), _bias(kind, weights), weights.w_ih.t()
    y = x.new_empty(*form, output)
    rules = step_rules(call, index, x, output)
    reset, reset_h, reset_c, rows, mask_seed, dropout = rules.kernel.tensors
    extra = x.new_empty(extra_rows(kind, len(x), rules.zoneout_c) if keep else 0, hidden)
    state = torch.empty(batch, hidden, dtype=number, device=x.device) if kind in ("lstm", "gru") else None
    q = x.new_empty(batch, 3 * hidden) if kind == "gru" else None
    m = x.new_empty(batch, hidden) if projected else None
    first, seen = h0, None
    if rules.kernel.change_product():
        first, seen = rules.kernel.seen_at_first(h0, call.reverse), x.new_empty(batch, output)
    kept_scales = (None, None) if kept_noise is None else (kept_noise.gate_scale, kept_noise.state_scale)
    flags = rules.constants | {
        "HAS_STATE": h0 is not None, "HAS_BIAS": weights.b_hh is not None, "HAS_P": weights.p is not None, "KEEP": keep,
        "KEEP_SCALES": kept_noise is not None, "PROJECTED": projected,
    }  # fmt: skip
    settings = (
        (kind, noise.state, noise.gate, noise.hard, seed is not None),
        flags,
        (x.dtype, noise.state_scale.dtype, noise.gate_scale.dtype),
    )
    run = _prepared(
        forward_kernel, batch, hidden, settings,
        (a, q, weights.b_hh, weights.p, seed, noise.gate_scale, noise.state_scale, *kept_scales, h0, c0, state, y, m,
         extra if len(extra) else y, h_n, c_n, reset, reset_h, reset_c, rows, mask_seed, dropout, seen),
        (len(x), hidden),
    )  # fmt: skip
    end, is_plain = None, _projects_plainly(call, weights)
    if projected and not is_plain:
        end = _prepared(
            state_kernel, batch, output, settings,
            (h0, y, h_n, reset, reset_h, rows, mask_seed, dropout, seen), (output,),
        )  # fmt: skip
    w, adds, outputs = weights.w_hh.t(), kind != "gru", y.view(-1, output)
    known, new = (
        (Place(a, ("offset",)), Place(a, ("offset", "known"))) if q is None else (Place(q), Place(q, ("known",)))
    )
    before = Place(outputs, ("offset_before",)) if seen is None else Place(seen)
    operations: list[Product | Launch] = [Product(known, before, w, adds, "known")]
    if first is not None:
        operations.append(Product(new, Place(first, ("known",)), w, adds, "size", "known"))
    operations.append(run)
    if m is not None and weights.w_hr is not None:
        operations.append(Product(Place(outputs, ("offset",)), Place(m), weights.w_hr.t(), False, "size"))
    if end is not None:
        operations.append(end)
    order = timeline(call.every_size(), call.reverse, rules.first_step)
    routine = Routine(operations, order)

    def advance(part: slice) -> None:
        rows = rows_of(order.steps[part])
        if bias is None:
            torch.mm(x[rows], w_ih, out=a[rows])
        else:
            torch.addmm(bias, x[rows], w_ih, out=a[rows])
        routine.run(part)
        if is_plain and order.steps[part][-1] is order.steps[-1]:
            h_n.copy_(outputs[rows_of(order.steps[-1:])])

    return (y, a, extra), advance


def layer_backward(
    call: StackCall, index: int, dy: Tensor | None, dh_n: Tensor | None, dc_n: Tensor | None, h0: Tensor | None,
    c0: Tensor | None, x: Tensor, kept: Sequence[Tensor], weights: LayerWeights, dgates: Tensor, wants_x: bool,
    wants_h0: bool, wants_weights: bool, wants_reset: bool,
) -> tuple[Tensor | None, Part, Callable[[], LayerGradients]]:  # fmt: skip
    """Prepare the gradients of one layer.

    Args:
        dy: the gradient of h at every step; dh_n and dc_n: [batch, H], those of the final state. None for zeros.
        x: [rows, input].
        kept: the results of :func:`layer_forward`.
        dgates: [rows, gates H], a buffer for the gradients of the pre-activations; for the GRU [rows, 6 H], those of
            W_ih x and then those of W_hh h.

    Returns: the gradient of x, if it is wanted; a function that computes it for a part of the steps, whose rows of dy
    must be there by then, to be called from the last part to the first; and a function for all gradients, to be called
    after that.
    """
    kind, batch, (output, hidden) = call.kind, call.batch, _widths(weights)
    (y, a, extra), p, w_hh, number = kept, weights.p, weights.w_hh, _number(x)
    noise, seed, projected, rows = call.noise, call.seeds[index], weights.w_hr is not None, len(x)
    wide = w_hh.shape[0]
    dh = x.new_empty(batch, output)
    rules = step_rules(call, index, x, output)
    reset, reset_h, reset_c, places, mask_seed, dropout = rules.kernel.tensors
    wants_reset = wants_reset and reset_h is not None
    dreset_h = None if reset_h is None else torch.zeros(batch, output, dtype=number, device=x.device)
    dreset_c = None if reset_c is None else torch.zeros(batch, hidden, dtype=number, device=x.device)
    carries = kind == "gru" or rules.zoneout_h > 0
    carry_h = torch.empty(batch, output, dtype=number, device=x.device) if carries else None
    carry_c = torch.empty(batch, hidden, dtype=number, device=x.device) if kind == "lstm" else None
    shapes = (rows, output), (batch, hidden), (rows, hidden)
    owed, dm, m = (x.new_empty(*shape) if projected else None for shape in shapes)
    is_plain = _projects_plainly(call, weights)
    count = (NONLINEARITIES[kind] if p is not None else 0) + (4 if GATES[kind] > 1 else 1)
    blocks = -(-batch // _ROWS)
    sums = torch.zeros(blocks, count * hidden, dtype=number, device=x.device)
    flags = rules.constants | {
        "HAS_STATE": h0 is not None, "HAS_P": p is not None, "HAS_DY": dy is not None, "HAS_DHN": dh_n is not None,
        "HAS_DCN": dc_n is not None, "PROJECTED": projected,
    }  # fmt: skip
    settings = (
        (kind, noise.state, noise.gate, noise.hard, seed is not None),
        flags,
        (x.dtype, noise.state_scale.dtype, noise.gate_scale.dtype),
    )
    run = _prepared(
        backward_kernel, batch, hidden, settings,
        (a, extra if len(extra) else y, y, p, seed, noise.gate_scale, noise.state_scale, h0, c0,
         dm if projected else dh, dy, dh_n, dc_n, carry_h, carry_c, dgates, m, sums, reset, reset_h, reset_c, dreset_h,
         dreset_c, places, mask_seed, dropout),
        (rows, hidden),
    )  # fmt: skip
    order, d_ih = timeline(call.every_size(), call.reverse, rules.first_step), dgates[:, :wide]
    needed = "size" if wants_h0 or wants_reset else "known"
    of_steps = Place(dgates[:, -wide:], ("offset",))
    operations: list[Product | Launch] = [run, Product(Place(dh), of_steps, w_hh, False, needed)]
    if owed is not None and dm is not None and weights.w_hr is not None:
        operations.insert(0, Product(Place(dm), Place(owed, ("offset",)), weights.w_hr, False, "size"))
        if is_plain:  # the product adds the gradient of h to what the step before owes already
            operations[2] = Product(Place(owed.zero_(), ("offset_before",)), of_steps, w_hh, True, "known")
            if wants_h0:
                of_first = Place(dgates[:, -wide:], ("offset", "known"))
                operations.append(Product(Place(dh, ("known",)), of_first, w_hh, False, "size", "known"))
        else:
            begin = _prepared(
                state_backward_kernel, batch, output, settings,
                (dh, carry_h, dy, dh_n, owed, dreset_h, reset, places, mask_seed, dropout), (output,),
            )  # fmt: skip
            operations.insert(0, begin)
    routine = Routine(operations, order, backwards=True)
    dx = x.new_empty(x.shape) if wants_x else None

    def advance(part: slice) -> None:
        if is_plain and owed is not None:
            steps = order.steps[part]
            _add_from_outside(owed, dy, dh_n if steps[-1] is order.steps[-1] else None, steps)
        routine.run(part)
        if dx is not None:
            rows = rows_of(order.steps[part])
            torch.mm(d_ih[rows], weights.w_ih, out=dx[rows])

    def finish() -> LayerGradients:
        of_weights = LayerWeights(None, None)  # pyright: ignore[reportArgumentType]
        if wants_weights:
            if rules.kernel.change_product():
                dw_hh = ruled_weights(dgates[:, -wide:], y, h0, call, rules.kernel)
            else:
                dw_hh = recurrent_weights(dgates, wide, y, h0, call.before, batch, call.reverse)
            dw_hr = None if owed is None or m is None else torch.mm(owed.t(), m)
            of_weights = LayerWeights(torch.mm(d_ih.t(), x), dw_hh, w_hr=dw_hr)
        dp, db_ih, db_hh = _small_gradients(kind, sums, hidden, x.dtype)
        of_weights = of_weights._replace(b_ih=db_ih, b_hh=db_hh, p=dp)
        if not (wants_h0 or wants_reset):
            return LayerGradients(of_weights, None, None, None, None)
        owed_h: Any = dh if dropout is None else dh * dropout
        owed_h = owed_h if carry_h is None else owed_h + carry_h
        states = (owed_h, dreset_h), (carry_c, dreset_c)
        (dh0, at_reset_h), (dc0, at_reset_c) = (
            _of_first_state(d, total, reset, call.reverse, x.dtype, wants_h0, wants_reset) for d, total in states
        )
        return LayerGradients(of_weights, dh0, dc0, at_reset_h, at_reset_c)

    return dx, advance, finish


def _projects_plainly(call: StackCall, weights: LayerWeights) -> bool:
    """Whether a projected h needs no kernel for itself: nothing but products changes it."""
    return weights.w_hr is not None and call.rules is None and call.offsets is None


def _add_from_outside(owed: Tensor, dy: Tensor | None, dh_n: Tensor | None, steps: Sequence[Step]) -> None:
    """Add the gradients of y in these steps, and of the h after the last of them."""
    if dy is not None:
        rows = rows_of(steps)
        owed[rows] += dy.view(owed.shape)[rows]
    if dh_n is not None:
        owed[rows_of(steps[-1:])] += dh_n


def _prepared(
    kernel: Any, batch: int, width: int, settings: tuple, tensors: Sequence[Tensor | None], numbers: tuple[int, ...]
) -> Launch:
    """The launch of a kernel at every step."""
    cell, flags, dtypes = settings
    across = -(-width // _UNITS)
    many = -(-batch // _ROWS) * across >= _MANY_PROGRAMS and dtypes[0] is not torch.float64
    launcher = _launcher(kernel, 4 if many else 8, cell, tuple(flags.items()), dtypes)
    return Launch(launcher.prepared(tensors, numbers), _ROWS, across)


@functools.lru_cache(maxsize=1024)
def _launcher(kernel: Any, warps: int, cell: tuple, flags: tuple, dtypes: tuple[torch.dtype, ...]) -> Launcher:
    number = tl.float64 if dtypes[0] is torch.float64 else tl.float32
    constants = functions(*cell) | dict(flags) | {"NUMBER": number, "BB": _ROWS, "BU": _UNITS, "num_warps": warps}
    return Launcher(kernel, {name: constants[name] for name in (*kernel.arg_names, "num_warps") if name in constants})


def _of_first_state(
    d: Tensor | None, of_resets: Tensor | None, reset: Tensor | None, reverse: bool, dtype: torch.dtype,
    wants_first: bool, wants_reset: bool,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients of the initial state and of the state of resets, from that of the state before the first step.

    Args:
        d: [batch, H]; None for a state that the layer does not have.
        of_resets: the gradient from the resets after the first step.
        reset: [steps, batch].
    """
    if d is None:
        return None, None
    if reset is not None:
        again = reset[-1 if reverse else 0].unsqueeze(1)
        of_resets = None if of_resets is None else of_resets + d * again
        d = d.masked_fill(again, 0.0)
    at_reset = of_resets.to(dtype) if wants_reset and of_resets is not None else None
    return d.to(dtype) if wants_first else None, at_reset


def _widths(weights: LayerWeights) -> tuple[int, int]:
    """The width of h, and the number of units."""
    output = weights.w_hh.shape[1]
    return output, output if weights.w_hr is None else weights.w_hr.shape[1]


def _number(x: Tensor) -> torch.dtype:
    """The dtype in which the kernels compute."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _bias(kind: str, weights: LayerWeights) -> Tensor | None:
    """The biases that belong to W_ih x: all but the GRU's b_hn, which belongs to its recurrent product."""
    b_ih, b_hh = weights.b_ih, weights.b_hh
    if b_ih is None or b_hh is None:
        return None
    if kind != "gru":
        return b_ih + b_hh
    gates = 2 * weights.w_hh.shape[1]
    return torch.cat([b_ih[:gates] + b_hh[:gates], b_ih[gates:]])


def _small_gradients(kind: str, sums: Tensor, hidden: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of p (empty without p), b_ih and b_hh from the sums of the programs, in the order of the kernel."""
    gates = GATES[kind]
    wide = (4 if gates > 1 else 1) * hidden
    total = sums.sum(0).to(dtype)
    dp, db = total[: len(total) - wide], total[len(total) - wide :]
    if kind != "gru":
        return dp, db, db.clone()
    return dp, torch.cat([db[: 2 * hidden], db[3 * hidden :]]), db[: 3 * hidden]
