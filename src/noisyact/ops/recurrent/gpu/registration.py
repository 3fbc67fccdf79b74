"""The recurrent layer on a GPU as a torch operator, one layer in one direction, for compiled graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from noisyact.ops.recurrent.checks import (
    MisfitError,
    check_layer,
    check_rows,
    check_rules,
    check_sizes,
    no_second_derivative,
)
from noisyact.ops.recurrent.gpu.call import StackCall, extra_rows, stack_call
from noisyact.ops.recurrent.gpu.layers import backward, forward
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES, PLAIN_STATE, CellNoise, LayerWeights, StateRules

__all__ = ["layer"]


def layer(
    kind: str, x: Tensor, sizes: Sequence[int] | None, h: Tensor | None, c: Tensor | None, weights: LayerWeights,
    seed: Tensor | None, noise: CellNoise, reverse: bool, rules: StateRules = PLAIN_STATE,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute :func:`reference.layer` with xi from the seed. If h and c are None, they are zeros.

    Args:
        x: [rows, input], or [steps, batch, input] if sizes is None.

    Returns: h at every step, the final h, and the final c (without rows except for the LSTM).
    """
    noise = noise.kept()
    if sizes is None:
        steps, batch, offsets, before, packed = x.shape[0], x.shape[1], None, None, None
    else:
        call = stack_call(kind, sizes, [seed], noise, reverse, x.device)
        steps, batch, offsets, before, packed = call.steps, call.batch, call.offsets, call.before, call.sizes
    scales = (noise.state_scale, noise.gate_scale)
    tensors = (x.flatten(0, -2), offsets, before, h, c, *weights, seed, *scales)
    settings = (kind, *noise.as_text(), steps, batch, reverse, packed)
    y, h_n, c_n, *_ = _layer(*tensors, *settings, torch.is_grad_enabled(), *rules)
    return y.reshape(*x.shape[:-1], y.shape[-1]), h_n, c_n


