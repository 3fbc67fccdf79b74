"""The recurrent layer on a CPU by the C kernel: float32 or float64, hard or soft functions.

One call runs one layer in one direction, including the time loop. C kernels also compute the products over all steps:
the input's part, and the gradients of the weights and of the input. registration.py is for torch.compile.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from noisyact.ops.matmul import matmul
from noisyact.ops.native import CPU
from noisyact.ops.recurrent.checks import check_backward
from noisyact.ops.recurrent.cpu.call import LayerCall, dropout_factors, plan, run
from noisyact.ops.recurrent.cpu.rules import previous_h, take_resets
from noisyact.ops.recurrent.types import PLAIN_STATE, CellNoise, LayerWeights, StateRules

__all__ = ["backward", "forward", "gradients_asked_for", "layer"]


def _ready(tensors: Sequence[Tensor | None]) -> list[Any]:
    """The tensors, contiguous for the C kernels."""
    # To ask takes half the time of the calls that would return the same tensor.
    return [t if t is None or (t.is_contiguous() and not t.is_neg()) else t.resolve_neg().contiguous() for t in tensors]


def layer(
    kind: str, x: Tensor, sizes: Sequence[int], h: Tensor | None, c: Tensor | None, weights: LayerWeights,
    seed: Tensor | None, noise: CellNoise, reverse: bool, rules: StateRules = PLAIN_STATE,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute :func:`reference.layer` with xi from the seed. All tensors but the seed are float32, or all are float64.

    Args:
        sizes: the number of rows at each step.
        h: the initial h; None for zeros. The same holds for c.

    Returns: h at every step, the final h, and the final c (without rows except for the LSTM).
    """
    output, w_hr = weights.w_hh.shape[1], weights.w_hr
    hidden = output if w_hr is None else w_hr.shape[1]
    call = LayerCall(kind, noise, seed, hidden, sizes, reverse, torch.is_grad_enabled(), output, x.dtype, rules)
    state = () if rules is PLAIN_STATE else rules[:4]
    if call.keep:
        return _EagerLayer.apply(call, x, h, c, *weights, *state)  # pyright: ignore[reportReturnType]
    return forward(call, x, h, c, weights, state)[:3]


