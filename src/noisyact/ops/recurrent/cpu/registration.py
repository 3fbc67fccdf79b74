"""The recurrent layer on a CPU as a torch operator, for torch.compile, torch.export and tensor subclasses."""

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
from noisyact.ops.recurrent.cpu.call import LayerCall
from noisyact.ops.recurrent.cpu.layer import backward, forward, gradients_asked_for
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES, PLAIN_STATE, CellNoise, LayerWeights, StateRules

__all__ = ["layer"]


def layer(
    kind: str, x: Tensor, sizes: Sequence[int] | None, h: Tensor | None, c: Tensor | None, weights: LayerWeights,
    seed: Tensor | None, noise: CellNoise, reverse: bool, rules: StateRules = PLAIN_STATE,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Run :func:`noisyact.ops.recurrent.cpu.layer.layer` through torch's dispatcher.

    Args:
        x: [rows, input], or [steps, batch, input] if sizes is None.
    """
    if h is None:
        batch = x.shape[1] if sizes is None else sizes[0]
        h = x.new_zeros(batch, weights.w_hh.shape[1])
        c = (h if weights.w_hr is None else x.new_zeros(batch, weights.w_hr.shape[1])) if kind == "lstm" else None
    noise, rows = noise.kept(), None if sizes is None else torch.tensor(sizes, dtype=torch.int64, device="cpu")
    settings = (kind, *noise.as_text(), noise.state_scale, noise.gate_scale, reverse)
    y, h_n, c_n, *_ = _layer(x.flatten(0, -2), rows, h, c, *weights, seed, *settings, *rules)
    return y.reshape(*x.shape[:-1], y.shape[-1]), h_n, c_n


def _checked_call(
    kind: str, x: Tensor, sizes: Tensor | None, h: Tensor | None, c: Tensor | None, weights: LayerWeights,
    seed: Tensor | None, noise: CellNoise, reverse: bool, rules: StateRules,
) -> LayerCall:  # fmt: skip
    """The call of an operator. The tensors are checked, because torch.ops lets any code call the operator."""
    steps = _equal_sizes(x, h) if sizes is None else sizes.tolist()
    check_sizes(steps)
    check_rows(x, sum(steps))
    output = check_layer(kind, x, x.shape[1], steps[0], h, c, weights, seed, noise)
    hidden = output if weights.w_hr is None else weights.w_hr.shape[1]
    check_rules(kind, rules, x, len(steps) if steps[-1] == steps[0] else None, steps[0], output, hidden)
    rules = rules if rules.in_use() else PLAIN_STATE
    return LayerCall(kind, noise, seed, hidden, steps, reverse, output=output, dtype=x.dtype, rules=rules)


def _equal_sizes(x: Tensor, h: Tensor | None) -> list[int]:
    """The number of rows at each step of a rectangular batch. A graph for any number of steps contains no such list."""
    if h is None or h.dim() != 2:
        raise MisfitError(f"the initial h must be [batch, H], not {None if h is None else tuple(h.shape)}")
    return [h.shape[0]] * (x.shape[0] // h.shape[0]) if len(h) else [0]


@torch.library.custom_op("noisyact::recurrent_layer", mutates_args=())
def _layer(
    x: Tensor, sizes: Tensor | None, h0: Tensor, c0: Tensor | None, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None,
    b_hh: Tensor | None, p: Tensor | None, w_hr: Tensor | None, seed: Tensor | None, kind: str, state: str, gate: str,
    hard: bool, state_scale: Tensor, gate_scale: Tensor, reverse: bool, reset: Tensor | None = None,
    reset_h: Tensor | None = None, reset_c: Tensor | None = None, places: Tensor | None = None,
    mask_seed: Tensor | None = None, zoneout_h: float = 0.0, zoneout_c: float = 0.0, recurrent_dropout: float = 0.0,
    first_step: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    weights = LayerWeights(w_ih, w_hh, b_ih, b_hh, p, w_hr)
    noise = CellNoise.from_text(state, gate, hard, state_scale, gate_scale)
    rules = StateRules(reset, reset_h, reset_c, places, mask_seed, zoneout_h, zoneout_c, recurrent_dropout, first_step)
    call = _checked_call(kind, x, sizes, h0, c0, weights, seed, noise, reverse, rules)
    return forward(call, x, h0, c0, weights, rules[:4])


@_layer.register_fake
def _(
    x, sizes, h0, c0, w_ih, w_hh, b_ih, b_hh, p, w_hr, seed, kind, state, gate, hard, state_scale, gate_scale, reverse,
    reset=None, reset_h=None, reset_c=None, places=None, mask_seed=None, zoneout_h=0.0, zoneout_c=0.0, *others,
):  # fmt: skip
    zoned = kind == "lstm" and zoneout_c > 0
    rows, output = x.shape[0], w_hh.shape[1]
    batch, hidden = h0.shape[0], output if w_hr is None else w_hr.shape[1]
    return (
        x.new_empty(rows, output),
        x.new_empty(batch, output),
        x.new_empty(batch if kind == "lstm" else 0, hidden),
        x.new_empty(rows, GATES[kind] * hidden),
        x.new_empty(0 if GATES[kind] == 1 else 2 * rows if zoned else rows, hidden),
        x.new_empty(0 if w_hr is None else rows, hidden),
    )


@torch.library.custom_op("noisyact::recurrent_layer_backward", mutates_args=())
def _layer_backward(
    dh: Tensor | None, dh_n: Tensor | None, dc_n: Tensor | None, h: Tensor, gates: Tensor, extra: Tensor, m: Tensor,
    x: Tensor, sizes: Tensor | None, h0: Tensor, c0: Tensor | None, w_ih: Tensor, w_hh: Tensor, b_hh: Tensor | None,
    p: Tensor | None, w_hr: Tensor | None, seed: Tensor | None, kind: str, state: str, gate: str, hard: bool,
    state_scale: Tensor, gate_scale: Tensor, reverse: bool, wants_x: bool, wants_h0: bool, wants_reset: bool = False,
    reset: Tensor | None = None, reset_h: Tensor | None = None, reset_c: Tensor | None = None,
    places: Tensor | None = None, mask_seed: Tensor | None = None, zoneout_h: float = 0.0, zoneout_c: float = 0.0,
    recurrent_dropout: float = 0.0, first_step: int = 0,
) -> list[Tensor]:  # fmt: skip
    weights = LayerWeights(w_ih, w_hh, None, b_hh, p, w_hr)
    noise = CellNoise.from_text(state, gate, hard, state_scale, gate_scale)
    rules = StateRules(reset, reset_h, reset_c, places, mask_seed, zoneout_h, zoneout_c, recurrent_dropout, first_step)
    call = _checked_call(kind, x, sizes, h0, c0, weights, seed, noise, reverse, rules)
    _check_kept(call, w_hr is not None, dh, dh_n, dc_n, h, gates, extra, m)
    gradients = backward(
        call, (dh, dh_n, dc_n), (h, gates, extra, m), x, h0, c0, weights, wants_x, wants_h0, rules[:4], wants_reset
    )
    # The results of an operator must not share memory.
    return [x.new_empty(0) if g is None else g.clone() if g._is_view() else g for g in gradients]


def _check_kept(call: LayerCall, projected: bool, *tensors: Tensor | None) -> None:
    """Raise an error unless the gradients and the results of the forward pass have the right shapes."""
    rows, batch, hidden, output, gates = call.rows, call.batch, call.hidden, call.output, call.gates
    wanted = {
        "dh": (rows, output), "dh_n": (batch, output), "dc_n": (batch if call.kind == "lstm" else 0, hidden),
        "h": (rows, output), "gates": (rows, gates * hidden), "extra": (call.extra_rows, hidden),
        "m": (rows if projected else 0, hidden),
    }  # fmt: skip
    for tensor, (name, shape) in zip(tensors, wanted.items(), strict=True):
        if tensor is not None and (tensor.shape != shape or tensor.device.type != "cpu"):
            raise MisfitError(f"{name} must be of shape {shape} on a CPU, not {tuple(tensor.shape)} on {tensor.device}")


@_layer_backward.register_fake
def _(
    dh, dh_n, dc_n, h, gates, extra, m, x, sizes, h0, c0, w_ih, w_hh, b_hh, p, w_hr, seed, kind, state, gate, hard,
    state_scale, gate_scale, reverse, wants_x, wants_h0, wants_reset=False, *others,
):  # fmt: skip
    hidden, wide = extra.shape[1], w_ih.shape[0]
    return [
        x.new_empty(x.shape if wants_x else 0),
        x.new_empty(h0.shape if wants_h0 else 0),
        x.new_empty(h0.shape[0], hidden),
        x.new_empty(w_ih.shape),
        x.new_empty(w_hh.shape),
        x.new_empty(wide),
        x.new_empty(wide),
        x.new_empty(NONLINEARITIES[kind] * hidden),
        x.new_empty(0 if w_hr is None else w_hr.shape),
        x.new_empty(h0.shape if wants_reset else 0),
        x.new_empty((h0.shape[0], hidden) if wants_reset and kind == "lstm" else 0),
    ]


def _keep_layer(ctx: Any, inputs: tuple, output: tuple) -> None:
    given, (*rules, zoneout_h, zoneout_c, recurrent_dropout, first_step) = inputs[:-9], inputs[-9:]
    x, sizes, h0, c0, w_ih, w_hh, _, b_hh, p, w_hr, seed, kind, *schemes, state_scale, gate_scale, reverse = given
    h, _, _, *kept = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(h, *kept, x, sizes, h0, c0, w_ih, w_hh, b_hh, p, w_hr, seed, state_scale, gate_scale, *rules)
    ctx.settings = (kind, schemes, reverse, (zoneout_h, zoneout_c, recurrent_dropout, first_step))


def _differentiate_layer(ctx: Any, dh: Any, dh_n: Any, dc_n: Any, *of_kept: Any) -> tuple:
    *saved, state_scale, gate_scale, reset, reset_h, reset_c, places, mask_seed = ctx.saved_tensors
    c0, w_ih, w_hh, b_hh, p, w_hr, _ = saved[7:]
    kind, schemes, reverse, numbers = ctx.settings
    wants_x, _, wants_h0, *_ = ctx.needs_input_grad
    wants_reset = any(ctx.needs_input_grad[19:21])  # of reset_h and reset_c; torch leaves out last defaults
    gradients = _layer_backward(
        dh, dh_n, dc_n, *saved, kind, *schemes, state_scale, gate_scale, reverse, wants_x, wants_h0, wants_reset,
        reset, reset_h, reset_c, places, mask_seed, *numbers,
    )  # fmt: skip
    weights = LayerWeights(w_ih, w_hh, None, b_hh, p, w_hr)
    dx, *others = gradients_asked_for(gradients, wants_x, wants_h0, c0, weights)
    dreset_h, dreset_c = gradients[9:] if wants_reset else (None, None)
    of_state = (None, dreset_h, dreset_c if kind == "lstm" else None, *([None] * 6))
    return dx, None, *others, *([None] * 8), *of_state


_layer.register_autograd(_differentiate_layer, setup_context=_keep_layer)
_layer_backward.register_autograd(no_second_derivative("layer"))
