"""Recurrent layers on a GPU with noise from seeds.

One launch runs one layer in one direction, including the time loop. Stacked layers are one call with fewer torch calls
and allocations, because host overhead dominates small networks. The products over all steps, W_ih x and the gradients
of the weights and of the input, are part of the launch in a small network and use torch in a large one.
registration.py registers the layer for torch.compile.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from noisyact.ops.recurrent.checks import check_backward
from noisyact.ops.recurrent.gpu.call import StackCall, stack_call
from noisyact.ops.recurrent.gpu.plan import backward_plan, backward_sizes, forward_plan, forward_sizes, processors
from noisyact.ops.recurrent.gpu.steps.cublas import ProductsAsCudnn, recurrent_weights
from noisyact.ops.recurrent.types import CellNoise, LayerWeights, StateRules
from noisyact.ops.triton import on

__all__ = ["backward", "forward", "layers"]

_TENSORS = len(LayerWeights._fields)
"""The number of weights of a layer that get gradients."""
_PRODUCTS = tuple(map(LayerWeights._fields.index, ("w_ih", "w_hh", "w_hr")))
"""The places of the weights whose gradients are products over all steps."""


def layers(
    kind: str, sizes: Sequence[int], x: Tensor, h: Tensor | None, c: Tensor | None, weights: Sequence[LayerWeights],
    seeds: Sequence[Tensor | None], noise: CellNoise, reverse: bool, rules: Sequence[StateRules] | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Run stacked layers in one direction, each like :func:`reference.layer` with xi from its seed.

    Args:
        x: [steps, batch, input], or packed [rows, input]; the output has the same leading dimensions.
        h: [layers, batch, H]; None for zeros. The same holds for c.
        rules: one for each layer, all with the same features; None for layers without any.

    Returns: h of the last layer at every step, and the final h and c of all layers; c is None except for the LSTM.
    """
    call = stack_call(kind, sizes, seeds, noise, reverse, x.device, rules)
    if torch.is_grad_enabled():
        flat = [tensor for layer in weights for tensor in layer]
        if rules is not None and rules[0].reset_h is not None:
            flat += [state for own in rules for state in (own.reset_h, own.reset_c)]
        return _EagerLayers.apply(call, x, h, c, *flat)  # pyright: ignore[reportReturnType]
    return forward(call, x, h, c, weights, False)[:3]


@functools.cache
def _launches() -> Any:
    """The module that imports Triton, imported on first use."""
    from noisyact.ops.triton import ahead

    ahead.prepare()
    from noisyact.ops.recurrent.gpu import launches

    return launches


@functools.cache
def _steps() -> Any:
    """The module for layers step by step, which imports Triton too."""
    from noisyact.ops.recurrent.gpu.steps import stack

    return stack


def forward(
    call: StackCall, x: Tensor, h0: Tensor | None, c0: Tensor | None, weights: Sequence[LayerWeights], keep: bool,
    kept_noise: CellNoise | None = None, pads: bool = True,
) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:  # fmt: skip
    """The results of :func:`layers`, and a list for backward: the input, then three tensors of each layer.

    Args:
        keep: whether backward will follow.
        kept_noise: receives the scales that the kernels used.
        pads: whether the tensors for backward may have further units, see steps/padding.py.
    """
    kind, batch, hidden, count = call.kind, call.batch, weights[0].w_hh.shape[1], len(weights)
    size, device = x.element_size(), x.device
    layer = kind, batch, hidden, size, processors(device)
    plan = forward_plan(*layer)
    # If backward runs step by step, forward does too: it is as fast then, and cuBLAS gets the rows it is fast with.
    if not (plan.persistent and backward_plan(*layer).persistent) or weights[0].w_hr is not None:
        own = [_all_contiguous(layer) for layer in weights]
        return _steps().forward(call, x, _contiguous(h0), _contiguous(c0), own, keep, kept_noise, pads)
    launches = _launches()
    sizes = forward_sizes(plan, call.steps, batch, hidden, size)
    wants_x, (*form, width), kept = x.requires_grad, x.shape, []
    rows = math.prod(form)
    launches.check_alarm()
    with on(device):
        buffers = launches.forward_buffers(kind, x, count, batch, hidden, sizes)
        rules = launches.rules_of(call, hidden)
        run = launches.Forward(
            call, plan, sizes, _contiguous(h0), _contiguous(c0), keep, kept_noise, buffers, rules, wants_x
        )
        for index, own in enumerate(weights):
            in_launch = call.offsets is None and plan.writes_products(rows, width)
            if in_launch:
                x = _contiguous(x)
            elif len(form) > 1:
                x = x.reshape(rows, width)
            if index == 0:
                kept.append(x)
            form_of_y = form if index == count - 1 else (rows,)
            results = launches.layer_forward(run, index, x, rows, _all_contiguous(own), in_launch, form_of_y)
            x, width = results[0], hidden
            kept += results
    h_n, c_n, _ = buffers
    return x, h_n, c_n, kept


