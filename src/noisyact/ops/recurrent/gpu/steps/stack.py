"""Stacked layers on a GPU step by step, with the functions of ../layers.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from noisyact.ops.recurrent.gpu.call import StackCall
from noisyact.ops.recurrent.gpu.steps import wavefront
from noisyact.ops.recurrent.gpu.steps.cublas import ProductsAsCudnn
from noisyact.ops.recurrent.gpu.steps.layer import layer_backward, layer_forward
from noisyact.ops.recurrent.gpu.steps.padding import Padding, padding_for
from noisyact.ops.recurrent.types import CellNoise, LayerWeights
from noisyact.ops.triton import on

__all__ = ["backward", "forward"]


def forward(
    call: StackCall, x: Tensor, h0: Tensor | None, c0: Tensor | None, weights: Sequence[LayerWeights], keep: bool,
    kept_noise: CellNoise | None, pads: bool = True,
) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:  # fmt: skip
    """Compute :func:`noisyact.ops.recurrent.gpu.layers.forward`. All tensors but x are contiguous."""
    with on(x.device), ProductsAsCudnn():
        padding = padding_for(call.kind, x, weights) if pads else None
        if padding is None:
            return _forward(call, x, h0, c0, weights, keep, kept_noise)
        wide_x, memory, wide, (h0, c0) = padding.widened_all(x, weights, h0, c0)
        *results, kept = _forward(padding.call(call), wide_x, h0, c0, wide, keep, kept_noise)
        y, h_n, c_n = padding.cut(*results)
        return y, h_n, c_n, [*kept, *memory] if padding.keeps_weights(len(kept[2])) else kept


def _forward(
    call: StackCall, x: Tensor, h0: Tensor | None, c0: Tensor | None, weights: Sequence[LayerWeights], keep: bool,
    kept_noise: CellNoise | None,
) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:  # fmt: skip
    count, batch, output, w_hr = len(weights), call.batch, weights[0].w_hh.shape[1], weights[0].w_hr
    form, x = x.shape[:-1], x.reshape(-1, x.shape[-1])
    h_n = x.new_empty(count, batch, output)
    c_n = x.new_empty(count, batch, output if w_hr is None else w_hr.shape[1]) if call.kind == "lstm" else None
    kept, advances = [x], []
    for index, own in enumerate(weights):
        results, advance = layer_forward(
            call, index, x, _of(h0, index), _of(c0, index), h_n[index], _of(c_n, index), own, keep, kept_noise,
            x.shape[:1] if index < count - 1 else form,
        )  # fmt: skip
        x = results[0]
        kept += results
        advances.append(advance)
    wavefront.run(advances, _parts(call, count, output, x.device), x.device)
    return x, h_n, c_n, kept


def backward(
    call: StackCall, gradients: Sequence[Tensor | None], h0: Tensor | None, c0: Tensor | None,
    weights: Sequence[LayerWeights], kept: Sequence[Tensor], wants_x: bool, wants_h0: bool, wants_weights: bool,
    wants_reset: bool,
) -> tuple[Tensor | None, list[Tensor | None], list[Tensor | None]]:  # fmt: skip
    """Compute :func:`noisyact.ops.recurrent.gpu.layers.backward`. All tensors are contiguous but the input's rows."""
    wants = wants_x, wants_h0, wants_weights, wants_reset
    with on(kept[0].device), ProductsAsCudnn():
        wide_inputs, wide, hidden = kept[0].shape[-1], kept[1].shape[-1], weights[0].w_hh.shape[1]
        inputs = weights[0].w_ih.shape[1]
        if (wide_inputs, wide) == (inputs, hidden):
            return _backward(call, gradients, h0, c0, weights, kept, *wants)
        # The setting of TF32 may have changed since.
        padding = Padding(call.kind, inputs, hidden, wide_inputs, wide)
        memory = kept[1 + 3 * len(weights) :] or padding.widened_weights(weights)
        wide_weights = [padding.weights(own, index, memory[index]) for index, own in enumerate(weights)]
        *of_outputs, h0, c0 = padding.widened(*gradients, h0, c0)
        found = _backward(padding.call(call), of_outputs, h0, c0, wide_weights, kept, *wants)
        return padding.cut_gradients(*found)


def _backward(
    call: StackCall, gradients: Sequence[Tensor | None], h0: Tensor | None, c0: Tensor | None,
    weights: Sequence[LayerWeights], kept: Sequence[Tensor], wants_x: bool, wants_h0: bool, wants_weights: bool,
    wants_reset: bool,
) -> tuple[Tensor | None, list[Tensor | None], list[Tensor | None]]:  # fmt: skip
    (dy, dh_n, dc_n), x = gradients, kept[0]
    width = weights[0].w_hh.shape[0] * (2 if call.kind == "gru" else 1)
    parts = _parts(call, len(weights), weights[0].w_hh.shape[1], x.device)
    shared = x.new_empty(len(x), width) if len(parts) == 1 else None  # used by one layer after the other
    advances, ends = [], []
    found: list[Tensor | None] = []
    states: list[list[Tensor | None]] = []
    for index in reversed(range(len(weights))):
        dgates = x.new_empty(len(x), width) if shared is None else shared
        dy, advance, finish = layer_backward(
            call, index, dy, _of(dh_n, index), _of(dc_n, index), _of(h0, index), _of(c0, index),
            kept[3 * index - 2] if index else x, kept[3 * index + 1 : 3 * index + 4], weights[index], dgates,
            wants_x or index > 0, wants_h0, wants_weights, wants_reset,
        )  # fmt: skip
        if shared is None:
            advances.append(advance)
            ends.append(finish)
        else:
            wavefront.run([advance], parts, x.device)
            of_weights, *of_states = finish()
            found[:0] = of_weights
            states.insert(0, of_states)
    if shared is None:
        wavefront.run(advances, parts[::-1], x.device)
        for finish in ends:
            of_weights, *of_states = finish()
            found[:0] = of_weights
            states.insert(0, of_states)
    return dy, found, [_stacked(parts) for parts in zip(*states, strict=True)]


def _parts(call: StackCall, layers: int, output: int, device: torch.device) -> list[slice]:
    """The parts of the steps that have rows.

    Layers overlap in a CUDA graph. Otherwise the host, which has more to do with each part, would be the slower one.
    """
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        layers = 1
    return wavefront.parts_of(sum(size > 0 for size in call.every_size()), layers, call.batch * output)


def _of(states: Tensor | None, index: int) -> Tensor | None:
    return None if states is None else states[index]


def _stacked(parts: Sequence[Tensor | None]) -> Tensor | None:
    tensors = [part for part in parts if part is not None]
    return torch.stack(tensors) if tensors else None
