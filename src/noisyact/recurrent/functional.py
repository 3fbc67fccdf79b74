"""Recurrent layers as functions: one layer in one direction, with the noise as an argument."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from noisyact.compiling import one_node
from noisyact.noise import draw_seed
from noisyact.ops.activation.reference import working_dtype
from noisyact.ops.recurrent.checks import MisfitError
from noisyact.ops.recurrent.types import NONLINEARITIES, CellNoise, LayerWeights
from noisyact.recurrent import backends
from noisyact.recurrent.execution import run_layers
from noisyact.recurrent.noise import check_schemes
from noisyact.recurrent.state import (
    StateArguments,
    as_seed,
    check_position,
    check_rates,
    check_reset,
    reset_states,
    zoneout_pair,
)
from noisyact.schemes import Scheme, scheme

__all__ = ["noisy_gru", "noisy_lstm", "noisy_rnn"]


def _one_layer(
    kind: str, x: Tensor, h: Tensor | None, c: Tensor | None, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None,
    b_hh: Tensor | None, noise: Scheme | str | None, gate_noise: Scheme | str | None, p: Tensor | None,
    xi: Tensor | None, seed: int | Tensor | None, training: bool, hard: bool, reverse: bool, backend: str,
    reset: Tensor | None, reset_to: Any, first_step: int, rows: Tensor | None, zoneout: Any, recurrent_dropout: float,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    if x.dim() != 3:
        raise ValueError(f"x must be [steps, batch, input], not of shape {tuple(x.shape)}")
    if not x.is_floating_point():
        raise TypeError(f"x must be real floating point, not {x.dtype}")
    if w_hh.dim() != 2:
        raise MisfitError(f"w_hh must be 2-D, not of shape {tuple(w_hh.shape)}")
    steps, batch, hidden, count = x.shape[0], x.shape[1], w_hh.shape[1], NONLINEARITIES[kind]
    if steps == 0:
        raise ValueError("x must have at least one step")
    state, gate = (None if s is None else scheme(s) for s in (noise, noise if gate_noise is None else gate_noise))
    check_schemes(kind, state, gate, hard)
    if xi is not None and xi.shape != (steps, batch, count, hidden):
        raise ValueError(f"xi must be of shape {(steps, batch, count, hidden)}, not {tuple(xi.shape)}")
    if xi is not None and not xi.is_floating_point():
        raise TypeError(f"xi must be real floating point, not {xi.dtype}")
    seed = as_seed(seed, x.device)
    check_position(first_step, steps, rows, batch, seed, x.device)
    if reset is not None:
        check_reset(reset, (steps, batch), x.device)
    rates = check_rates(kind, zoneout, recurrent_dropout)
    given = StateArguments(
        reset, *reset_states(kind, reset_to, reset, batch), seed, first_step, rows, zoneout_pair(kind, rates[0]),
        rates[1],
    )  # fmt: skip
    drawn = training and any(own is not None and own.draws for own in (state, gate))
    masked = training and given.has_masks()
    if seed is None and ((drawn and xi is None) or masked):
        seed = draw_seed(x.device)
    rules = given.rules_of_one(reverse, seed if masked else None, drawn and xi is None)
    dtype = working_dtype(x.dtype)
    scales = [torch.tensor(0.0 if s is None else s.scale, dtype=dtype, device=x.device) for s in (state, gate)]
    weights = LayerWeights(w_ih, w_hh, b_ih, b_hh, p)
    h, c = (None if s is None else s.unsqueeze(0) for s in (h, c))
    y, h_n, c_n = run_layers(
        kind, x, None, h, c, [weights],
        CellNoise(state, gate, *scales, hard=hard), seeds=[seed if drawn else None], reverse=reverse,
        backend=backends.check(backend),
        xi=None if xi is None or not drawn else xi.reshape(steps * batch, count, hidden),
        rules=[rules] if rules.in_use() else None,
    )  # fmt: skip
    return y, h_n[0], None if c_n is None else c_n[0]


@one_node
def noisy_lstm(
    x: Tensor, hx: tuple[Tensor, Tensor] | None, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
    b_hh: Tensor | None = None, *, noise: Scheme | str | None = "nah", gate_noise: Scheme | str | None = None,
    p: Tensor | None = None, xi: Tensor | None = None, seed: int | Tensor | None = None, training: bool = True,
    hard: bool = True, reverse: bool = False, backend: str = "auto", reset: Tensor | None = None,
    reset_to: tuple[Tensor, Tensor] | None = None, first_step: int = 0, rows: Tensor | None = None,
    zoneout: float | tuple[float, float] = 0.0, recurrent_dropout: float = 0.0,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
    """One noisy LSTM layer in one direction.

    ``i, f, o = sigm(a_i), sigm(a_f), sigm(a_o)``, ``g = tanh(a_g)``, ``c' = f c + i g``, ``h' = o tanh(c')``, with
    ``a = W_ih x + b_ih + W_hh h + b_hh`` in torch's gate order. Each of the five nonlinearities has a p and noise.

    Args:
        x: [steps, batch, input].
        hx: the initial h and c, each [batch, H]; None for zeros.
        w_ih: [4 H, input].
        w_hh: [4 H, H].
        b_ih: [4 H] or None.
        b_hh: [4 H] or None.
        noise: the scheme of the tanh nonlinearities or its text; None for no noise.
        gate_noise: the scheme of the sigmoids; the same as ``noise`` if None.
        p: [5 H], in the order i, f, g, o and tanh of c; None means p = 1.
        xi: the noise, [steps, batch, 5, H], used instead of a draw.
        seed: an int or one int64 that defines xi and the masks, used instead of a draw.
        training: False computes the expectation.
        hard: False uses the soft sigmoid and tanh.
        reverse: process the steps from last to first.
        backend: "auto", "reference", "cpu" or "triton".
        reset: [steps, batch], bool: where a new sequence begins, as in :meth:`NoisyLSTM.forward`.
        reset_to: the h and c of new sequences, each [batch or 1, H]; None for zeros.
        first_step: the noise of step t is that of step ``first_step + t`` of the seed.
        rows: [batch], int64: the noise of row b is that of row ``rows[b]`` of the seed.
        zoneout: the probability that a unit keeps its value, as in NoisyLSTM.
        recurrent_dropout: the probability that the recurrent product does not see a unit, as in NoisyLSTM.

    Returns: h at every step, [steps, batch, H], and the final h and c.

    >>> x, w = torch.randn(7, 3, 4), torch.randn(4 * 5, 5)
    >>> y, (h, c) = noisy_lstm(x, None, torch.randn(4 * 5, 4), w, noise="nah")
    >>> y.shape, h.shape
    (torch.Size([7, 3, 5]), torch.Size([3, 5]))
    """
    h, c = (None, None) if hx is None else hx
    y, h_n, c_n = _one_layer(
        "lstm", x, h, c, w_ih, w_hh, b_ih, b_hh, noise, gate_noise, p, xi, seed, training, hard, reverse, backend,
        reset, reset_to, first_step, rows, zoneout, recurrent_dropout,
    )  # fmt: skip
    return y, (h_n, c_n)  # pyright: ignore[reportReturnType]


@one_node
def noisy_gru(
    x: Tensor, hx: Tensor | None, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None, *,
    noise: Scheme | str | None = "nah", gate_noise: Scheme | str | None = None, p: Tensor | None = None,
    xi: Tensor | None = None, seed: int | Tensor | None = None, training: bool = True, hard: bool = True,
    reverse: bool = False, backend: str = "auto", reset: Tensor | None = None, reset_to: Tensor | None = None,
    first_step: int = 0, rows: Tensor | None = None, zoneout: float = 0.0, recurrent_dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One noisy GRU layer in one direction. p is [3 H] in the order r, z, n; see :func:`noisy_lstm` for the arguments.

    ``r, z = sigm(.), sigm(.)``, ``n = tanh(W_in x + b_in + r (W_hn h + b_hn))``, ``h' = (1 - z) n + z h``.

    >>> y, h = noisy_gru(torch.randn(7, 3, 4), None, torch.randn(15, 4), torch.randn(15, 5))
    >>> y.shape, h.shape
    (torch.Size([7, 3, 5]), torch.Size([3, 5]))
    """
    y, h_n, _ = _one_layer(
        "gru", x, hx, None, w_ih, w_hh, b_ih, b_hh, noise, gate_noise, p, xi, seed, training, hard, reverse, backend,
        reset, reset_to, first_step, rows, zoneout, recurrent_dropout,
    )  # fmt: skip
    return y, h_n


@one_node
def noisy_rnn(
    x: Tensor, hx: Tensor | None, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None, *,
    nonlinearity: str = "tanh", noise: Scheme | str | None = "nah", p: Tensor | None = None, xi: Tensor | None = None,
    seed: int | Tensor | None = None, training: bool = True, hard: bool = True, reverse: bool = False,
    backend: str = "auto", reset: Tensor | None = None, reset_to: Tensor | None = None, first_step: int = 0,
    rows: Tensor | None = None, zoneout: float = 0.0, recurrent_dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One noisy RNN layer: ``h' = f(W_ih x + b_ih + W_hh h + b_hh)`` with f = tanh or ReLU. p is [H].

    >>> y, h = noisy_rnn(torch.randn(7, 3, 4), None, torch.randn(5, 4), torch.randn(5, 5))
    >>> y.shape, h.shape
    (torch.Size([7, 3, 5]), torch.Size([3, 5]))
    """
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"Unknown nonlinearity: nonlinearity={nonlinearity!r}, allowed are 'tanh', 'relu'")
    y, h_n, _ = _one_layer(
        f"rnn_{nonlinearity}", x, hx, None, w_ih, w_hh, b_ih, b_hh, noise, None, p, xi, seed, training, hard, reverse,
        backend, reset, reset_to, first_step, rows, zoneout, recurrent_dropout,
    )  # fmt: skip
    return y, h_n