def backward(
    call: StackCall, gradients: Sequence[Tensor | None], h0: Tensor | None, c0: Tensor | None,
    weights: Sequence[LayerWeights], kept: Sequence[Tensor], wants_x: bool, wants_h0: bool, wants_weights: bool,
    wants_reset: bool = False,
) -> tuple[Tensor | None, list[Tensor | None], list[Tensor | None]]:  # fmt: skip
    """The gradients of the input, or of its rows; of w_ih, w_hh, b_ih, b_hh and p of each layer; and of the states.

    The states are h0, c0, reset_h and reset_c, each [layers, batch, H]. A gradient that is not wanted is None.

    Args:
        gradients: the gradients of h of the last layer at every step, and of the final h and c of all layers.
        kept: the last result of :func:`forward`.
    """
    (dy, dh_n, dc_n), x, count = gradients, kept[0], len(weights)
    kind, batch, (wide, hidden) = call.kind, call.batch, weights[0].w_hh.shape
    size, device = x.element_size(), x.device
    layer = kind, batch, hidden, size, processors(device)
    plan = backward_plan(*layer)
    sizes = backward_sizes(plan, kind, call.steps, batch, hidden, size)
    h0, c0, dh_n = _contiguous(h0), _contiguous(c0), _contiguous(dh_n)
    dc_n = _contiguous(dc_n) if kind == "lstm" else None
    if not (plan.persistent and forward_plan(*layer).persistent) or weights[0].w_hr is not None:
        own, given = [_all_contiguous(layer) for layer in weights], (_contiguous(dy), dh_n, dc_n)
        kept = (x.reshape(-1, x.shape[-1]), *kept[1:])
        return _steps().backward(call, given, h0, c0, own, kept, wants_x, wants_h0, wants_weights, wants_reset)
    found: list[Tensor | None] = []
    launches = _launches()
    launches.check_alarm()
    with on(device):
        has_p, rows = weights[0].p is not None, kept[2].shape[0]
        buffers = launches.backward_buffers(kind, x, rows, count, batch, hidden, has_p, wants_h0, wants_reset, sizes)
        all_rules = launches.rules_of(call, hidden)
        run = launches.Backward(call, plan, sizes, h0, c0, dh_n, dc_n, wants_h0, buffers, all_rules)
        for index in reversed(range(count)):
            own = _all_contiguous(weights[index])
            y, a, extra = kept[3 * index + 1 : 3 * index + 4]
            below = kept[3 * index - 2] if index else x
            rules = None if all_rules is None else all_rules[index]
            in_launch = wants_weights and call.offsets is None and plan.writes_products(rows, below.shape[-1])
            seen = None
            if wants_weights and rules is not None and rules.change_product():
                seen = x.new_empty(rows, hidden)
            wants_below = wants_x or index > 0
            (dp, db_ih, db_hh), dw_ih, dw_hh, dx = launches.layer_backward(
                run, index, _contiguous(dy), (y, a, extra), own, _contiguous(below) if in_launch else None, seen,
                wants_below,
            )  # fmt: skip
            if not in_launch:
                d_ih = buffers.dgates[:, :wide]
                with ProductsAsCudnn():
                    if wants_weights:
                        dw_ih = torch.mm(d_ih.t(), below.reshape(rows, -1))
                        if seen is not None:
                            dw_hh = torch.mm(buffers.dgates[:, -wide:].t(), seen)
                        else:
                            h = None if h0 is None else h0[index]
                            dw_hh = recurrent_weights(buffers.dgates, wide, y, h, call.before, batch, call.reverse)
                    dx = torch.mm(d_ih, own.w_ih) if wants_below else None
            dy = dx
            found[:0] = (dw_ih, dw_hh, db_ih, db_hh, dp, None)
    of_states = [*((buffers.dh0, buffers.dc0) if wants_h0 else (None, None)), buffers.dreset_h, buffers.dreset_c]
    return dy, found, of_states


