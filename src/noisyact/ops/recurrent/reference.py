"""Recurrent layers and cells in plain torch, one step at a time: the reference that every fast path must equal.

Rows are ordered as in a PackedSequence: step t has sizes[t] rows, longest sequence first. In a rectangular batch all
sizes are equal. The order of gates and biases is torch's.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from noisyact import equations
from noisyact.noise import recurrent_mask, recurrent_positions
from noisyact.ops.recurrent.observer import observers
from noisyact.ops.recurrent.types import NONLINEARITIES, PLAIN_STATE, CellNoise, LayerWeights, StateRules
from noisyact.pairs import HardPair, Pair
from noisyact.schemes import Scheme

__all__ = ["Masks", "cell", "draw_masks", "layer", "reset_state", "step", "zoneout"]


def cell(
    kind: str, a: Tensor, recurrent: Tensor | None, h: Tensor, c: Tensor | None, p: Tensor | None, xi: Tensor | None,
    noise: CellNoise,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """One step of a cell.

    sigm and tanh are the noisy functions, each with its own p and noise:

    - LSTM: ``i, f, o = sigm(a_i), sigm(a_f), sigm(a_o)``, ``g = tanh(a_g)``, ``c' = f c + i g``, ``h' = o tanh(c')``;
    - GRU: ``r, z = sigm(a_r + q_r), sigm(a_z + q_z)``, ``n = tanh(a_n + r q_n)``, ``h' = (1 - z) n + z h``;
    - RNN: ``h' = tanh(a)``, or the noisy ReLU.

    Args:
        kind: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        a: [B, gates * H], the pre-activations; for the GRU only the input's part.
        recurrent: q, [B, 3 H], the recurrent part of the GRU's pre-activations; else None.
        h: [B, H], the previous h (used by the GRU).
        c: [B, H], the LSTM's previous c; else None.
        p: [nonlinearities, H], or None for p = 1.
        xi: [B, nonlinearities, H], or None for the expectation.
        noise: the schemes and their scales.

    Returns: h' and, for the LSTM, c'.
    """

    def apply(n: int, x: Tensor, pair: HardPair | Pair, scheme: Scheme | None, scale: Tensor) -> Tensor:
        own_p, own_xi = None if p is None else p[n], None if xi is None else xi[:, n]
        if scheme is None:
            y = pair.h(x)
        else:
            y = equations.phi(x, pair, scheme, scale, 1.0 if own_p is None else own_p, own_xi)
        for observer in observers:
            y = observer.sees(n, x, y, pair, scheme, scale, own_p, own_xi)
        return y

    def sigm(n: int, x: Tensor) -> Tensor:
        return apply(n, x, noise.gate_pair(), noise.gate, noise.gate_scale)

    def tanh(n: int, x: Tensor) -> Tensor:
        return apply(n, x, noise.state_pair(kind), noise.state, noise.state_scale)

    if kind == "lstm":
        assert c is not None
        a_i, a_f, a_g, a_o = a.chunk(4, dim=1)
        i, f, g, o = sigm(0, a_i), sigm(1, a_f), tanh(2, a_g), sigm(3, a_o)
        c = f * c + i * g
        return o * tanh(4, c), c
    if kind == "gru":
        assert recurrent is not None
        (a_r, a_z, a_n), (q_r, q_z, q_n) = a.chunk(3, dim=1), recurrent.chunk(3, dim=1)
        r, z = sigm(0, a_r + q_r), sigm(1, a_z + q_z)
        n = tanh(2, a_n + r * q_n)
        return (1 - z) * n + z * h, None
    return tanh(0, a), None


class Masks(NamedTuple):
    """The drawn masks of zoneout and recurrent dropout, for rows of one step or of all; None where there is no mask.

    Args:
        keep_h: [rows, H or projection], bool: the units of h that keep their value.
        keep_c: [rows, H], bool: the units of c that keep their value.
        dropout: [batch, H or projection], the factors of h in the recurrent product.
    """

    keep_h: Tensor | None = None
    keep_c: Tensor | None = None
    dropout: Tensor | None = None


_NO_MASKS = Masks()


def draw_masks(kind: str, rules: StateRules, sizes: Sequence[int], output: int, hidden: int, like: Tensor) -> Masks:
    """The masks of a layer, by the formulas of :class:`StateRules`; none if the rules have no seed for them.

    Args:
        sizes: the number of rows at each step.
        output: the width of h.
        hidden: the width of c.
        like: a tensor with the device and dtype of the computation.
    """
    seed, device = rules.mask_seed, like.device
    if seed is None:
        return _NO_MASKS
    keep_h = keep_c = dropout = None
    if rules.zoneout_h > 0 or rules.zoneout_c > 0:
        steps, rows = recurrent_positions(sizes, device, rules.first_step, rules.rows)
        keep_h = recurrent_mask(seed, steps, rows, output, rules.zoneout_h, block=2, word=0)
        keep_c = recurrent_mask(seed, steps, rows, hidden, rules.zoneout_c, block=2, word=1) if kind == "lstm" else None
    if rules.recurrent_dropout > 0:
        steps, rows = recurrent_positions(sizes[:1], device, 0, rules.rows)
        dropped = recurrent_mask(seed, torch.zeros_like(steps), rows, output, rules.recurrent_dropout, block=3)
        dropout = (~dropped).to(like.dtype) / (1.0 - rules.recurrent_dropout)
    return Masks(keep_h, keep_c, dropout)


def layer(
    kind: str, x: Tensor, sizes: Sequence[int], h: Tensor, c: Tensor | None, weights: LayerWeights, xi: Tensor | None,
    noise: CellNoise, reverse: bool, rules: StateRules = PLAIN_STATE,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """One layer in one direction.

    Args:
        kind: as in :func:`cell`.
        x: [rows, input].
        sizes: the number of rows at each step.
        h: [batch, H or projection], the initial h.
        c: [batch, H], the LSTM's initial c; else None.
        weights: in the dtype of x; p may have any shape.
        xi: [rows, nonlinearities, H], or None for the expectation.
        noise: the schemes and their scales.
        reverse: process each sequence from its end to its beginning.
        rules: resets, zoneout and recurrent dropout.

    Returns: h at every step, [rows, H or projection]; the final h; the final c.
    """
    p = None if weights.p is None else weights.p.reshape(NONLINEARITIES[kind], -1)
    for observer in observers:
        observer.begins()
    from_input = F.linear(x, weights.w_ih, weights.b_ih)
    ends = list(itertools.accumulate(sizes, initial=0))
    outputs: list[Tensor] = [x] * len(sizes)
    keep_h, keep_c, dropout = draw_masks(kind, rules, sizes, h.shape[1], h.shape[1] if c is None else c.shape[1], x)
    for t in reversed(range(len(sizes))) if reverse else range(len(sizes)):
        now, size = slice(ends[t], ends[t + 1]), sizes[t]
        own_h, own_c = h[:size], None if c is None else c[:size]
        if rules.reset is not None:
            own_h, own_c = reset_state(own_h, own_c, rules.reset[t], rules)
        masks = Masks(
            None if keep_h is None else keep_h[now], None if keep_c is None else keep_c[now],
            None if dropout is None else dropout[:size],
        )  # fmt: skip
        # Rows beyond `size` are sequences that have ended or, in reverse, have not begun. Their state does not change.
        new_h, new_c = step(
            kind, from_input[now], own_h, own_c, weights, p, None if xi is None else xi[now], noise, rules, masks
        )
        outputs[t] = new_h
        h = torch.cat([new_h, h[size:]]) if size < len(h) else new_h
        if c is not None and new_c is not None:
            c = torch.cat([new_c, c[size:]]) if size < len(c) else new_c
    return torch.cat(outputs), h, c


def reset_state(h: Tensor, c: Tensor | None, reset: Tensor, rules: StateRules) -> tuple[Tensor, Tensor | None]:
    """The state before a step: that of the rules in the rows of the mask, [batch], and the given one in the others."""
    where = reset[:, None]
    h = torch.where(where, 0.0 if rules.reset_h is None else rules.reset_h, h)
    return h, None if c is None else torch.where(where, 0.0 if rules.reset_c is None else rules.reset_c, c)


def zoneout(new: Tensor, old: Tensor, rate: float, keep: Tensor | None) -> Tensor:
    """The old value in the units of the mask, and the new one in the others; without a mask the expectation."""
    if rate == 0:
        return new
    return rate * old + (1.0 - rate) * new if keep is None else torch.where(keep, old, new)


def step(
    kind: str, from_input: Tensor, h: Tensor, c: Tensor | None, weights: LayerWeights, p: Tensor | None,
    xi: Tensor | None, noise: CellNoise, rules: StateRules = PLAIN_STATE, masks: Masks = _NO_MASKS,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """One step of a layer after its reset: the recurrent product, the :func:`cell`, the projection, and zoneout.

    Args:
        from_input: [B, gates * H], the input's part of the pre-activations: ``W_ih x + b_ih``.
        p: [nonlinearities, H], or None for p = 1.
        rules: the rates of zoneout.
        masks: the masks of this step.

    Returns: the new h, [B, H or projection], and the LSTM's new c.
    """
    q = F.linear(h if masks.dropout is None else h * masks.dropout, weights.w_hh, weights.b_hh)
    a, recurrent = (from_input, q) if kind == "gru" else (from_input + q, None)
    new_h, new_c = cell(kind, a, recurrent, h, c, p, xi, noise)
    new_h = new_h if weights.w_hr is None else F.linear(new_h, weights.w_hr)
    new_h = zoneout(new_h, h, rules.zoneout_h, masks.keep_h)
    if c is None or new_c is None:
        return new_h, None
    return new_h, zoneout(new_c, c, rules.zoneout_c, masks.keep_c)
