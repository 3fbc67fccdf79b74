"""The pointwise part of one step of a cell on a CPU, by the C kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from noisyact.ops.native.unit import contiguous
from noisyact.ops.recurrent.cpu.call import LayerCall, run
from noisyact.ops.recurrent.types import GATES, PLAIN_STATE, CellNoise, StateRules

__all__ = ["cell_backward", "cell_forward"]


def _call(
    a: Tensor, seed: Tensor | None, kind: str, noise: CellNoise, first_step: int, rows: Tensor | None
) -> tuple[LayerCall, Tensor | None, Any]:
    """The call, the contiguous rows, and the structure with the position of the noise."""
    rules = PLAIN_STATE if first_step == 0 and rows is None else StateRules(rows=rows, first_step=first_step)
    call = LayerCall(kind, noise, seed, a.shape[1] // GATES[kind], [a.shape[0]], dtype=a.dtype, rules=rules)
    rows = None if rows is None else rows.contiguous()
    return call, rows, None if call.rules is None else call.rules.structure(rows=rows)


def cell_forward(
    kind: str, a: Tensor, q: Tensor | None, h: Tensor | None, c: Tensor | None, p: Tensor | None, seed: Tensor | None,
    noise: CellNoise, first_step: int = 0, rows: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """One step: the new h; the LSTM's new c or the GRU's W_hn h + b_hn; and the pre-activations for backward."""
    call, rows, rules = _call(a, seed, kind, noise, first_step, rows)
    gates = a.detach().clone(memory_format=torch.contiguous_format)
    q, h, c, p = (None if t is None else contiguous(t, a.dtype) for t in (q, h, c, p))
    new_h = a.new_empty(call.batch, call.hidden)
    extra = a.new_zeros(call.batch, call.hidden)  # an RNN does not write it, and torch may compare results
    run(
        "noisyact_cell_forward", call, (None, None, None, None, p, None), rules, gates, q, new_h if h is None else h,
        new_h if c is None else c, extra, new_h,
    )  # fmt: skip
    return new_h, extra, gates


def cell_backward(
    kind: str, dh: Tensor, dc: Tensor | None, gates: Tensor, extra: Tensor, h: Tensor | None, c: Tensor | None,
    p: Tensor | None, seed: Tensor | None, noise: CellNoise, first_step: int = 0, rows: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:  # fmt: skip
    """The gradients of a, of the GRU's recurrent product, of p for each row, and the direct gradient of c or h."""
    call, rows, rules = _call(gates, seed, kind, noise, first_step, rows)
    carry = torch.zeros_like(extra) if dc is None else contiguous(dc, dc.dtype).clone()
    h, c, p, dh = (None if t is None else contiguous(t, gates.dtype) for t in (h, c, p, dh))  # pyright: ignore[reportAssignmentType]
    dgates = gates.new_empty(call.batch, call.width)
    dp = gates.new_zeros(call.batch, call.nonlinearities * call.hidden)
    run(
        "noisyact_cell_backward", call, (None, None, None, None, p, None), rules, gates, carry if h is None else h,
        carry if c is None else c, extra, dh, carry, dgates, dp,
    )  # fmt: skip
    if kind != "gru":
        return dgates, None, dp, carry
    hidden = call.hidden  # dgates: r, z, n through the recurrent product, n through the input
    da = torch.cat([dgates[:, : 2 * hidden], dgates[:, 3 * hidden :]], dim=1)
    return da, dgates[:, : 3 * hidden], dp, carry
