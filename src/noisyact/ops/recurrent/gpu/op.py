"""The recurrent layer on a GPU as a torch operation: noise comes in as a seed, gradients by the kernels.

One layer in one direction is one operation, the whole time loop inside. The gradients of the weights and of the input
are torch's products, over all steps at once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from noisyact.ops.recurrent.gpu.plan import backward_plan, forward_plan, processors
from noisyact.ops.recurrent.reference import GATES, NONLINEARITIES, CellNoise
from noisyact.ops.triton import on
from noisyact.schemes import Scheme, scheme

__all__ = ["layer"]


def layer(
    kind: str, sizes: Sequence[int], x: Tensor, h: Tensor | None, c: Tensor | None, w_ih: Tensor, w_hh: Tensor,
    b_ih: Tensor | None, b_hh: Tensor | None, p: Tensor | None, seed: Tensor | None, noise: CellNoise, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """One layer in one direction, as :func:`reference.layer` with xi from the seed; h and c None for zeros.

    Returns: every h, the last h, and the last c (of no rows except for the LSTM).
    """
    steps, batch = len(sizes), sizes[0]
    offsets, before = (None, None) if sizes[-1] == batch else _packed_rows(tuple(sizes), reverse, x.device)
    tensors = (x, offsets, before, h, c, w_ih, w_hh, b_ih, b_hh, p, seed, noise.state_scale, noise.gate_scale)
    keep = torch.is_grad_enabled()
    if torch.compiler.is_compiling():
        texts = ("" if noise.state is None else str(noise.state), "" if noise.gate is None else str(noise.gate))
        return _layer(*tensors, kind, *texts, noise.hard, steps, batch, reverse, keep)[:3]
    if keep:  # the same, called without the dispatcher, which takes longer than the GPU does
        return _EagerLayer.apply(*tensors, kind, noise, steps, batch, reverse)  # pyright: ignore[reportReturnType]
    return _forward(*tensors, kind, noise, steps, batch, reverse, False)[:3]


@functools.lru_cache(maxsize=8)
def _packed_rows(sizes: tuple[int, ...], reverse: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where each step's rows begin, int32; and for each row that of the h before it in ``[every h; the first h]``."""
    size = torch.tensor(sizes)
    offsets = torch.cat([size.new_zeros(1), size.cumsum(0)])
    step = torch.repeat_interleave(torch.arange(len(sizes)), size)
    place = torch.arange(int(offsets[-1])) - offsets[step]
    other = step + 1 if reverse else step - 1
    known = (other >= 0) & (other < len(sizes))
    other = other.clamp(0, len(sizes) - 1)
    known &= place < size[other]
    before = torch.where(known, offsets[other], offsets[-1]) + place
    return offsets.to(torch.int32).to(device), before.to(device)