def forward(
    call: LayerCall, x: Tensor, h0: Tensor | None, c0: Tensor | None, weights: Sequence[Tensor | None],
    state: Sequence[Tensor | None] = (),
) -> tuple[Tensor, Tensor, Tensor, Any, Tensor, Tensor]:  # fmt: skip
    """Run the layer over x, [rows, input].

    Args:
        state: reset, reset_h, reset_c and rows of the rules if there are any.

    Returns: h at every step, [rows, output]; the final h and c; and for backward, at every step, the pre-activations,
    [rows, gates * H], the LSTM's c or the GRU's W_hn h + b_hn, [rows, H], and with a projection m = o tanh(c),
    [rows, H] (else without rows). Without `keep`, only the final c is stored. With zoneout of c, the LSTM's c before
    and after it, [2 rows, H].
    """
    x, h0, c0, *weights = _ready((x, h0, c0, *weights))
    size, hidden, keep = x.shape[1], call.hidden, call.keep
    together, packed_size, _ = plan(call.kind, hidden, call.output, size, call.dtype)
    empty = functools.partial(torch.empty, dtype=call.dtype, device=CPU)
    h = empty(call.rows, call.output)
    m = empty(0 if weights[5] is None else call.rows if keep else call.batch, hidden)
    if keep:
        extra = empty(call.extra_rows, hidden)
    else:
        extra = torch.zeros(call.batch, hidden, dtype=call.dtype, device=CPU) if c0 is None else c0.clone()
        extra = torch.cat([extra, extra]) if call.zoned_c else extra
    gates = empty(call.rows, call.gates * hidden) if keep or not together else None
    packed = empty(packed_size)
    rules = None
    if call.rules is not None:
        state = _ready(state)
        factors, seen = dropout_factors(call, state), {}
        if factors is not None:  # what the recurrent product sees instead of h0, reset_h and h
            seen_h0, seen_reset = (None if t is None else t * factors for t in (h0, state[1]))
            seen = {"dropout": factors, "seen_h0": seen_h0, "seen_reset": seen_reset, "seen": torch.empty_like(h)}
        rules = call.rules.structure(*state, **seen)
    run(
        "noisyact_recurrent_forward", call, weights, rules, x, size, packed, gates, extra,
        None if weights[5] is None else m, h, h0, c0,
    )  # fmt: skip
    last = _last_rows(call.sizes, call.reverse)
    if call.kind != "lstm":
        return h, h[last].clone(), h.new_empty(0, hidden), gates, extra, m
    c = extra[len(extra) // 2 :] if call.zoned_c else extra
    return h, h[last].clone(), c[last].clone() if keep else c, gates, extra, m


def backward(
    call: LayerCall, gradients: Sequence[Tensor | None], kept: Sequence[Tensor], x: Tensor, h0: Tensor | None,
    c0: Tensor | None, weights: LayerWeights, wants_x: bool, wants_h0: bool, state: Sequence[Tensor | None] = (),
    wants_reset: bool = False,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradients of x, h0, c0, both weights, both biases, p, the projection, reset_h and reset_c.

    Args:
        gradients: the gradients of h at every step, of the final h and of the final c.
        kept: the first and the last three results of :func:`forward`.
        state: as in :func:`forward`.
        wants_reset: whether reset_h and reset_c need gradients.
    """
    kind, hidden, output = call.kind, call.hidden, call.output
    (dh, dh_n, dc_n), (h, gates, extra, m) = gradients, kept
    dh, dc_n, h0, c0, w_hh, p, w_hr = _ready((dh, dc_n, h0, c0, weights.w_hh, weights.p, weights.w_hr))
    dh = torch.zeros_like(h) if dh is None else dh
    if dh_n is not None:
        dh = dh.clone()
        dh[_last_rows(call.sizes, call.reverse)] += dh_n
    empty, zeros = (functools.partial(f, dtype=call.dtype, device=CPU) for f in (torch.empty, torch.zeros))
    carry = zeros(call.batch, hidden) if dc_n is None or kind != "lstm" else dc_n.clone()
    dgates, dh0 = empty(call.rows, call.width), empty(call.batch, output) if wants_h0 else None
    sums, dh_sum = empty(call.nonlinearities * hidden + call.width), None if w_hr is None else torch.empty_like(h)
    packed = empty(plan(kind, hidden, output, 0, call.dtype)[2])
    rules = factors = held = reset_held = reset_carry = None
    if call.rules is not None:
        state = _ready(state)
        factors = dropout_factors(call, state)
        held = zeros(call.batch, output) if call.rules.zoneout_h else None
        if wants_reset:
            reset_held, reset_carry = zeros(call.batch, output), zeros(call.batch, hidden)
        rules = call.rules.structure(
            *state, dropout=factors, held=held, reset_held=reset_held, reset_carry=reset_carry
        )  # fmt: skip
    run(
        "noisyact_recurrent_backward", call, (None, w_hh, None, None, p, w_hr), rules, packed, gates, extra, h, h0, c0,
        dh, carry, dgates, sums, dh0, dh_sum,
    )  # fmt: skip
    dw_hr = None if dh_sum is None else matmul(dh_sum.t(), m)
    dp, db = sums.split_with_sizes([call.nonlinearities * hidden, call.width])
    recurrent_side = dgates[:, : 3 * hidden] if kind == "gru" else dgates
    if dh0 is not None and held is not None:
        dh0.add_(held)
    w_ih = weights.w_ih
    if kind == "gru":  # [r, z, n through the recurrent product, n through the input]
        dh0 = None if dh0 is None else dh0.add_(carry)
        r_z, _, n_input = dgates.split([2 * hidden, hidden, hidden], dim=1)
        dw_ih = torch.cat([matmul(r_z.t(), x), matmul(n_input.t(), x)])
        db_ih, db_hh = torch.cat([db[: 2 * hidden], db[3 * hidden :]]), db[: 3 * hidden].clone()
        dx = matmul(r_z, w_ih[: 2 * hidden]).add_(matmul(n_input, w_ih[2 * hidden :])) if wants_x else None
    else:
        dw_ih = matmul(dgates.t(), x)
        db_ih, db_hh = db, db.clone()
        dx = matmul(dgates, w_ih) if wants_x else None
    reset, reset_h = (state[0], state[1]) if state else (None, None)
    at_resets = None if reset is None else take_resets(reset, recurrent_side, reset_h is not None)
    if h0 is not None and reset is not None:
        h0 = h0.masked_fill(reset[-1 if call.reverse else 0][:, None], 0.0)  # 0 times what is not finite is not 0
    dw_hh = _recurrent_weights(call, recurrent_side, h, h0, factors)
    dreset_h = dreset_c = None
    if at_resets is not None and reset_h is not None:
        dw_hh.add_(matmul(at_resets.t(), reset_h if factors is None else reset_h * factors))
    if at_resets is not None and reset_held is not None and reset_carry is not None:
        through = matmul(at_resets, w_hh)
        dreset_h = reset_held.add_(through if factors is None else through.mul_(factors))
        dreset_h = dreset_h.add_(reset_carry) if kind == "gru" else dreset_h
        dreset_c = reset_carry if kind == "lstm" else None
    return dx, dh0, carry, dw_ih, dw_hh, db_ih, db_hh, dp, dw_hr, dreset_h, dreset_c


def _last_rows(sizes: Sequence[int], reverse: bool) -> Tensor | slice:
    """The row of each sequence's final h: in reverse that of step 0, else that of the sequence's last step."""
    batch, steps = sizes[0], len(sizes)
    if reverse:
        return slice(0, batch)
    if sizes[-1] == batch:
        return slice((steps - 1) * batch, steps * batch)
    rows, row = torch.tensor(sizes, device=CPU), torch.arange(batch, device=CPU)
    offsets = rows.cumsum(0) - rows
    lengths = (rows[:, None] > row).sum(0)
    return offsets[lengths - 1] + row


def _recurrent_weights(
    call: LayerCall, dgates: Tensor, h: Tensor, first: Tensor | None, factors: Tensor | None
) -> Tensor:
    """The gradient of W_hh: the product of every row's dgates with the previous h, masked by recurrent dropout."""
    batch, rows = call.batch, len(h)
    if factors is not None or call.sizes[-1] != batch:
        return matmul(dgates.t(), previous_h(h, first, call.sizes, call.reverse, factors))
    # A rectangular batch: two slices, one step apart.
    after, before, entry = slice(batch, None), slice(0, rows - batch), slice(0, batch)
    if call.reverse:
        after, before, entry = before, after, slice(rows - batch, None)
    gradient = matmul(dgates[after].t(), h[before])
    return gradient if first is None else gradient.add_(matmul(dgates[entry].t(), first))


def gradients_asked_for(
    gradients: Sequence[Any], wants_x: bool, wants_h0: bool, c0: Tensor | None, weights: LayerWeights
) -> tuple:
    """The results of :func:`backward`, with None for tensors that need no gradient or do not exist."""
    dx, dh0, dc0, dw_ih, dw_hh, db_ih, db_hh, dp, dw_hr, *_ = gradients
    return (
        dx if wants_x else None, dh0 if wants_h0 else None, None if c0 is None else dc0, dw_ih, dw_hh,
        *((None, None) if weights.b_hh is None else (db_ih, db_hh)),
        None if weights.p is None else dp.reshape(weights.p.shape), None if weights.w_hr is None else dw_hr,
    )  # fmt: skip


class _EagerLayer(torch.autograd.Function):
    """The layer and its gradient for eager calls, which skip torch's dispatcher. Both passes share the call."""

    @staticmethod
    def forward(ctx: Any, call: LayerCall, *tensors: Any) -> Any:
        """Run the layer and save the tensors for backward."""
        x, h0, c0, *others = tensors
        h, h_n, c_n, gates, extra, m = forward(call, x, h0, c0, others[:6], others[6:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(h, gates, extra, m, *tensors)
        ctx.call = call
        return h, h_n, c_n

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Compute the gradients. The kernels do not support second derivatives."""
        check_backward("layer", grad_outputs)
        h, gates, extra, m, x, h0, c0, *tensors = ctx.saved_tensors
        weights, state = LayerWeights(*tensors[:6]), tensors[6:]
        _, wants_x, wants_h0, *others = ctx.needs_input_grad
        wants_reset = any(others[8:10])  # after c0, the weights and reset
        gradients = backward(
            ctx.call, grad_outputs, (h, gates, extra, m), x, h0, c0, weights, wants_x, wants_h0, state, wants_reset
        )
        of_state = (None, *gradients[9:], None) if state else ()
        return None, *gradients_asked_for(gradients, wants_x, wants_h0, c0, weights), *of_state
