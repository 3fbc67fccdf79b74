"""Recurrent layers on a GPU: noise comes in as seeds, gradients by the kernels.

One layer in one direction is one launch, the whole time loop inside. Layers above each other are one operation, since a
small network waits for the host: fewer calls into torch, less memory to ask for. What is a product over all steps at
once, W_ih x and the gradients of the weights and of the input, is in the launch too in a small network, else torch's.
registration.py has the layer as torch.compile sees it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noisyact.ops.recurrent.checks import check_backward, check_sizes
from noisyact.ops.recurrent.gpu.plan import backward_plan, backward_sizes, forward_plan, forward_sizes, processors
from noisyact.ops.recurrent.reference import CellNoise
from noisyact.ops.triton import on

__all__ = ["Call", "backward", "forward", "layers", "packed_rows"]

_TENSORS = 5
"""Of each layer: w_ih, w_hh, b_ih, b_hh, p."""


class Call(NamedTuple):
    """What a call has besides the tensors that get gradients."""

    kind: str
    noise: CellNoise
    seeds: Sequence[Tensor | None]
    """One for each layer; None for the expectation."""
    steps: int
    batch: int
    offsets: Tensor | None
    """Where each step's rows begin, and the end of the last; None where every step has the whole batch."""
    before: Tensor | None
    """For each row that of the h before it, as :func:`packed_rows` has it."""
    reverse: bool


