"""The recurrent layer on a CPU as a torch operation: noise comes in as a seed, gradients by the kernels.

One layer in one direction is one operation, the whole time loop inside: torch.compile compiles around it. The large
products (the input's part, the gradients of weights and of the input) run over all steps at once, in C too.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from noisyact.ops.dispatch import plain, traced
from noisyact.ops.matmul import matmul
from noisyact.ops.native.unit import contiguous
from noisyact.ops.recurrent.checks import (
    MisfitError,
    check_backward,
    check_layer,
    check_rows,
    check_sizes,
    no_second_derivative,
)
from noisyact.ops.recurrent.cpu import binding
from noisyact.ops.recurrent.cpu.binding import Call
from noisyact.ops.recurrent.reference import GATES, NONLINEARITIES, CellNoise
from noisyact.schemes import Scheme, scheme

__all__ = ["layer"]

# A scheme as torch lets an operator take it: its text, or "" for none.


def _noise(state: str, gate: str, state_scale: Tensor, gate_scale: Tensor) -> CellNoise:
    return CellNoise(_scheme(state), _scheme(gate), state_scale, gate_scale)


@functools.lru_cache(maxsize=64)
def _scheme(text: str) -> Scheme | None:
    return scheme(text) if text else None


def _text(noise: CellNoise) -> tuple[str, str, Tensor, Tensor]:
    state, gate = (("" if s is None else str(s)) for s in (noise.state, noise.gate))
    return state, gate, noise.state_scale, noise.gate_scale


def layer(
    kind: str, x: Tensor, sizes: Sequence[int], h: Tensor | None, c: Tensor | None, w_ih: Tensor, w_hh: Tensor,
    b_ih: Tensor | None, b_hh: Tensor | None, p: Tensor | None, seed: Tensor | None, noise: CellNoise, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """One layer in one direction, as :func:`reference.layer` with xi from the seed.

    Args:
        sizes: rows at each step.
        h: the first h; None for zeros, as for c.

    Returns: every h, the last h, and the last c (of no rows except for the LSTM).
    """
    hidden = w_hh.shape[1]
    if traced() or not plain(x, h, c, w_ih, w_hh, b_ih, b_hh, p):
        if h is None:
            h = x.new_zeros(sizes[0], hidden)
            c = h if kind == "lstm" else None
        rows = torch.tensor(sizes, dtype=torch.int64)
        return _layer(x, rows, h, c, w_ih, w_hh, b_ih, b_hh, p, seed, kind, *_text(noise.kept()), reverse)[:3]
    call = Call(kind, noise, seed, hidden, sizes, reverse, keep=torch.is_grad_enabled())
    tensors = (x, h, c, w_ih, w_hh, b_ih, b_hh, p)
    if call.keep:  # the same, called without the dispatcher, which takes its time
        return _EagerLayer.apply(call, *tensors)  # pyright: ignore[reportReturnType]
    return _forward(call, *tensors)[:3]


def _last_rows(sizes: Sequence[int], reverse: bool) -> Tensor | slice:
    """Which rows hold each sequence's last h: in reverse those of step 0, else those of its own last step."""
    batch, steps = sizes[0], len(sizes)
    if reverse:
        return slice(0, batch)
    if sizes[-1] == batch:
        return slice((steps - 1) * batch, steps * batch)
    rows = torch.tensor(sizes)
    offsets = rows.cumsum(0) - rows
    lengths = (rows[:, None] > torch.arange(batch)).sum(0)
    return offsets[lengths - 1] + torch.arange(batch)


