"""The recurrent layer on a CPU as a torch operation: noise comes in as a seed, gradients by the kernels.

One layer in one direction is one operation, the whole time loop inside: torch.compile compiles around it. The big
products (the input's part, the gradients of weights and of the input) are torch's, over all steps at once.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from noisyact.ops.product import product
from noisyact.ops.recurrent import native
from noisyact.ops.recurrent.native import Call, contiguous
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
    kind: str, x: Tensor, sizes: Tensor, h: Tensor, c: Tensor | None, w_ih: Tensor, w_hh: Tensor,
    b_ih: Tensor | None, b_hh: Tensor | None, p: Tensor | None, seed: Tensor | None, noise: CellNoise, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """One layer in one direction, as :func:`reference.layer` with xi from the seed.

    Args:
        sizes: rows at each step, int64 on the CPU.

    Returns: every h, the last h, and the last c (of no rows except for the LSTM).
    """
    if torch.compiler.is_compiling():
        h_all, h_n, c_n, _, _ = _layer(x, sizes, h, c, w_ih, w_hh, b_ih, b_hh, p, seed, kind, *_text(noise), reverse)
    elif torch.is_grad_enabled():  # the same, called without the dispatcher, which takes its time
        arguments = (x, sizes, h, c, w_ih, w_hh, b_ih, b_hh, p, seed, kind, *_text(noise), reverse)
        h_all, h_n, c_n = _EagerLayer.apply(*arguments)  # pyright: ignore[reportAssignmentType]
    else:
        call = _call(kind, w_hh.shape[1], sizes, b_hh, p, seed, noise, reverse, keep=False)
        h_all, h_n, c_n, _, _ = _forward(call, x, native.pack(call, w_ih, w_hh), h, c, b_ih, b_hh)
    return h_all, h_n, c_n


def _call(
    kind: str, hidden: int, sizes: Tensor, b_hh: Tensor | None, p: Tensor | None, seed: Tensor | None, noise: CellNoise,
    reverse: bool, keep: bool = True,
) -> Call:  # fmt: skip
    candidate_bias = contiguous(b_hh[2 * hidden :]) if kind == "gru" and b_hh is not None else None
    return Call(kind, noise, seed, p, candidate_bias, hidden, sizes, reverse, keep)


def _unless_zero(state: Tensor | None) -> Tensor | None:
    """A first state for the kernel, which skips the product with one that is zero."""
    return contiguous(state) if state is not None and bool(state.any()) else None


def _bias(kind: str, b_ih: Tensor | None, b_hh: Tensor | None) -> Tensor | None:
    """Both biases where they are simply added; the GRU's candidate keeps its b_hh inside the reset product."""
    if b_ih is None or b_hh is None:
        return None
    if kind == "gru":
        b_hh = torch.cat([b_hh[: 2 * len(b_hh) // 3], torch.zeros_like(b_hh[2 * len(b_hh) // 3 :])])
    return b_ih + b_hh


def _last_rows(sizes: Tensor, reverse: bool) -> Tensor | slice:
    """Which rows hold each sequence's last h: in reverse those of step 0, else those of its own last step."""
    batch, steps = int(sizes[0]), len(sizes)
    if reverse:
        return slice(0, batch)
    if int(sizes[-1]) == batch:
        return slice((steps - 1) * batch, steps * batch)
    offsets = sizes.cumsum(0) - sizes
    lengths = (sizes[:, None] > torch.arange(batch)).sum(0)
    return offsets[lengths - 1] + torch.arange(batch)


def _recurrent_weights(dgates: Tensor, h: Tensor, first: Tensor | None, sizes: Tensor, reverse: bool) -> Tensor:
    """The gradient of W_hh: every row's dgates with the h before it."""
    batch, rows = int(sizes[0]), len(h)
    if int(sizes[-1]) == batch:  # rectangular: two slices, one step apart
        after, before, entry = slice(batch, None), slice(0, rows - batch), slice(0, batch)
        if reverse:
            after, before, entry = before, after, slice(rows - batch, None)
        gradient = product(dgates[after].t(), h[before])
        return gradient if first is None else gradient.add_(product(dgates[entry].t(), first))
    first = h.new_zeros(batch, h.shape[1]) if first is None else first
    offsets, parts = (sizes.cumsum(0) - sizes).tolist(), []
    for t, size in enumerate(sizes.tolist()):
        other = t + 1 if reverse else t - 1
        known = min(size, int(sizes[other])) if 0 <= other < len(sizes) else 0
        if known:
            parts.append(h[offsets[other] : offsets[other] + known])
        parts.append(first[known:size])
    return product(dgates.t(), torch.cat(parts))


@torch.library.custom_op("noisyact::recurrent_layer", mutates_args=())
def _layer(
    x: Tensor, sizes: Tensor, h0: Tensor, c0: Tensor | None, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None,
    b_hh: Tensor | None, p: Tensor | None, seed: Tensor | None, kind: str, state: str, gate: str, state_scale: Tensor,
    gate_scale: Tensor, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    call = _call(kind, w_hh.shape[1], sizes, b_hh, p, seed, _noise(state, gate, state_scale, gate_scale), reverse)
    packed = native.pack(call, w_ih, w_hh)
    return _forward(call, x, packed, h0, c0, b_ih, b_hh)


def _forward(
    call: Call, x: Tensor, packed: tuple[Tensor, Tensor], h0: Tensor, c0: Tensor | None, b_ih: Tensor | None,
    b_hh: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    bias = _bias(call.kind, b_ih, b_hh)
    h, gates, extra = native.layer_forward(call, contiguous(x), packed, bias, _unless_zero(h0), _unless_zero(c0))
    last = _last_rows(call.sizes, call.reverse)
    c_n = h.new_empty(0, call.hidden)
    if call.kind == "lstm":
        c_n = extra[last].clone() if call.keep else extra
    return h, h[last].clone(), c_n, gates, extra


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
    hidden = w_hh.shape[1]
    call = _call(kind, hidden, sizes, b_hh, p, seed, _noise(state, gate, state_scale, gate_scale), reverse)
    dh = torch.zeros_like(h) if dh is None else contiguous(dh)
    if dh_n is not None:
        dh = dh.clone()
        dh[_last_rows(sizes, reverse)] += dh_n
    carry = torch.zeros(call.batch, hidden) if dc_n is None or kind != "lstm" else contiguous(dc_n).clone()
    first_h, first_c = _unless_zero(h0), _unless_zero(c0)
    dgates, dp, dh0 = native.layer_backward(
        call, gates, extra, h, contiguous(w_hh), first_h, first_c, dh, carry, wants_h0
    )
    recurrent_side = dgates[:, : 3 * hidden] if kind == "gru" else dgates
    dw_hh = _recurrent_weights(recurrent_side, h, first_h, sizes, reverse)
    if kind == "gru":  # [r, z, n through the recurrent product, n through the input]
        dh0 = None if dh0 is None else dh0.add_(carry)
        r_z, _, n_input = dgates.split([2 * hidden, hidden, hidden], dim=1)
        dw_ih = torch.cat([product(r_z.t(), x), product(n_input.t(), x)])
        db = dgates.sum(0)
        db_hh, db_ih = db[: 3 * hidden], torch.cat([db[: 2 * hidden], db[3 * hidden :]])
        dx = product(r_z, w_ih[: 2 * hidden]).add_(product(n_input, w_ih[2 * hidden :])) if wants_x else x.new_empty(0)
    else:
        dw_ih = product(dgates.t(), x)
        db_ih = dgates.sum(0)
        db_hh = db_ih.clone()
        dx = product(dgates, w_ih) if wants_x else x.new_empty(0)
    return [dx, x.new_empty(0) if dh0 is None else dh0, carry, dw_ih, dw_hh, db_ih, db_hh.clone(), dp]


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


class _EagerLayer(torch.autograd.Function):
    """The operation and its gradient, as registered below, for calls outside a compiled graph."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        """What the operation computes, and all that its backward keeps."""
        output = _layer._init_fn(*inputs)
        _keep_layer(ctx, inputs, output)
        return output[:3]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """The registered gradient; the kernels have no second one."""
        if torch.is_grad_enabled():
            raise RuntimeError("a second derivative of a recurrent layer needs backend='reference'")
        dh, dh_n, dc_n = grad_outputs
        return _differentiate_layer(ctx, dh, dh_n, dc_n, None, None, _layer_backward._init_fn)


def _keep_layer(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, sizes, h0, c0, w_ih, w_hh, _, b_hh, p, seed, kind, state, gate, state_scale, gate_scale, reverse = inputs
    h, _, _, gates, extra = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(h, gates, extra, x, sizes, h0, c0, w_ih, w_hh, b_hh, p, seed, state_scale, gate_scale)
    ctx.settings = (kind, state, gate, reverse)


def _differentiate_layer(
    ctx: Any, dh: Any, dh_n: Any, dc_n: Any, dgates: Any, dextra: Any, differentiate: Any = _layer_backward
) -> tuple:
    h, gates, extra, x, sizes, h0, c0, w_ih, w_hh, b_hh, p, seed, state_scale, gate_scale = ctx.saved_tensors
    kind, state, gate, reverse = ctx.settings
    dx, dh0, dc0, dw_ih, dw_hh, db_ih, db_hh, dp = differentiate(
        dh, dh_n, dc_n, h, gates, extra, x, sizes, h0, c0, w_ih, w_hh, b_hh, p, seed, kind, state, gate, state_scale,
        gate_scale, reverse, ctx.needs_input_grad[0], ctx.needs_input_grad[2],
    )  # fmt: skip
    none = None
    return (
        dx if ctx.needs_input_grad[0] else none, none, dh0 if ctx.needs_input_grad[2] else none,
        none if c0 is None else dc0, dw_ih,
        dw_hh, none if b_hh is None else db_ih, none if b_hh is None else db_hh,
        none if p is None else dp.reshape(p.shape), none, none, none, none, none, none, none,
    )  # fmt: skip


_layer.register_autograd(_differentiate_layer, setup_context=_keep_layer)
