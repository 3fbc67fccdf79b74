"""The pointwise part of one step of a cell on a CPU, by the C kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from noisyact.ops.native.unit import contiguous
from noisyact.ops.recurrent.cpu.layer import LayerCall, run
from noisyact.ops.recurrent.types import GATES, CellNoise

__all__ = ["cell_backward", "cell_forward"]


def _call(a: Tensor, seed: Tensor | None, kind: str, noise: CellNoise) -> LayerCall:
    return LayerCall(kind, noise, seed, a.shape[1] // GATES[kind], [a.shape[0]])


def cell_forward(
    kind: str, a: Tensor, q: Tensor | None, h: Tensor | None, c: Tensor | None, p: Tensor | None, seed: Tensor | None,
    noise: CellNoise,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """One step: the new h; the LSTM's new c or the GRU's W_hn h + b_hn; and the pre-activations for backward."""
    call = _call(a, seed, kind, noise)
    gates = a.detach().clone(memory_format=torch.contiguous_format)
    q, h, c, p = (None if t is None else contiguous(t) for t in (q, h, c, p))
    new_h = torch.empty(call.batch, call.hidden)
    extra = torch.zeros(call.batch, call.hidden)  # an RNN does not write it, and torch may compare results
    run(
        "noisyact_cell_forward", call, (None, None, None, None, p, None), gates, q, new_h if h is None else h,
        new_h if c is None else c, extra, new_h,
    )  # fmt: skip
    return new_h, extra, gates


def cell_backward(
    kind: str, dh: Tensor, dc: Tensor | None, gates: Tensor, extra: Tensor, h: Tensor | None, c: Tensor | None,
    p: Tensor | None, seed: Tensor | None, noise: CellNoise,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:  # fmt: skip
    """The gradients of a, of the GRU's recurrent product, of p for each row, and the direct gradient of c or h."""
    call = _call(gates, seed, kind, noise)
    carry = torch.zeros_like(extra) if dc is None else contiguous(dc).clone()
    h, c, p, dh = (None if t is None else contiguous(t) for t in (h, c, p, dh))  # pyright: ignore[reportAssignmentType]
    dgates = torch.empty(call.batch, call.width)
    dp = torch.zeros(call.batch, call.nonlinearities * call.hidden)
    run(
        "noisyact_cell_backward", call, (None, None, None, None, p, None), gates, carry if h is None else h,
        carry if c is None else c, extra, dh, carry, dgates, dp,
    )  # fmt: skip
    if kind != "gru":
        return dgates, None, dp, carry
    hidden = call.hidden  # dgates: r, z, n through the recurrent product, n through the input
    da = torch.cat([dgates[:, : 2 * hidden], dgates[:, 3 * hidden :]], dim=1)
    return da, dgates[:, : 3 * hidden], dp, carry