def _recurrent_weights(dgates: Tensor, h: Tensor, first: Tensor | None, sizes: Sequence[int], reverse: bool) -> Tensor:
    """The gradient of W_hh: every row's dgates with the h before it."""
    batch, rows = sizes[0], len(h)
    if sizes[-1] == batch:  # rectangular: two slices, one step apart
        after, before, entry = slice(batch, None), slice(0, rows - batch), slice(0, batch)
        if reverse:
            after, before, entry = before, after, slice(rows - batch, None)
        gradient = matmul(dgates[after].t(), h[before])
        return gradient if first is None else gradient.add_(matmul(dgates[entry].t(), first))
    first = h.new_zeros(batch, h.shape[1]) if first is None else first
    offsets, parts = list(itertools.accumulate(sizes[:-1], initial=0)), []
    for t, size in enumerate(sizes):
        other = t + 1 if reverse else t - 1
        known = min(size, sizes[other]) if 0 <= other < len(sizes) else 0
        if known:
            parts.append(h[offsets[other] : offsets[other] + known])
        parts.append(first[known:size])
    return matmul(dgates.t(), torch.cat(parts))


def _checked_call(
    kind: str, x: Tensor, sizes: Tensor, h: Tensor | None, c: Tensor | None, weights: dict[str, Tensor | None],
    p: Tensor | None, seed: Tensor | None, noise: CellNoise, reverse: bool,
) -> Call:  # fmt: skip
    """The call of an operator, which anybody can reach by torch.ops, if its tensors fit each other."""
    steps = sizes.tolist()
    check_sizes(steps)
    check_rows(x, sum(steps))
    hidden = check_layer(kind, x, x.shape[1], steps[0], h, c, weights, p, seed, noise)
    return Call(kind, noise, seed, hidden, steps, reverse)


