"""The recurrent layer on a GPU as a torch operator, one layer in one direction, for compiled graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from noisyact.ops.recurrent.checks import MisfitError, check_layer, check_rows, no_second_derivative
from noisyact.ops.recurrent.gpu.call import StackCall, stack_call
from noisyact.ops.recurrent.gpu.layers import backward, forward
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES, CellNoise, LayerWeights

__all__ = ["layer"]


def layer(
    kind: str, x: Tensor, sizes: Sequence[int] | None, h: Tensor | None, c: Tensor | None, weights: LayerWeights,
    seed: Tensor | None, noise: CellNoise, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute :func:`reference.layer` with xi from the seed. If h and c are None, they are zeros.

    Args:
        x: [rows, input], or [steps, batch, input] if sizes is None.

    Returns: h at every step, the final h, and the final c (without rows except for the LSTM).
    """
    noise = noise.kept()
    if sizes is None:
        steps, batch, offsets, before = x.shape[0], x.shape[1], None, None
    else:
        _, _, _, steps, batch, offsets, before, *_ = stack_call(kind, sizes, [seed], noise, reverse, x.device)
    scales = (noise.state_scale, noise.gate_scale)
    tensors = (x.flatten(0, -2), offsets, before, h, c, *weights[:5], seed, *scales)
    settings = (kind, *noise.as_text(), steps, batch, reverse)
    y, h_n, c_n, *_ = _layer(*tensors, *settings, torch.is_grad_enabled())
    return y.reshape(*x.shape[:-1], y.shape[-1]), h_n, c_n


@torch.library.custom_op("noisyact::gpu_recurrent_layer", mutates_args=())
def _layer(
    x: Tensor, offsets: Tensor | None, before: Tensor | None, h0: Tensor | None, c0: Tensor | None, w_ih: Tensor,
    w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None, p: Tensor | None, seed: Tensor | None, state_scale: Tensor,
    gate_scale: Tensor, kind: str, state: str, gate: str, hard: bool, steps: int, batch: int, reverse: bool, keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    noise = CellNoise.from_text(state, gate, hard, state_scale, gate_scale)
    weights = LayerWeights(w_ih, w_hh, b_ih, b_hh, p)
    _check_rows(x, offsets, before, steps, batch)
    check_layer(kind, x, x.shape[1], batch, h0, c0, weights, seed, noise)
    call = StackCall(kind, noise, [seed], steps, batch, offsets, before, reverse)
    h0, c0 = _one_layers(h0, c0)
    y, h_n, c_n, kept = forward(call, x, h0, c0, [weights], keep)
    last_c = x.new_empty(0, h_n.shape[2]) if c_n is None else c_n[0]
    return y, h_n[0], last_c, kept[2] if keep else x.new_empty(0), kept[3]


def _check_rows(x: Tensor, offsets: Tensor | None, before: Tensor | None, steps: int, batch: int) -> int:
    """The number of rows; raises an error unless x and the results of :func:`packed_rows` have the right shapes."""
    check_rows(x, steps * batch if offsets is None else x.shape[0])
    if offsets is None or before is None:
        return x.shape[0]
    for name, tensor, shape, dtype in (
        ("offsets", offsets, (steps + 1,), torch.int32), ("before", before, (x.shape[0],), torch.int64),
    ):  # fmt: skip
        if tensor.shape != shape or tensor.dtype != dtype or tensor.device != x.device:
            raise MisfitError(
                f"{name} must be {dtype} of shape {shape} on {x.device}, not {tensor.dtype} of shape "
                f"{tuple(tensor.shape)} on {tensor.device}"
            )
    return x.shape[0]


def _one_layers(*states: Tensor | None) -> list[Tensor | None]:
    return [None if state is None else state.unsqueeze(0) for state in states]


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
    noise = CellNoise.from_text(state, gate, hard, state_scale, gate_scale)
    weights = LayerWeights(w_ih, w_hh, None, None, p)
    rows, hidden = _check_rows(x, offsets, before, steps, batch), w_hh.shape[1]
    check_layer(kind, x, x.shape[1], batch, h0, c0, weights, seed, noise)
    for name, tensor, shape in (
        ("dy", dy, (rows, hidden)), ("dh_n", dh_n, (batch, hidden)), ("dc_n", dc_n, (batch, hidden)),
        ("y", y, (rows, hidden)), ("a", a, (rows, w_hh.shape[0])), ("extra", extra, (extra.shape[0], hidden)),
    ):  # fmt: skip
        if tensor is not None and tensor.numel() and (tensor.shape != shape or tensor.device != x.device):
            raise MisfitError(
                f"{name} must be of shape {shape} on {x.device}, not {tuple(tensor.shape)} on {tensor.device}"
            )
    call = StackCall(kind, noise, [seed], steps, batch, offsets, before, reverse)
    dh_n, dc_n, h0, c0 = _one_layers(dh_n, dc_n, h0, c0)
    dx, dh0, dc0, rest = backward(
        call, (dy, dh_n, dc_n), h0, c0, [weights], (x, y, a, extra), wants_x, wants_h0, wants_weights
    )
    gradients = [dx, None if dh0 is None else dh0[0], None if dc0 is None else dc0[0], *rest]
    gradients = [x.new_empty(0) if gradient is None else gradient for gradient in gradients]
    # The results of an operator must not share memory.
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


def _in_place(gradients: list[Tensor], wants: Any, has_bias: bool) -> tuple:
    """The gradients in the order of the operator's tensors."""
    dx, dh0, dc0, dw_ih, dw_hh, db_ih, db_hh, dp = gradients
    at = {0: dx, 3: dh0, 4: dc0, 5: dw_ih, 6: dw_hh, 9: dp}
    at |= {7: db_ih, 8: db_hh} if has_bias else {}
    return tuple(at[i] if i in at and wants[i] else None for i in range(11))


def _differentiate(ctx: Any, dy: Any, dh_n: Any, dc_n: Any, da: Any, dextra: Any) -> tuple:
    wants = ctx.needs_input_grad
    gradients = _layer_backward(
        dy, dh_n, dc_n, *ctx.saved_tensors, *ctx.settings, wants[0], wants[3] or wants[4], wants[5] or wants[6]
    )
    return (*_in_place(gradients, wants, ctx.has_bias), *([None] * 10))


_layer.register_autograd(_differentiate, setup_context=_keep)
_layer_backward.register_autograd(no_second_derivative("layer"))
