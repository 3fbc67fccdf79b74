"""The pointwise part of one step of a cell as a torch operation in one kernel: C on a CPU, Triton on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from noisyact.ops.dispatch import plain, traced
from noisyact.ops.recurrent.checks import check_backward, check_cell, check_position, no_second_derivative
from noisyact.ops.recurrent.cpu import cell as cpu
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES, CellNoise
from noisyact.ops.triton import on

__all__ = ["cell"]


def cell(
    kind: str, a: Tensor, recurrent: Tensor | None, h: Tensor, c: Tensor | None, p: Tensor | None, seed: Tensor | None,
    noise: CellNoise, defer_p: Callable[[Tensor], None] | None = None, first_step: int = 0, rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute :func:`reference.cell` in one kernel, with xi from the seed.

    Args:
        defer_p: a function that backward calls with the gradient of p in parts, [parts, p], instead of returning it.
        first_step, rows: the position of the noise, as in :class:`StateRules`.

    Returns: the new h, and the LSTM's new c (W_hn h + b_hn for the GRU, zeros for an RNN).
    """
    check_cell(kind, a, p, seed, noise, recurrent=recurrent, h=h, c=c)
    check_position(a, first_step, rows)
    tensors = (a, recurrent, h if kind == "gru" else None, c, p, seed)
    if not traced():
        if defer_p is None and has_torch_function((a,)):
            position = {} if first_step == 0 and rows is None else {"first_step": first_step, "rows": rows}
            return handle_torch_function(cell, (a,), kind, a, recurrent, h, c, p, seed, noise, **position)
        if plain(*tensors, rows, noise.state_scale, noise.gate_scale):
            # Skip torch's dispatcher: its host overhead exceeds the time of a kernel.
            if torch.is_grad_enabled():
                return _EagerCell.apply(*tensors, rows, kind, noise, defer_p, first_step)  # pyright: ignore[reportReturnType]
            return _forward(*tensors, kind, noise, first_step=first_step, rows=rows)[:2]
    noise = noise.kept() if torch.is_grad_enabled() else noise
    return _cell(*tensors, noise.state_scale, noise.gate_scale, kind, *noise.as_text(), first_step, rows)[:2]