@torch.library.custom_op("noisyact::recurrent_layer", mutates_args=())
def _layer(
    x: Tensor, sizes: Tensor, h0: Tensor, c0: Tensor | None, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None,
    b_hh: Tensor | None, p: Tensor | None, seed: Tensor | None, kind: str, state: str, gate: str, state_scale: Tensor,
    gate_scale: Tensor, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    weights = {"w_ih": w_ih, "w_hh": w_hh, "b_ih": b_ih, "b_hh": b_hh, "w_hr": None}
    noise = _noise(state, gate, state_scale, gate_scale)
    call = _checked_call(kind, x, sizes, h0, c0, weights, p, seed, noise, reverse)
    return _forward(call, x, h0, c0, w_ih, w_hh, b_ih, b_hh, p)


def _forward(call: Call, x: Tensor, *others: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Any, Tensor]:
    """The first h and c, the weights, the biases and p follow x. All h, the last h and c, and what backward needs."""
    h0, c0, *weights = [None if t is None else contiguous(t) for t in others]
    h, gates, extra = binding.layer_forward(call, contiguous(x), *weights, h0, c0)  # pyright: ignore
    last = _last_rows(call.sizes, call.reverse)
    if call.kind != "lstm":
        return h, h[last].clone(), h.new_empty(0, call.hidden), gates, extra
    return h, h[last].clone(), extra[last].clone() if call.keep else extra, gates, extra


@_layer.register_fake
def _(x, sizes, h0, c0, w_ih, w_hh, b_ih, b_hh, p, seed, kind, state, gate, state_scale, gate_scale, reverse):
    rows, hidden = x.shape[0], w_hh.shape[1]
    batch = h0.shape[0]
    return (
        x.new_empty(rows, hidden),
        x.new_empty(batch, hidden),
        x.new_empty(batch if kind == "lstm" else 0, hidden),
        x.new_empty(rows, GATES[kind] * hidden),
        x.new_empty(rows if GATES[kind] > 1 else 0, hidden),
    )


@torch.library.custom_op("noisyact::recurrent_layer_backward", mutates_args=())
def _layer_backward(
    dh: Tensor | None, dh_n: Tensor | None, dc_n: Tensor | None, h: Tensor, gates: Tensor, extra: Tensor, x: Tensor,
    sizes: Tensor, h0: Tensor, c0: Tensor | None, w_ih: Tensor, w_hh: Tensor, b_hh: Tensor | None,
    p: Tensor | None, seed: Tensor | None, kind: str, state: str, gate: str, state_scale: Tensor, gate_scale: Tensor,
    reverse: bool, wants_x: bool, wants_h0: bool,
) -> list[Tensor]:  # fmt: skip
    weights = {"w_ih": w_ih, "w_hh": w_hh, "b_ih": None, "b_hh": b_hh, "w_hr": None}
    noise = _noise(state, gate, state_scale, gate_scale)
    call = _checked_call(kind, x, sizes, h0, c0, weights, p, seed, noise, reverse)
    _check_kept(call, dh, dh_n, dc_n, h, gates, extra)
    gradients = _backward(call, dh, dh_n, dc_n, h, gates, extra, x, h0, c0, w_ih, w_hh, p, wants_x, wants_h0)
    # What an operator returns may share no memory.
    return [x.new_empty(0) if g is None else g.clone() if g._is_view() else g for g in gradients]


def _check_kept(call: Call, *tensors: Tensor | None) -> None:
    """Raise an error unless the gradients, and what the forward pass has kept, are of its sizes."""
    rows, batch, hidden, gates = call.rows, call.batch, call.hidden, call.gates
    wanted = {
        "dh": (rows, hidden), "dh_n": (batch, hidden), "dc_n": (batch if call.kind == "lstm" else 0, hidden),
        "h": (rows, hidden), "gates": (rows, gates * hidden), "extra": (rows if gates > 1 else 0, hidden),
    }  # fmt: skip
    for tensor, (name, shape) in zip(tensors, wanted.items(), strict=True):
        if tensor is not None and (tensor.shape != shape or tensor.device.type != "cpu"):
            raise MisfitError(f"{name} must be of shape {shape} on a CPU, not {tuple(tensor.shape)} on {tensor.device}")


def _backward(
    call: Call, dh: Tensor | None, dh_n: Tensor | None, dc_n: Tensor | None, h: Tensor, gates: Tensor, extra: Tensor,
    x: Tensor, h0: Tensor | None, c0: Tensor | None, w_ih: Tensor, w_hh: Tensor, p: Tensor | None, wants_x: bool,
    wants_h0: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, h0, c0, both weights, both biases and p."""
    kind, hidden = call.kind, call.hidden
    dh = torch.zeros_like(h) if dh is None else contiguous(dh)
    if dh_n is not None:
        dh = dh.clone()
        dh[_last_rows(call.sizes, call.reverse)] += dh_n
    carry = torch.zeros(call.batch, hidden) if dc_n is None or kind != "lstm" else contiguous(dc_n).clone()
    h0, c0 = (None if t is None else contiguous(t) for t in (h0, c0))
    dgates, db, dp, dh0 = binding.layer_backward(
        call, gates, extra, h, contiguous(w_hh), p, h0, c0, dh, carry, wants_h0
    )
    recurrent_side = dgates[:, : 3 * hidden] if kind == "gru" else dgates
    dw_hh = _recurrent_weights(recurrent_side, h, h0, call.sizes, call.reverse)
    if kind == "gru":  # [r, z, n through the recurrent product, n through the input]
        dh0 = None if dh0 is None else dh0.add_(carry)
        r_z, _, n_input = dgates.split([2 * hidden, hidden, hidden], dim=1)
        dw_ih = torch.cat([matmul(r_z.t(), x), matmul(n_input.t(), x)])
        db_ih, db_hh = torch.cat([db[: 2 * hidden], db[3 * hidden :]]), db[: 3 * hidden].clone()
        dx = matmul(r_z, w_ih[: 2 * hidden]).add_(matmul(n_input, w_ih[2 * hidden :])) if wants_x else None
    else:
        dw_ih = matmul(dgates.t(), x)
        db_ih, db_hh = db, db.clone()
        dx = matmul(dgates, w_ih) if wants_x else None
    return dx, dh0, carry, dw_ih, dw_hh, db_ih, db_hh, dp


@_layer_backward.register_fake
def _(dh, dh_n, dc_n, h, gates, extra, x, sizes, h0, c0, w_ih, w_hh, b_hh, p, seed, kind, *settings):
    hidden, wide, (*_, wants_x, wants_h0) = w_hh.shape[1], w_ih.shape[0], settings
    return [
        x.new_empty(x.shape if wants_x else 0),
        x.new_empty(h0.shape if wants_h0 else 0),
        x.new_empty(h0.shape),
        x.new_empty(w_ih.shape),
        x.new_empty(w_hh.shape),
        x.new_empty(wide),
        x.new_empty(wide),
        x.new_empty(NONLINEARITIES[kind] * hidden),
    ]


def _keep_layer(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, sizes, h0, c0, w_ih, w_hh, _, b_hh, p, seed, kind, state, gate, state_scale, gate_scale, reverse = inputs
    h, _, _, gates, extra = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(h, gates, extra, x, sizes, h0, c0, w_ih, w_hh, b_hh, p, seed, state_scale, gate_scale)
    ctx.settings = (kind, state, gate, reverse)


def _differentiate_layer(ctx: Any, dh: Any, dh_n: Any, dc_n: Any, dgates: Any, dextra: Any) -> tuple:
    h, gates, extra, x, sizes, h0, c0, w_ih, w_hh, b_hh, p, seed, state_scale, gate_scale = ctx.saved_tensors
    kind, state, gate, reverse = ctx.settings
    wants_x, _, wants_h0, *_ = ctx.needs_input_grad
    gradients = _layer_backward(
        dh, dh_n, dc_n, h, gates, extra, x, sizes, h0, c0, w_ih, w_hh, b_hh, p, seed, kind, state, gate, state_scale,
        gate_scale, reverse, wants_x, wants_h0,
    )  # fmt: skip
    dx, *others = _where_asked(gradients, wants_x, wants_h0, c0, b_hh, p)
    return dx, None, *others, *([None] * 7)


def _where_asked(
    gradients: Sequence[Any], wants_x: bool, wants_h0: bool, c0: Tensor | None, b_hh: Tensor | None, p: Tensor | None
) -> tuple:
    """The gradients of x, h0, c0, the weights, the biases and p, None for what is not there."""
    dx, dh0, dc0, dw_ih, dw_hh, db_ih, db_hh, dp = gradients
    return (
        dx if wants_x else None, dh0 if wants_h0 else None, None if c0 is None else dc0, dw_ih, dw_hh,
        *((None, None) if b_hh is None else (db_ih, db_hh)), None if p is None else dp.reshape(p.shape),
    )  # fmt: skip


_layer.register_autograd(_differentiate_layer, setup_context=_keep_layer)
_layer_backward.register_autograd(no_second_derivative("layer"))


class _EagerLayer(torch.autograd.Function):
    """The operation and its gradient for calls outside a compiled graph; both directions share the call."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Any) -> Any:
        """What the operation computes, and all that its backward keeps."""
        x, h0, c0, w_ih, w_hh, _, b_hh, p = tensors
        h, h_n, c_n, gates, extra = _forward(call, *tensors)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(h, gates, extra, x, h0, c0, w_ih, w_hh, b_hh, p)
        ctx.call = call
        return h, h_n, c_n

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """The registered gradient; the kernels have no second one."""
        check_backward("layer", grad_outputs)
        h, gates, extra, x, h0, c0, w_ih, w_hh, b_hh, p = ctx.saved_tensors
        _, wants_x, wants_h0, *_ = ctx.needs_input_grad
        gradients = _backward(ctx.call, *grad_outputs, h, gates, extra, x, h0, c0, w_ih, w_hh, p, wants_x, wants_h0)  # pyright: ignore[reportCallIssue]
        return None, *_where_asked(gradients, wants_x, wants_h0, c0, b_hh, p)