def _forward(
    x: Tensor, offsets: Any, before: Any, h0: Any, c0: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Any, b_hh: Any, p: Any,
    seed: Any, state_scale: Tensor, gate_scale: Tensor, kind: str, noise: CellNoise, steps: int, batch: int,
    reverse: bool, keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from noisyact.ops.recurrent.gpu.layer import Rows, layer_forward

    plan = forward_plan(kind, batch, w_hh.shape[1], x.element_size(), processors(x.device))
    h0, c0, w_hh, b_ih, b_hh, p = map(_contiguous, (h0, c0, w_hh, b_ih, b_hh, p))
    with on(x.device):
        return layer_forward(
            kind, x, Rows(steps, batch, offsets), h0, c0, w_ih, w_hh, b_ih, b_hh, p, seed, noise, reverse, keep, plan
        )


def _contiguous(tensor: Any) -> Any:
    return tensor if tensor is None or tensor.is_contiguous() else tensor.contiguous()


def _backward(
    dy: Any, dh_n: Any, dc_n: Any, y: Tensor, a: Tensor, extra: Tensor, x: Tensor, offsets: Any, before: Any, h0: Any,
    c0: Any, w_ih: Tensor, w_hh: Tensor, p: Any, seed: Any, kind: str, noise: CellNoise, steps: int, batch: int,
    reverse: bool, wants_x: bool, wants_h0: bool, wants_weights: bool,
) -> list[Tensor]:  # fmt: skip
    """The gradients of x, h0, c0, w_ih, w_hh, b_ih, b_hh and p; those not wanted are of no elements."""
    from noisyact.ops.recurrent.gpu.layer import Rows, layer_backward, products_as_cudnn

    hidden = w_hh.shape[1]
    plan = backward_plan(kind, batch, hidden, x.element_size(), processors(x.device))
    dy, dh_n, dc_n, h0, c0, w_hh, p = map(_contiguous, (dy, dh_n, dc_n, h0, c0, w_hh, p))
    nothing = x.new_empty(0)
    with on(x.device), products_as_cudnn():
        dgates, dh0, dc0, sums = layer_backward(
            kind, dy, dh_n, dc_n if kind == "lstm" else None, y, a, extra, Rows(steps, batch, offsets), h0, c0, w_hh, p,
            seed, noise, reverse, wants_h0, plan,
        )  # fmt: skip
        wide = w_ih.shape[0]
        dp, db_ih, db_hh = sums.split([sums.shape[0] - 2 * wide, wide, wide])
        d_ih, d_hh = (dgates[:, :wide], dgates[:, wide:]) if kind == "gru" else (dgates, dgates)
        dx = torch.mm(d_ih, w_ih) if wants_x else nothing
        dw_ih = dw_hh = nothing
        if wants_weights:
            dw_ih = torch.mm(d_ih.t(), x)
            dw_hh = _recurrent_weights(d_hh, y, h0, before, batch, reverse)
    dh0, dc0 = (nothing if d is None or not wants_h0 else d for d in (dh0, dc0))
    return [dx, dh0, dc0, dw_ih, dw_hh, db_ih, db_hh, dp]


def _recurrent_weights(d: Tensor, y: Tensor, h0: Any, before: Any, batch: int, reverse: bool) -> Tensor:
    """The gradient of W_hh: every row's gradient with the h before it."""
    if before is not None:
        first = y.new_zeros(batch, y.shape[1]) if h0 is None else h0
        return torch.mm(d.t(), torch.cat([y, first])[before])
    rows = len(y)
    after, earlier, entry = slice(batch, rows), slice(0, rows - batch), slice(0, batch)
    if reverse:
        after, earlier, entry = earlier, after, slice(rows - batch, rows)
    gradient = torch.mm(d[after].t(), y[earlier])
    return gradient if h0 is None else gradient.addmm_(d[entry].t(), h0)


class _EagerLayer(torch.autograd.Function):
    """The operation and its gradient, as registered below, for calls outside a compiled graph."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        """What the operation computes, and all that its backward keeps."""
        y, h_n, c_n, a, extra = _forward(*inputs, True)  # pyright: ignore[reportCallIssue]
        x, offsets, before, h0, c0, w_ih, w_hh, b_ih, _, p, seed, _, _, *settings = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(y, a, extra, x, offsets, before, h0, c0, w_ih, w_hh, p, seed)
        ctx.settings, ctx.has_bias = settings, b_ih is not None
        return y, h_n, c_n

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """The registered gradient; the kernels have no second one."""
        if torch.is_grad_enabled():
            raise RuntimeError("a second derivative of a recurrent layer needs backend='reference'")
        wants = ctx.needs_input_grad
        asked = (wants[0], wants[3] or wants[4], wants[5] or wants[6])
        gradients = _backward(*grad_outputs, *ctx.saved_tensors, *ctx.settings, *asked)  # pyright: ignore[reportCallIssue]
        return (*_in_place(gradients, wants, ctx.has_bias), *([None] * 7))


def _in_place(gradients: list[Tensor], wants: Any, has_bias: bool) -> tuple:
    """The gradients at the places of the operation's tensors."""
    dx, dh0, dc0, dw_ih, dw_hh, db_ih, db_hh, dp = gradients
    at = {0: dx, 3: dh0, 4: dc0, 5: dw_ih, 6: dw_hh, 9: dp}
    at |= {7: db_ih, 8: db_hh} if has_bias else {}
    return tuple(at[i] if i in at and wants[i] else None for i in range(11))


@functools.lru_cache(maxsize=64)
def _scheme(text: str) -> Scheme | None:
    return scheme(text) if text else None


def _noise(state: str, gate: str, hard: bool, state_scale: Tensor, gate_scale: Tensor) -> CellNoise:
    return CellNoise(_scheme(state), _scheme(gate), state_scale, gate_scale, hard)


@torch.library.custom_op("noisyact::gpu_recurrent_layer", mutates_args=())
def _layer(
    x: Tensor, offsets: Tensor | None, before: Tensor | None, h0: Tensor | None, c0: Tensor | None, w_ih: Tensor,
    w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None, p: Tensor | None, seed: Tensor | None, state_scale: Tensor,
    gate_scale: Tensor, kind: str, state: str, gate: str, hard: bool, steps: int, batch: int, reverse: bool, keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    noise = _noise(state, gate, hard, state_scale, gate_scale)
    y, h_n, c_n, a, extra = _forward(
        x, offsets, before, h0, c0, w_ih, w_hh, b_ih, b_hh, p, seed, state_scale, gate_scale, kind, noise, steps, batch,
        reverse, keep,
    )  # fmt: skip
    return y, h_n, c_n, a if keep else x.new_empty(0), extra


@_layer.register_fake
def _(x, offsets, before, h0, c0, w_ih, w_hh, b_ih, b_hh, p, seed, state_scale, gate_scale, kind, state, gate, hard,
      steps, batch, reverse, keep):  # fmt: skip
    rows, hidden = x.shape[0], w_hh.shape[1]
    return (
        x.new_empty(rows, hidden),
        x.new_empty(batch, hidden),
        x.new_empty(batch if kind == "lstm" else 0, hidden),
        x.new_empty(rows, GATES[kind] * hidden) if keep else x.new_empty(0),
        x.new_empty(rows if keep and GATES[kind] > 1 else 0, hidden),
    )


@torch.library.custom_op("noisyact::gpu_recurrent_layer_backward", mutates_args=())
def _layer_backward(
    dy: Tensor | None, dh_n: Tensor | None, dc_n: Tensor | None, y: Tensor, a: Tensor, extra: Tensor, x: Tensor,
    offsets: Tensor | None, before: Tensor | None, h0: Tensor | None, c0: Tensor | None, w_ih: Tensor, w_hh: Tensor,
    p: Tensor | None, seed: Tensor | None, state_scale: Tensor, gate_scale: Tensor, kind: str, state: str, gate: str,
    hard: bool, steps: int, batch: int, reverse: bool, wants_x: bool, wants_h0: bool, wants_weights: bool,
) -> list[Tensor]:  # fmt: skip
    noise = _noise(state, gate, hard, state_scale, gate_scale)
    gradients = _backward(
        dy, dh_n, dc_n, y, a, extra, x, offsets, before, h0, c0, w_ih, w_hh, p, seed, kind, noise, steps, batch,
        reverse, wants_x, wants_h0, wants_weights,
    )  # fmt: skip
    # Each a tensor of its own: torch wants none to be another, or a part of one.
    return [t if t.numel() and t.untyped_storage().nbytes() == t.nbytes else t.clone() for t in gradients]


@_layer_backward.register_fake
def _(dy, dh_n, dc_n, y, a, extra, x, offsets, before, h0, c0, w_ih, w_hh, p, seed, state_scale, gate_scale, kind,
      state, gate, hard, steps, batch, reverse, wants_x, wants_h0, wants_weights):  # fmt: skip
    hidden, wide = w_hh.shape[1], w_ih.shape[0]
    return [
        x.new_empty(x.shape if wants_x else 0),
        x.new_empty((batch, hidden) if wants_h0 else 0),
        x.new_empty((batch, hidden) if wants_h0 and kind == "lstm" else 0),
        x.new_empty(w_ih.shape if wants_weights else 0),
        x.new_empty(w_hh.shape if wants_weights else 0),
        x.new_empty(wide),
        x.new_empty(wide),
        x.new_empty(0 if p is None else NONLINEARITIES[kind] * hidden),
    ]


def _keep(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, offsets, before, h0, c0, w_ih, w_hh, b_ih, _, p, seed, state_scale, gate_scale, *settings, keep = inputs
    if not keep:
        raise RuntimeError("this compiled layer was traced without gradients")
    y, _, _, a, extra = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(y, a, extra, x, offsets, before, h0, c0, w_ih, w_hh, p, seed, state_scale, gate_scale)
    ctx.settings, ctx.has_bias = settings, b_ih is not None


def _differentiate(ctx: Any, dy: Any, dh_n: Any, dc_n: Any, da: Any, dextra: Any) -> tuple:
    wants = ctx.needs_input_grad
    gradients = _layer_backward(
        dy, dh_n, dc_n, *ctx.saved_tensors, *ctx.settings, wants[0], wants[3] or wants[4], wants[5] or wants[6]
    )
    return (*_in_place(gradients, wants, ctx.has_bias), *([None] * 10))


_layer.register_autograd(_differentiate, setup_context=_keep)