def _forward(
    a: Tensor, recurrent: Tensor | None, h: Tensor | None, c: Tensor | None, p: Tensor | None, seed: Tensor | None,
    kind: str, noise: CellNoise, kept_noise: CellNoise | None = None, first_step: int = 0, rows: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The new h; the LSTM's new c or the GRU's W_hn h + b_hn; the pre-activations, which may be `a` itself.

    On a GPU the kernel writes the scales that it used to `kept_noise`.
    """
    if a.device.type == "cuda":
        from noisyact.ops.recurrent.gpu.steps import cell as gpu

        tensors = (a, recurrent, h, c, p, rows)
        a, recurrent, h, c, p, rows = (None if t is None else t.detach().contiguous() for t in tensors)  # pyright: ignore[reportAssignmentType]
        with on(a.device):
            return gpu.cell_forward(kind, a, recurrent, h, c, p, seed, noise, kept_noise, first_step, rows)
    return cpu.cell_forward(kind, a, recurrent, h, c, p, seed, noise, first_step, rows)


def _backward(
    dh: Tensor, dc: Tensor | None, extra: Tensor, gates: Tensor, h: Tensor | None, c: Tensor | None, p: Tensor | None,
    seed: Tensor | None, kind: str, noise: CellNoise, first_step: int = 0, rows: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:  # fmt: skip
    """The gradients of a, of the GRU's recurrent product, of p in parts, and the direct gradient of c or h."""
    if gates.device.type == "cuda":
        from noisyact.ops.recurrent.gpu.steps import cell as gpu

        dh, dc, h, c, p, rows = (None if t is None else t.contiguous() for t in (dh, dc, h, c, p, rows))  # pyright: ignore[reportAssignmentType]
        with on(gates.device):
            return gpu.cell_backward(kind, dh, dc, gates, extra, h, c, p, seed, noise, first_step, rows)
    return cpu.cell_backward(kind, dh, dc, gates, extra, h, c, p, seed, noise, first_step, rows)


class _EagerCell(torch.autograd.Function):
    """The operation and its gradient for eager calls, which skip torch's dispatcher."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        """Compute the step and save the tensors for backward."""
        a, recurrent, h, c, p, seed, rows, ctx.kind, noise, ctx.defer_p, ctx.first_step = inputs
        ctx.noise = noise.unwritten() if a.is_cuda else noise.kept()
        new_h, extra, gates = _forward(
            a, recurrent, h, c, p, seed, ctx.kind, noise, kept_noise=ctx.noise, first_step=ctx.first_step, rows=rows
        )
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(extra, gates, h, c, p, seed, rows)
        return new_h, extra

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Compute the gradients. The kernels do not support second derivatives."""
        check_backward("cell", grad_outputs)
        dh, dextra = grad_outputs
        extra, gates, h, c, p, seed, rows = ctx.saved_tensors
        dh = torch.zeros_like(extra) if dh is None else dh
        dc = dextra if ctx.kind == "lstm" else None
        da, dq, dp, carry = _backward(
            dh, dc, extra, gates, h, c, p, seed, ctx.kind, ctx.noise, first_step=ctx.first_step, rows=rows
        )
        if ctx.defer_p is not None:
            ctx.defer_p(dp)
        total = dp.sum(0) if p is not None and ctx.defer_p is None else None
        return (*_in_place(ctx.kind, p, da, dq, total, carry), *([None] * 6))


def _in_place(kind: str, p: Tensor | None, da: Tensor, dq: Tensor | None, dp: Tensor | None, carry: Tensor) -> tuple:
    """The gradients of a, recurrent, h, c and p, in this order."""
    dp_ = None if p is None or dp is None else dp.reshape(p.shape).to(p.dtype)
    return da, dq, carry if kind == "gru" else None, carry if kind == "lstm" else None, dp_


@torch.library.custom_op("noisyact::recurrent_cell", mutates_args=())
def _cell(
    a: Tensor, recurrent: Tensor | None, h: Tensor | None, c: Tensor | None, p: Tensor | None, seed: Tensor | None,
    state_scale: Tensor, gate_scale: Tensor, kind: str, state: str, gate: str, hard: bool, first_step: int = 0,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    noise = CellNoise.from_text(state, gate, hard, state_scale, gate_scale)
    check_cell(kind, a, p, seed, noise, recurrent=recurrent, h=h, c=c)
    check_position(a, first_step, rows)
    new_h, extra, gates = _forward(a, recurrent, h, c, p, seed, kind, noise, first_step=first_step, rows=rows)
    return new_h, extra, gates.clone() if gates.data_ptr() == a.data_ptr() else gates


@_cell.register_fake
def _(a, recurrent, h, c, p, seed, state_scale, gate_scale, kind, *settings):
    batch, hidden = a.shape[0], a.shape[1] // GATES[kind]
    return a.new_empty(batch, hidden), a.new_empty(batch, hidden), a.new_empty(batch, a.shape[1])


@torch.library.custom_op("noisyact::recurrent_cell_backward", mutates_args=())
def _cell_backward(
    dh: Tensor, dc: Tensor | None, extra: Tensor, gates: Tensor, h: Tensor | None, c: Tensor | None, p: Tensor | None,
    seed: Tensor | None, state_scale: Tensor, gate_scale: Tensor, kind: str, state: str, gate: str, hard: bool,
    first_step: int = 0, rows: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    noise = CellNoise.from_text(state, gate, hard, state_scale, gate_scale)
    check_cell(kind, gates, p, seed, noise, h=h, c=c, dh=dh, dc=dc, extra=extra)
    check_position(gates, first_step, rows)
    da, dq, dp, carry = _backward(dh, dc, extra, gates, h, c, p, seed, kind, noise, first_step, rows)
    return da, gates.new_empty(0) if dq is None else dq.contiguous(), dp.sum(0), carry


@_cell_backward.register_fake
def _(dh, dc, extra, gates, h, c, p, seed, state_scale, gate_scale, kind, *settings):
    return (
        gates.new_empty(gates.shape),
        gates.new_empty(gates.shape if kind == "gru" else 0),
        gates.new_empty(NONLINEARITIES[kind] * extra.shape[1]),
        torch.empty_like(extra),
    )


def _keep(ctx: Any, inputs: tuple, output: tuple) -> None:
    _, _, h, c, p, seed, state_scale, gate_scale, *ctx.settings, rows = inputs
    _, extra, gates = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(extra, gates, h, c, p, seed, state_scale, gate_scale, rows)


def _differentiate(ctx: Any, dh: Any, dextra: Any, dgates_unused: Any) -> tuple:
    extra, gates, h, c, p, seed, state_scale, gate_scale, rows = ctx.saved_tensors
    kind = ctx.settings[0]
    dh = torch.zeros_like(extra) if dh is None else dh
    da, dq, dp, carry = _cell_backward(
        dh, dextra if kind == "lstm" else None, extra, gates, h, c, p, seed, state_scale, gate_scale, *ctx.settings,
        rows,
    )  # fmt: skip
    return (*_in_place(kind, p, da, dq if kind == "gru" else None, dp, carry), *([None] * 9))


_cell.register_autograd(_differentiate, setup_context=_keep)
_cell_backward.register_autograd(no_second_derivative("cell"))