@torch.library.custom_op("noisyact::gpu_recurrent_layer", mutates_args=())
def _layer(
    x: Tensor, offsets: Tensor | None, before: Tensor | None, h0: Tensor | None, c0: Tensor | None, w_ih: Tensor,
    w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None, p: Tensor | None, w_hr: Tensor | None, seed: Tensor | None,
    state_scale: Tensor, gate_scale: Tensor, kind: str, state: str, gate: str, hard: bool, steps: int, batch: int,
    reverse: bool, sizes: Sequence[int] | None, keep: bool, reset: Tensor | None = None, reset_h: Tensor | None = None,
    reset_c: Tensor | None = None, places: Tensor | None = None, mask_seed: Tensor | None = None,
    zoneout_h: float = 0.0, zoneout_c: float = 0.0, recurrent_dropout: float = 0.0, first_step: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    weights = LayerWeights(w_ih, w_hh, b_ih, b_hh, p, w_hr)
    noise = CellNoise.from_text(state, gate, hard, state_scale, gate_scale)
    rules = StateRules(reset, reset_h, reset_c, places, mask_seed, zoneout_h, zoneout_c, recurrent_dropout, first_step)
    call = _checked_call(kind, x, offsets, before, h0, c0, weights, seed, noise, steps, batch, reverse, rules, sizes)
    h0, c0 = _one_layers(h0, c0)
    y, h_n, c_n, kept = forward(call, x, h0, c0, [weights], keep, pads=False)
    last_c = x.new_empty(0, _hidden(w_hh, w_hr)) if c_n is None else c_n[0]
    return y, h_n[0], last_c, kept[2] if keep else x.new_empty(0), kept[3]


def _checked_call(
    kind: str, x: Tensor, offsets: Tensor | None, before: Tensor | None, h: Tensor | None, c: Tensor | None,
    weights: LayerWeights, seed: Tensor | None, noise: CellNoise, steps: int, batch: int, reverse: bool,
    rules: StateRules, sizes: Sequence[int] | None,
) -> StackCall:  # fmt: skip
    """The call of an operator. The tensors are checked, because torch.ops lets any code call the operator."""
    _check_packing(x, offsets, before, steps, batch, sizes)
    output = check_layer(kind, x, x.shape[1], batch, h, c, weights, seed, noise)
    hidden = _hidden(weights.w_hh, weights.w_hr)
    check_rules(kind, rules, x, steps if offsets is None else None, batch, output, hidden)
    used, packed = [rules] if rules.in_use() else None, None if sizes is None else tuple(sizes)
    return StackCall(kind, noise, [seed], steps, batch, offsets, before, reverse, used, packed)


def _hidden(w_hh: Tensor, w_hr: Tensor | None) -> int:
    """The number of units, which is not the width of the output if there is a projection."""
    return w_hh.shape[1] if w_hr is None else w_hr.shape[1]


def _check_packing(
    x: Tensor, offsets: Tensor | None, before: Tensor | None, steps: int, batch: int, sizes: Sequence[int] | None
) -> None:
    """Raise an error unless x and the results of :func:`packed_rows` have the right shapes."""
    if (offsets is None) != (sizes is None) or (before is None) != (sizes is None):
        raise ValueError("offsets, before and sizes: a packed input needs all of them, and a rectangular one none")
    check_rows(x, steps * batch if sizes is None else sum(sizes))
    if offsets is None or before is None or sizes is None:
        return
    check_sizes(sizes)
    if len(sizes) != steps or sizes[0] != batch:
        raise ValueError(f"sizes must be {steps} numbers, the first of them {batch}, not {list(sizes)[:20]}")
    for name, tensor, shape, dtype in (
        ("offsets", offsets, (steps + 1,), torch.int32), ("before", before, (x.shape[0],), torch.int64),
    ):  # fmt: skip
        if tensor.shape != shape or tensor.dtype != dtype or tensor.device != x.device:
            raise MisfitError(
                f"{name} must be {dtype} of shape {shape} on {x.device}, not {tensor.dtype} of shape "
                f"{tuple(tensor.shape)} on {tensor.device}"
            )


def _one_layers(*states: Tensor | None) -> list[Tensor | None]:
    return [None if state is None else state.unsqueeze(0) for state in states]


@_layer.register_fake
def _(x, offsets, before, h0, c0, w_ih, w_hh, b_ih, b_hh, p, w_hr, seed, state_scale, gate_scale, kind, state, gate,
      hard, steps, batch, reverse, sizes, keep, reset=None, reset_h=None, reset_c=None, places=None, mask_seed=None,
      zoneout_h=0.0, zoneout_c=0.0, *others):  # fmt: skip
    rows, output, hidden = x.shape[0], w_hh.shape[1], _hidden(w_hh, w_hr)
    return (
        x.new_empty(rows, output),
        x.new_empty(batch, output),
        x.new_empty(batch if kind == "lstm" else 0, hidden),
        x.new_empty(rows, GATES[kind] * hidden) if keep else x.new_empty(0),
        x.new_empty(extra_rows(kind, rows, zoneout_c) if keep else 0, hidden),
    )


@torch.library.custom_op("noisyact::gpu_recurrent_layer_backward", mutates_args=())
def _layer_backward(
    dy: Tensor | None, dh_n: Tensor | None, dc_n: Tensor | None, y: Tensor, a: Tensor, extra: Tensor, x: Tensor,
    offsets: Tensor | None, before: Tensor | None, h0: Tensor | None, c0: Tensor | None, w_ih: Tensor, w_hh: Tensor,
    p: Tensor | None, w_hr: Tensor | None, seed: Tensor | None, state_scale: Tensor, gate_scale: Tensor, kind: str,
    state: str, gate: str, hard: bool, steps: int, batch: int, reverse: bool, sizes: Sequence[int] | None,
    wants_x: bool, wants_h0: bool, wants_weights: bool, wants_reset: bool = False, reset: Tensor | None = None,
    reset_h: Tensor | None = None, reset_c: Tensor | None = None, places: Tensor | None = None,
    mask_seed: Tensor | None = None,
    zoneout_h: float = 0.0, zoneout_c: float = 0.0, recurrent_dropout: float = 0.0, first_step: int = 0,
) -> list[Tensor]:  # fmt: skip
    weights = LayerWeights(w_ih, w_hh, None, None, p, w_hr)
    noise = CellNoise.from_text(state, gate, hard, state_scale, gate_scale)
    rules = StateRules(reset, reset_h, reset_c, places, mask_seed, zoneout_h, zoneout_c, recurrent_dropout, first_step)
    call = _checked_call(kind, x, offsets, before, h0, c0, weights, seed, noise, steps, batch, reverse, rules, sizes)
    rows, output, hidden = x.shape[0], w_hh.shape[1], _hidden(w_hh, w_hr)
    for name, tensor, shape in (
        ("dy", dy, (rows, output)), ("dh_n", dh_n, (batch, output)), ("dc_n", dc_n, (batch, hidden)),
        ("y", y, (rows, output)), ("a", a, (rows, w_hh.shape[0])),
        ("extra", extra, (extra_rows(kind, rows, zoneout_c), hidden)),
    ):  # fmt: skip
        if tensor is not None and tensor.numel() and (tensor.shape != shape or tensor.device != x.device):
            raise MisfitError(
                f"{name} must be of shape {shape} on {x.device}, not {tuple(tensor.shape)} on {tensor.device}"
            )
    dh_n, dc_n, h0, c0 = _one_layers(dh_n, dc_n, h0, c0)
    dx, of_weights, of_states = backward(
        call, (dy, dh_n, dc_n), h0, c0, [weights], (x, y, a, extra), wants_x, wants_h0, wants_weights, wants_reset
    )
    dh0, dc0, *of_resets = (None if gradient is None else gradient[0] for gradient in of_states)
    gradients = [dx, dh0, dc0, *of_weights, *of_resets]
    gradients = [x.new_empty(0) if gradient is None else gradient for gradient in gradients]
    # The results of an operator must not share memory.
    return [t if t.numel() and t.untyped_storage().nbytes() == t.nbytes else t.clone() for t in gradients]


@_layer_backward.register_fake
def _(dy, dh_n, dc_n, y, a, extra, x, offsets, before, h0, c0, w_ih, w_hh, p, w_hr, seed, state_scale, gate_scale, kind,
      state, gate, hard, steps, batch, reverse, sizes, wants_x, wants_h0, wants_weights, wants_reset=False,
      *others):  # fmt: skip
    wide, output, hidden = w_ih.shape[0], w_hh.shape[1], _hidden(w_hh, w_hr)
    return [
        x.new_empty(x.shape if wants_x else 0),
        x.new_empty((batch, output) if wants_h0 else 0),
        x.new_empty((batch, hidden) if wants_h0 and kind == "lstm" else 0),
        x.new_empty(w_ih.shape if wants_weights else 0),
        x.new_empty(w_hh.shape if wants_weights else 0),
        x.new_empty(wide),
        x.new_empty(wide),
        x.new_empty(0 if p is None else NONLINEARITIES[kind] * hidden),
        x.new_empty(0 if w_hr is None or not wants_weights else w_hr.shape),
        x.new_empty((batch, output) if wants_reset else 0),
        x.new_empty((batch, hidden) if wants_reset and kind == "lstm" else 0),
    ]


def _keep(ctx: Any, inputs: tuple, output: tuple) -> None:
    given, (*tensors, zoneout_h, zoneout_c, recurrent_dropout, first_step) = inputs[:-9], inputs[-9:]
    x, offsets, before, h0, c0, w_ih, w_hh, b_ih, _, p, w_hr, seed, state_scale, gate_scale, *settings, keep = given
    if not keep:
        raise RuntimeError("this compiled layer was traced without gradients")
    y, _, _, a, extra = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(
        y, a, extra, x, offsets, before, h0, c0, w_ih, w_hh, p, w_hr, seed, state_scale, gate_scale, *tensors
    )  # fmt: skip
    ctx.settings, ctx.has_bias = settings, b_ih is not None
    ctx.numbers = zoneout_h, zoneout_c, recurrent_dropout, first_step


def _in_place(gradients: list[Tensor], wants: Any, has_bias: bool) -> tuple:
    """The gradients in the order of the operator's arguments."""
    dx, dh0, dc0, dw_ih, dw_hh, db_ih, db_hh, dp, dw_hr, dreset_h, dreset_c = gradients
    at = {0: dx, 3: dh0, 4: dc0, 5: dw_ih, 6: dw_hh, 9: dp, 10: dw_hr, _RESETS: dreset_h, _RESETS + 1: dreset_c}
    at |= {7: db_ih, 8: db_hh} if has_bias else {}
    return tuple(at[i] if i in at and i < len(wants) and wants[i] else None for i in range(_ARGUMENTS))


_RESETS, _ARGUMENTS = 24, 32
"""The place of reset_h among the operator's arguments, and their number."""


def _differentiate(ctx: Any, dy: Any, dh_n: Any, dc_n: Any, da: Any, dextra: Any) -> tuple:
    saved, of_rules = ctx.saved_tensors[:-5], ctx.saved_tensors[-5:]
    wants = ctx.needs_input_grad
    wants_reset = any(wants[_RESETS : _RESETS + 2])  # torch leaves out last defaults
    asked_for: Any = wants[0], wants[3] or wants[4], wants[5] or wants[6] or wants[10], wants_reset
    gradients = _layer_backward(
        dy, dh_n, dc_n, *saved, *ctx.settings, *asked_for, *of_rules, *ctx.numbers
    )  # fmt: skip
    return _in_place(gradients, wants, ctx.has_bias)


_layer.register_autograd(_differentiate, setup_context=_keep)
_layer_backward.register_autograd(no_second_derivative("layer"))