def _contiguous(tensor: Any) -> Any:
    return tensor if tensor is None or tensor.is_contiguous() else tensor.contiguous()


def _all_contiguous(weights: LayerWeights) -> LayerWeights:
    for tensor in weights:
        if tensor is not None and not tensor.is_contiguous():
            return LayerWeights(*map(_contiguous, weights))
    return weights


class _EagerLayers(torch.autograd.Function):
    """The layers and their gradient for eager calls, which skip torch's dispatcher."""

    @staticmethod
    def forward(ctx: Any, call: StackCall, x: Any, h0: Any, c0: Any, *flat: Any) -> Any:
        """Run the layers and save the tensors for backward, including the scales that the kernels used."""
        ctx.call = call._replace(noise=call.noise.unwritten())
        y, h_n, c_n, kept = forward(call, x, h0, c0, _weights(flat, call), True, ctx.call.noise)
        ctx.set_materialize_grads(False)
        # Saved, a mask that is changed before backward raises an error. Backward reads it from the call.
        masks = () if call.rules is None else [tensor for own in call.rules for tensor in (own.reset, own.rows)]
        ctx.save_for_backward(*masks, h0, c0, *flat, *call.seeds, *kept)
        ctx.form = x.shape
        return y, h_n, c_n

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Compute the gradients. The kernels do not support second derivatives."""
        check_backward("layer", grad_outputs)
        _, wants_x, wants_h0, wants_c0, *wants = ctx.needs_input_grad
        count, n = len(ctx.call.seeds), len(wants)
        h0, c0, *saved = ctx.saved_tensors[0 if ctx.call.rules is None else 2 * count :]
        weights, wants_reset = _weights(saved, ctx.call), any(wants[_TENSORS * count :])
        dx, gradients, (dh0, dc0, *of_resets) = backward(
            ctx.call, grad_outputs, h0, c0, weights, saved[n + count :], wants_x, wants_h0 or wants_c0,
            any(any(wants[place : _TENSORS * count : _TENSORS]) for place in _PRODUCTS), wants_reset,
        )  # fmt: skip
        if dx is not None and dx.dim() != len(ctx.form):
            dx = dx.view(*ctx.form)  # unpacked, because passing a torch.Size takes twice as long
        if n > _TENSORS * count:
            for index in range(count):
                gradients += [None if d is None else d[index] for d in of_resets]
        wanted = [gradient if want else None for gradient, want in zip(gradients, wants, strict=True)]
        return None, dx, dh0 if wants_h0 else None, dc0 if wants_c0 else None, *wanted


def _weights(flat: Sequence[Any], call: StackCall) -> list[LayerWeights]:
    """The weights of each layer, which come first among the tensors of a call."""
    ends = range(_TENSORS, _TENSORS * len(call.seeds) + 1, _TENSORS)
    return [LayerWeights(*flat[end - _TENSORS : end]) for end in ends]
