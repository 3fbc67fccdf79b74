"""Checks of the tensors of a recurrent layer or cell, made before a kernel gets their addresses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from noisyact.ops.dispatch import batched
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES, CellNoise, LayerWeights, StateRules

__all__ = [
    "LAST_STEP", "MisfitError", "check_backward", "check_cell", "check_layer", "check_position", "check_rate",
    "check_rows", "check_rules", "check_sizes", "no_second_derivative",
]  # fmt: skip


class MisfitError(ValueError, RuntimeError):
    """A tensor whose shape, dtype or device does not fit the others.

    torch raises ValueError in some of these cases and RuntimeError in others. This class is both, so that handlers for
    either catch it.

    >>> issubclass(MisfitError, ValueError) and issubclass(MisfitError, RuntimeError)
    True
    """


def check_layer(
    kind: str, like: Tensor, width: int, batch: int, h: Tensor | None, c: Tensor | None,
    weights: LayerWeights, seed: Tensor | None, noise: CellNoise,
) -> int:  # fmt: skip
    """Raise an error that names a tensor unless all tensors of one layer in one direction fit each other.

    Args:
        like: a tensor with the device and dtype of the layer's input.
        width: the width of the layer's input.
        batch: the number of rows at the first step.
        h: [batch, H or projection].
        c: [batch, H].
        weights: the layer's weights; p must have one element for each nonlinearity of each unit.
        seed: one int64.
        noise: the schemes; each scale must have one element.

    Returns: the width of the layer's output.
    """
    w_ih, w_hh, b_ih, b_hh, p, w_hr = weights
    if w_ih is None or w_hh is None:
        raise ValueError(f"{'w_ih' if w_ih is None else 'w_hh'} is None: a layer needs both weights")
    if w_hh.dim() != 2:
        raise MisfitError(f"w_hh must be 2-D, not of shape {tuple(w_hh.shape)}")
    device, dtype, output = like.device, like.dtype, w_hh.shape[1]
    if w_hr is not None and w_hr.dim() != 2:
        raise MisfitError(f"w_hr must be 2-D, not of shape {tuple(w_hr.shape)}")
    hidden = output if w_hr is None else w_hr.shape[1]
    wide = GATES[kind] * hidden
    # Written out instead of a loop or calls, because every microsecond of host overhead counts for small layers.
    if w_ih.shape != (wide, width) or w_ih.device != device or w_ih.dtype is not dtype:
        raise _misfit("w_ih", w_ih, (wide, width), device, dtype)
    if w_hh.shape != (wide, output) or w_hh.device != device or w_hh.dtype is not dtype:
        raise _misfit("w_hh", w_hh, (wide, output), device, dtype)
    if b_ih is not None and (b_ih.shape != (wide,) or b_ih.device != device or b_ih.dtype is not dtype):
        raise _misfit("b_ih", b_ih, (wide,), device, dtype)
    if b_hh is not None and (b_hh.shape != (wide,) or b_hh.device != device or b_hh.dtype is not dtype):
        raise _misfit("b_hh", b_hh, (wide,), device, dtype)
    if w_hr is not None:
        _fit("w_hr", w_hr, (output, hidden), device, dtype)
        if kind != "lstm" or hidden == 0:
            raise MisfitError(f"w_hr of shape {tuple(w_hr.shape)}: only an LSTM with units has a projection")
    if h is not None:
        _fit("h", h, (batch, output), device, dtype)
    if c is not None:
        _fit("c", c, (batch, hidden), device, dtype)
    _check_noise(kind, hidden, p, seed, noise, device)
    return output


def check_rules(
    kind: str, rules: StateRules, like: Tensor, steps: int | None, batch: int, output: int, hidden: int
) -> None:
    """Raise an error that names a tensor or number unless the rules fit a layer in one direction.

    Args:
        like: a tensor with the device and dtype of the layer's input.
        steps: the number of steps of a rectangular batch; None for a packed one, which has no resets.
        batch: the number of rows at the first step.
        output: the width of h.
        hidden: the width of c.
    """
    device, dtype = like.device, like.dtype
    if rules.reset is not None:
        if steps is None:
            raise ValueError("a packed sequence has no resets: use padded input with reset")
        _fit("reset", rules.reset, (steps, batch), device, torch.bool)
    if rules.reset_h is not None:
        _fit("reset_to", rules.reset_h, (batch, output), device, dtype)
    if rules.reset_c is not None:
        _fit("reset_to[1]", rules.reset_c, (batch, hidden), device, dtype)
    if rules.reset_h is not None and (rules.reset_c is None) == (kind == "lstm"):
        raise ValueError("reset_h and reset_c: an LSTM needs both or none, and other layers have no c")
    if rules.rows is not None:
        _fit("rows", rules.rows, (batch,), device, torch.int64)
    seed = rules.mask_seed
    if seed is not None and (seed.numel() != 1 or seed.dtype is not torch.int64 or seed.device != device):
        raise _misfit("seed", seed, (), device, torch.int64)
    if rules.zoneout_h or rules.zoneout_c or rules.recurrent_dropout:
        for name in ("zoneout_h", "zoneout_c", "recurrent_dropout"):
            check_rate(name, getattr(rules, name))
    if rules.first_step < 0 or rules.first_step + (steps or 0) > LAST_STEP:
        raise ValueError(f"first_step={rules.first_step}: the steps must be in [0, {LAST_STEP}]")


def check_rate(name: str, rate: float) -> float:
    """Return a probability, or raise an error that names it unless it is in [0, 1)."""
    if not isinstance(rate, (int, float)) or isinstance(rate, bool):
        raise TypeError(f"{name} must be a number, not {rate!r}")
    if not 0 <= rate < 1:
        raise ValueError(f"{name}={rate}: a probability in [0, 1) is allowed")
    return float(rate)


LAST_STEP = 2**31 - 1
"""The kernels count steps in 32 bits."""
_NEEDED = {"lstm": ("c",), "gru": ("recurrent", "h")}


def check_cell(
    kind: str, a: Tensor, p: Tensor | None, seed: Tensor | None, noise: CellNoise, **others: Tensor | None
) -> None:
    """Raise an error that names a tensor unless the tensors of :func:`reference.cell` fit each other.

    Args:
        others: further tensors of the step by name: `recurrent` has a's shape, all others are [batch, H].
    """
    gates, device, dtype = GATES[kind], a.device, a.dtype
    if a.dim() != 2 or a.shape[1] % gates:
        raise MisfitError(f"the pre-activations must be [batch, {gates} H], not of shape {tuple(a.shape)}")
    batch, hidden = a.shape[0], a.shape[1] // gates
    for name, tensor in others.items():
        if tensor is not None:
            _fit(name, tensor, (batch, a.shape[1] if name == "recurrent" else hidden), device, dtype)
        elif name in _NEEDED.get(kind, ()):
            raise ValueError(f"{name} is None: a cell of kind {kind!r} needs it")
    _check_noise(kind, hidden, p, seed, noise, device)


def check_position(a: Tensor, first_step: int, rows: Tensor | None) -> None:
    """Raise an error unless the position of a cell's noise fits its pre-activations a, [batch, gates * H]."""
    if rows is not None:
        _fit("rows", rows, (a.shape[0],), a.device, torch.int64)
    if first_step < 0 or first_step >= LAST_STEP:
        raise ValueError(f"first_step={first_step}: the steps must be in [0, {LAST_STEP}]")