def layers(
    kind: str, sizes: Sequence[int], x: Tensor, h: Tensor | None, c: Tensor | None,
    weights: Sequence[Sequence[Tensor | None]], seeds: Sequence[Tensor | None], noise: CellNoise, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Layers above each other in one direction, each as :func:`reference.layer` with xi from its seed.

    Args:
        x: [steps, batch, input], or [rows, input]; every h has the same form.
        h: [layers, batch, H]; None for zeros, as for c.
        weights: w_ih, w_hh, b_ih, b_hh and p of each layer.

    Returns: every h of the last layer, and the last h and c of all, [layers, batch, H]; c of the LSTM alone.
    """
    batch = sizes[0]
    offsets, before = (None, None) if sizes[-1] == batch else packed_rows(tuple(sizes), reverse, x.device)
    noise = noise.kept() if torch.is_grad_enabled() else noise
    call = Call(kind, noise, seeds, len(sizes), batch, offsets, before, reverse)
    flat = [tensor for layer in weights for tensor in layer]
    if torch.is_grad_enabled():
        return _EagerLayers.apply(call, x, h, c, *flat)  # pyright: ignore[reportReturnType]
    return forward(call, x, h, c, flat, False)[:3]


@functools.lru_cache(maxsize=8)
def packed_rows(sizes: tuple[int, ...], reverse: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where each step's rows begin, int32; and for each row that of the h before it in ``[every h; the first h]``."""
    check_sizes(sizes)
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


@functools.cache
def _launches() -> Any:
    """The module that imports Triton, when it is needed."""
    from noisyact.ops.recurrent.gpu import layer

    return layer


def forward(
    call: Call, x: Tensor, h0: Tensor | None, c0: Tensor | None, flat: Sequence[Any], keep: bool
) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:
    """As :func:`layers`; and with `keep`, the input's rows and for each layer every h and what else backward needs."""
    launches = _launches()
    kind, batch, hidden, count = call.kind, call.batch, flat[1].shape[1], len(flat) // _TENSORS
    size, device = x.element_size(), x.device
    plan = forward_plan(kind, batch, hidden, size, processors(device))
    sizes = forward_sizes(plan, batch, hidden, size)
    form, x = x.shape[:-1], x.reshape(-1, x.shape[-1])
    rows, kept = launches.Rows(call.steps, batch, call.offsets), [x]
    h0, c0 = _contiguous(h0), _contiguous(c0)
    launches.check_alarm()
    with on(device), launches.ProductsAsCudnn():
        room = launches.forward_room(kind, x, count, batch, hidden, plan, sizes)
        for index in range(count):
            w_ih, w_hh, b_ih, b_hh, p = map(_contiguous, flat[index * _TENSORS : (index + 1) * _TENSORS])
            in_launch = call.offsets is None and plan.writes_products(*x.shape)
            results = launches.layer_forward(
                kind, index, _contiguous(x) if in_launch else x, rows, h0, c0, w_ih, w_hh, b_ih, b_hh, p,
                call.seeds[index], call.noise, call.reverse, keep, in_launch, plan, sizes, room,
                x.shape[:1] if index < count - 1 else form,
            )  # fmt: skip
            x = results[0]
            kept += results
    h_n, c_n, _ = room
    if not plan.persistent:
        h_n, c_n = h_n.to(x.dtype), None if c_n is None else c_n.to(x.dtype)
    return x, h_n, c_n, kept


def backward(
    call: Call, dy: Tensor | None, dh_n: Tensor | None, dc_n: Tensor | None, h0: Tensor | None, c0: Tensor | None,
    all_w_ih: Sequence[Tensor], all_w_hh: Sequence[Tensor], all_p: Sequence[Tensor | None], kept: Sequence[Tensor],
    wants_x: bool, wants_h0: bool, wants_weights: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, list[Tensor | None]]:  # fmt: skip
    """The gradients of the input's rows, of h0, c0 and of each layer's w_ih, w_hh, b_ih, b_hh and p; None for those not
    wanted.
    """
    launches = _launches()
    x, count = kept[0], len(all_w_ih)
    kind, batch, hidden, wide = call.kind, call.batch, all_w_hh[0].shape[1], all_w_hh[0].shape[0]
    size, device = x.element_size(), x.device
    plan = backward_plan(kind, batch, hidden, size, processors(device))
    sizes = backward_sizes(plan, kind, batch, hidden, size)
    rows = launches.Rows(call.steps, batch, call.offsets)
    h0, c0, dh_n = _contiguous(h0), _contiguous(c0), _contiguous(dh_n)
    dc_n = _contiguous(dc_n) if kind == "lstm" else None
    gradients: list[Tensor | None] = []
    launches.check_alarm()
    with on(device), launches.ProductsAsCudnn():
        room = launches.backward_room(kind, x, count, batch, hidden, all_p[0] is not None, wants_h0, plan, sizes)
        for index in reversed(range(count)):
            w_ih, w_hh, p = all_w_ih[index], all_w_hh[index], all_p[index]
            y, a, extra = kept[3 * index + 1 : 3 * index + 4]
            below = kept[3 * index - 2] if index else x
            in_launch = wants_weights and call.offsets is None and plan.writes_products(*below.shape)
            wants_below = wants_x or index > 0
            (dp, db_ih, db_hh), dw_ih, dw_hh, dx = launches.layer_backward(
                kind, index, _contiguous(dy), dh_n, dc_n, y, a, extra, rows, h0, c0, _contiguous(w_hh), _contiguous(p),
                call.seeds[index], call.noise, call.reverse, wants_h0, _contiguous(below) if in_launch else None,
                _contiguous(w_ih) if in_launch and wants_below else None, plan, sizes, room,
            )  # fmt: skip
            if not in_launch:
                d_ih = room.dgates[:, :wide]
                if wants_weights:
                    h = None if h0 is None else h0[index]
                    dw_ih = torch.mm(d_ih.t(), below)
                    dw_hh = _recurrent_weights(room.dgates, wide, y, h, call.before, batch, call.reverse)
                dx = torch.mm(d_ih, w_ih) if wants_below else None
            dy = dx
            gradients[:0] = (dw_ih, dw_hh, db_ih, db_hh, dp)
    if not wants_h0:
        return dy, None, None, gradients
    dh0, dc0 = room.dh0, room.dc0
    if not plan.persistent:
        dh0, dc0 = (None if d is None else d.to(x.dtype) for d in (dh0, dc0))
    return dy, dh0, dc0, gradients


def _contiguous(tensor: Any) -> Any:
    return tensor if tensor is None or tensor.is_contiguous() else tensor.contiguous()


def _recurrent_weights(dgates: Tensor, wide: int, y: Tensor, h0: Any, before: Any, batch: int, reverse: bool) -> Tensor:
    """The gradient of W_hh: every row's gradient, in the last columns of `dgates`, with the h before it."""
    rows, width = dgates.shape
    hidden, column = y.shape[-1], width - wide
    if before is not None:
        first = y.new_zeros(batch, hidden) if h0 is None else h0
        return torch.mm(dgates[:, column:].t(), torch.cat([y, first])[before])
    count = rows - batch
    after, earlier, entry = (0, batch, count) if reverse else (batch, 0, 0)
    # One view instead of three in a row: a small network waits for the host.
    later = dgates.as_strided((wide, count), (1, width), after * width + column)
    gradient = torch.mm(later, y.as_strided((count, hidden), (hidden, 1), y.storage_offset() + earlier * hidden))
    if h0 is None:
        return gradient
    return gradient.addmm_(dgates.as_strided((wide, batch), (1, width), entry * width + column), h0)


class _EagerLayers(torch.autograd.Function):
    """The layers and their gradient for calls outside a compiled graph."""

    @staticmethod
    def forward(ctx: Any, call: Call, x: Any, h0: Any, c0: Any, *flat: Any) -> Any:
        """What the layers compute, and all that their backward keeps."""
        y, h_n, c_n, kept = forward(call, x, h0, c0, flat, True)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(h0, c0, *flat[::_TENSORS], *flat[1::_TENSORS], *flat[4::_TENSORS], *call.seeds, *kept)
        ctx.call, ctx.form = call, x.shape
        return y, h_n, c_n

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """By the kernels, which have no second derivative."""
        check_backward("layer", grad_outputs)
        _, wants_x, wants_h0, wants_c0, *wants = ctx.needs_input_grad
        h0, c0, *saved = ctx.saved_tensors
        n = len(wants) // _TENSORS
        dy, dh_n, dc_n = grad_outputs
        dx, dh0, dc0, gradients = backward(
            ctx.call, dy, dh_n, dc_n, h0, c0, saved[:n], saved[n : 2 * n], saved[2 * n : 3 * n], saved[4 * n :],
            wants_x, wants_h0 or wants_c0, any(wants[::_TENSORS] + wants[1::_TENSORS]),
        )  # fmt: skip
        if dx is not None and len(ctx.form) == 3:
            dx = dx.view(*ctx.form)  # a torch.Size as it is takes twice as long
        wanted = [gradient if want else None for gradient, want in zip(gradients, wants, strict=True)]
        return None, dx, dh0 if wants_h0 else None, dc0 if wants_c0 else None, *wanted
