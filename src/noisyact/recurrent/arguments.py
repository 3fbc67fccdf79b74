"""The input and the first state of a call of a recurrent layer: checked, and in the layout of the kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import has_torch_function

from noisyact.ops.dispatch import exporting, tracing
from noisyact.ops.recurrent.checks import check_sizes

__all__ = ["described", "first_state", "input_rows", "of_these_sizes"]


def input_rows(layer: Any, input: Tensor | PackedSequence, hx: Any) -> tuple[Tensor, list[int] | None, bool, Any]:
    """The input, [steps, batch, input] or packed [rows, input], and if packed the number of rows at each step."""
    if isinstance(input, PackedSequence):
        if tracing():
            raise RuntimeError("torch.jit.trace cannot follow a PackedSequence: trace the layer with padded input")
        if exporting():
            raise RuntimeError(
                f"{type(layer).__name__}: a PackedSequence cannot be exported, because the number of rows at each "
                "step would be a constant of the graph: export the layer with padded input, and take each "
                "sequence's last output at its length"
            )
        layer.check_input(input.data, input.batch_sizes)
        sizes = input.batch_sizes.tolist()
        check_sizes(sizes)
        if sizes[-1] < 1 or sum(sizes) != input.data.shape[0]:
            raise ValueError(
                f"{type(layer).__name__}: the batch sizes of a PackedSequence must be at least 1 and sum to its "
                f"{input.data.shape[0]} rows; they sum to {sum(sizes)} and end with {sizes[-1]}"
            )
        return input.data, sizes, False, hx
    if not isinstance(input, Tensor) and not has_torch_function((input,)):
        raise TypeError(f"input must be a tensor or a PackedSequence, not {type(input).__name__}")
    if not input.is_floating_point():
        raise TypeError(f"input must be real floating point, not {input.dtype}")
    if input.dim() not in (2, 3):
        raise ValueError(f"{type(layer).__name__}: input must be 2-D or 3-D, not of shape {tuple(input.shape)}")
    unbatched = input.dim() == 2
    x = input.unsqueeze(1) if unbatched else input.transpose(0, 1) if layer.batch_first else input
    if x.shape[2] != layer.input_size:
        raise RuntimeError(f"input.size(-1) must be equal to input_size. Expected {layer.input_size}, got {x.shape[2]}")
    if x.shape[0] == 0:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    if unbatched and hx is not None:
        states = hx if isinstance(hx, (tuple, list)) else (hx,)
        wrong = [s.dim() for s in states if isinstance(s, Tensor) and s.dim() != 2]
        if wrong:
            raise RuntimeError(f"For unbatched 2-D input, hx should be 2-D but got {wrong[0]}-D")
        states = tuple(s.unsqueeze(1) if isinstance(s, Tensor) else s for s in states)
        hx = states if isinstance(hx, (tuple, list)) else states[0]
    return x, None, unbatched, hx


def first_state(layer: Any, batch: int, hx: Any, packed: PackedSequence | None) -> tuple[Tensor | None, Tensor | None]:
    """The first state, each [layers and directions, batch, units]; None for zeros."""
    if hx is None:
        return None, None
    count = len(layer._all_weights)
    shapes = [(count, batch, layer.proj_size or layer.hidden_size)]
    if layer.kind == "lstm":
        shapes.append((count, batch, layer.hidden_size))
    states: list[Any] = list(hx) if isinstance(hx, (tuple, list)) and layer.kind == "lstm" else [hx]
    if len(states) != len(shapes) or not all(isinstance(state, Tensor) for state in states):
        wanted = "a tensor" if len(shapes) == 1 else "the tensors (h, c)"
        raise TypeError(f"{type(layer).__name__}: hx must be {wanted}, not {described(hx)}")
    for place, (state, shape) in enumerate(zip(states, shapes, strict=True)):
        if tuple(state.shape) != shape:
            name = f"hx[{place}]"
            raise RuntimeError(f"{name}: Expected {name.replace('hx', 'hidden')} size {shape}, got {list(state.shape)}")
    order = None if packed is None else packed.sorted_indices
    states = [state if order is None else state.index_select(1, order) for state in states]
    return states[0], states[1] if layer.kind == "lstm" else None


def of_these_sizes(x: Tensor) -> Tensor:
    """Return x, [steps, batch, input], through operations that make a trace raise for other sizes than its example's.

    The trace contains the time loop for its example's sizes. For other sizes its result would be wrong.
    """
    return torch.stack(torch.stack(x.unbind(0)).unbind(1), 1)


def described(hx: Any) -> str:
    """The types of what was given as a state, for an error."""
    parts = [type(part).__name__ for part in hx] if isinstance(hx, (tuple, list)) else []
    return (
        f"{type(hx).__name__} of {', '.join(parts) or 'nothing'}"
        if isinstance(hx, (tuple, list))
        else type(hx).__name__
    )