def check_sizes(sizes: Sequence[int]) -> None:
    """Raise a ValueError unless the sizes are those of a PackedSequence: not negative and never increasing."""
    if not sizes or min(sizes) < 0 or any(now > before for before, now in itertools.pairwise(sizes)):
        raise ValueError(
            f"batch sizes must not be empty, negative or increase from one step to the next, not {list(sizes)[:20]}"
        )


def check_rows(x: Tensor, rows: int) -> None:
    """Raise an error unless x is [rows, input]."""
    if x.dim() != 2 or x.shape[0] != rows:
        raise MisfitError(f"the input must have {rows} rows, the sum of its batch sizes, not shape {tuple(x.shape)}")


def no_second_derivative(what: str) -> Callable[..., Any]:
    """A derivative formula for a kernel's backward operator. It raises an error that names the alternative."""

    def differentiate(*arguments: Any) -> Any:
        raise RuntimeError(f"a second derivative of a recurrent {what} needs backend='reference'")

    return differentiate


def check_backward(what: str, gradients: Sequence[Tensor | None]) -> None:
    """Raise an error that names the way out where backward is asked for what the kernels have not."""
    if torch.is_grad_enabled():
        no_second_derivative(what)()
    if batched(*gradients):
        raise RuntimeError(
            f"several gradients of a recurrent {what} at once (vmap, is_grads_batched) need backend='reference'"
        )


def _check_noise(
    kind: str, hidden: int, p: Tensor | None, seed: Tensor | None, noise: CellNoise, device: torch.device
) -> None:
    count = NONLINEARITIES[kind] * hidden
    if p is not None and (p.numel() != count or p.device != device or not p.is_floating_point()):
        raise _misfit(
            "p", p, (count,), device, f"floating point, {count} elements ({NONLINEARITIES[kind]} for each unit)"
        )
    if seed is not None and not isinstance(seed, Tensor):
        raise TypeError(f"seed must be a tensor, such as torch.tensor(7), not {seed!r}")
    if seed is not None and (seed.numel() != 1 or seed.dtype is not torch.int64 or seed.device != device):
        raise _misfit("seed", seed, (), device, torch.int64)
    state, gate = noise.state_scale, noise.gate_scale
    if state.numel() != 1 or state.device != device or not state.is_floating_point():
        raise _misfit("the noise scale", state, (), device, "floating point")
    if gate is not state and (gate.numel() != 1 or gate.device != device or not gate.is_floating_point()):
        raise _misfit("the noise scale", gate, (), device, "floating point")


def _fit(name: str, tensor: Tensor, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
    if tensor.shape != shape or tensor.device != device or tensor.dtype is not dtype:
        raise _misfit(name, tensor, shape, device, dtype)


def _misfit(name: str, tensor: Tensor, shape: tuple[int, ...], device: torch.device, dtype: Any) -> MisfitError:
    return MisfitError(
        f"{name} must be of shape {shape} and {dtype} on {device}, like the input, not of shape "
        f"{tuple(tensor.shape)} and {tensor.dtype} on {tensor.device}"
    )
