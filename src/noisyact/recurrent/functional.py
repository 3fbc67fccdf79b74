"""Recurrent layers and cells as functions: one layer in one direction, or one step, with the noise as an argument."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from noisyact.compiling import one_node
from noisyact.noise import draw_seed, recurrent_normal
from noisyact.ops.activation.reference import working_dtype
from noisyact.ops.dispatch import exporting, exporting_to_onnx, plain, traced, transformed
from noisyact.ops.recurrent import reference, scan
from noisyact.ops.recurrent.cell import cell
from noisyact.ops.recurrent.checks import MisfitError, check_cell, check_layer
from noisyact.ops.recurrent.cpu import layer as cpu
from noisyact.ops.recurrent.cpu import registration as cpu_registration
from noisyact.ops.recurrent.gpu import layers as gpu
from noisyact.ops.recurrent.gpu import registration as gpu_registration
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES, CellNoise, LayerWeights
from noisyact.recurrent import backends
from noisyact.schemes import Scheme, scheme

__all__ = ["call_dtype", "noisy_gru", "noisy_lstm", "noisy_rnn", "run_cell", "run_layers"]


def run_layers(
    kind: str, x: Tensor, sizes: Sequence[int] | None, h: Tensor | None, c: Tensor | None,
    weights: Sequence[LayerWeights], noise: CellNoise, *, seeds: Sequence[Tensor | None], reverse: bool, backend: str,
    xi: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Run stacked layers in one direction with the chosen backend: together on a GPU, otherwise one by one.

    Args:
        x: [steps, batch, input], or packed [rows, input]; the output has the same leading dimensions.
        sizes: the number of rows at each step of packed x; None for x of three dimensions.
        h: the initial h of each layer, [layers, batch, H]; None for zeros. The same holds for c.
        weights: one for each layer; if only one bias is given, the other is zero.
        seeds: one for each layer; None computes the expectation.
        xi: the noise of a single layer, [rows, nonlinearities, H], used instead of a seed.

    Returns: h of the last layer at every step, and the final h and c of each layer, [layers, batch, H].
    """
    width = x.shape[-1]
    if _autocast(x):  # as nn.LSTM does
        dtype = call_dtype(x)
        x, h, c = _in_dtype(dtype, (x, h, c))
        weights = [LayerWeights(*_in_dtype(dtype, own._replace(p=None)))._replace(p=own.p) for own in weights]
    batch = x.shape[1] if sizes is None else sizes[0]
    for index, own in enumerate(weights):
        own_h, own_c = None if h is None else h[index], None if c is None else c[index]
        width = check_layer(kind, x, width, batch, own_h, own_c, own, seeds[index], noise)
    if any((own.b_ih is None) != (own.b_hh is None) for own in weights):
        weights = [_with_both_biases(own) for own in weights]
    choose = backends.choose_uncached if torch.compiler.is_compiling() else backends.choose
    path = choose(
        backend, x.device, x.dtype, noise.hard, weights[0].w_hr is not None, xi is not None, transformed()
    )  # fmt: skip
    if path == "triton" and x.shape[-2] == 0:  # without rows there is nothing to launch
        path = "reference"
    if traced() and xi is None and seeds[0] is None:
        path = _exported(path, backend, sizes is None)
    if sizes is None and (path == "reference" or not torch.compiler.is_compiling()):
        sizes = [batch] * x.shape[0]  # in a graph these are constants
    if path == "triton" and sizes is not None and x.numel() > 0 and not traced():
        layers = [
            own if own.p is None or own.p.dtype is x.dtype else own._replace(p=own.p.to(x.dtype)) for own in weights
        ]
        if plain(x, h, c, *itertools.chain.from_iterable(layers)):
            return gpu.layers(kind, sizes, x, h, c, layers, seeds, noise, reverse)
    form, x = x.shape[:-1], x if sizes is None else x.reshape(-1, x.shape[-1])
    states: list[tuple[Tensor, Any]] = []
    for index, (own, seed) in enumerate(zip(weights, seeds, strict=True)):
        x, *state = _run_layer(
            kind, x, sizes, None if h is None else h[index], None if c is None else c[index], own, noise, seed=seed,
            xi=xi, reverse=reverse, path=path,
        )  # fmt: skip
        states.append(tuple(state))  # pyright: ignore[reportArgumentType]
    last_h, last_c = zip(*states, strict=True)
    return x.reshape(*form, x.shape[-1]), _stacked(last_h), _stacked(last_c) if kind == "lstm" else None


def _exported(path: str, backend: str, rectangular: bool = False) -> str:
    """The path in a traced graph without drawn noise: torch's operators if the graph is exported.

    A kernel that the caller forces stays an operator of noisyact.
    """
    if backend not in ("auto", "reference") or not (exporting() or exporting_to_onnx()):
        return path
    return "scan" if rectangular and exporting() and scan.available() and not transformed() else "reference"


def _with_both_biases(weights: LayerWeights) -> LayerWeights:
    b_ih, b_hh = weights.b_ih, weights.b_hh
    if b_ih is None and b_hh is not None:
        return weights._replace(b_ih=torch.zeros_like(b_hh))
    return weights._replace(b_hh=torch.zeros_like(b_ih)) if b_hh is None and b_ih is not None else weights


def _stacked(states: Sequence[Tensor]) -> Tensor:
    return states[0].unsqueeze(0) if len(states) == 1 else torch.stack(list(states))


def _run_layer(
    kind: str, x: Tensor, sizes: Sequence[int] | None, h: Tensor | None, c: Tensor | None, weights: LayerWeights,
    noise: CellNoise, *, seed: Tensor | None, xi: Tensor | None, reverse: bool, path: str,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Run one layer in one direction over packed rows, with the shapes of :func:`reference.layer`.

    If sizes is None, x and the result are [steps, batch, width], and no number of the graph depends on steps or batch.
    If h and c are None, they are zeros. The noise is xi if given, else the seed's, else the expectation.
    """
    if path in ("cpu", "triton"):
        own_x, own_h, own_c, *own = _in_dtype(torch.float32 if path == "cpu" else x.dtype, (x, h, c, *weights))
        run: Any  # the eager function takes no symbolic sizes
        if path == "triton":
            run = gpu_registration.layer
        else:
            run = cpu_registration.layer if traced() or not plain(own_x, own_h, own_c, *own) else cpu.layer
        results = run(kind, own_x, sizes, own_h, own_c, LayerWeights(*own), seed, noise, reverse)
        y, h_n, c_n = results if x.dtype is results[0].dtype else _in_dtype(x.dtype, results)
        return y, h_n, c_n if kind == "lstm" else None
    output, w_hr = weights.w_hh.shape[1], weights.w_hr
    hidden = output if w_hr is None else w_hr.shape[1]
    if h is None:
        batch = x.shape[1] if sizes is None else sizes[0]
        h = x.new_zeros(batch, output)
        c = x.new_zeros(batch, hidden) if kind == "lstm" else None
    if xi is None and seed is not None and sizes is not None:
        steps = torch.cat([torch.full((size,), t, device=x.device) for t, size in enumerate(sizes)])
        rows = torch.cat([torch.arange(size, device=x.device) for size in sizes])
        xi = recurrent_normal(seed, steps, rows, NONLINEARITIES[kind], hidden)
    wide_x, wide_h, wide_c, wide_xi, *wide = _in_dtype(working_dtype(x.dtype), (x, h, c, xi, *weights))
    with torch.autocast(x.device.type, enabled=False) if _autocast(x) else contextlib.nullcontext():
        if sizes is None:
            results = scan.layer(kind, wide_x, wide_h, wide_c, LayerWeights(*wide), noise, reverse)
        else:
            results = reference.layer(kind, wide_x, sizes, wide_h, wide_c, LayerWeights(*wide), wide_xi, noise, reverse)
    y, h_n, c_n = _in_dtype(x.dtype, results)
    return y, h_n, c_n if kind == "lstm" else None


def call_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a layer's computation and result: autocast's if autocast applies to x, else that of x."""
    return torch.get_autocast_dtype(x.device.type) if _autocast(x) else x.dtype


def _autocast(x: Tensor) -> bool:
    """Whether autocast applies to x. It leaves float64 tensors unchanged, and the meta device has no autocast."""
    kind = "cpu" if x.is_cpu else x.device.type
    return x.dtype is not torch.float64 and kind != "meta" and torch.is_autocast_enabled(kind)


def _in_dtype(dtype: torch.dtype, tensors: tuple[Tensor | None, ...]) -> list[Any]:
    return [t if t is None or t.dtype == dtype else t.to(dtype) for t in tensors]


def run_cell(
    kind: str, a: Tensor, recurrent: Tensor | None, h: Tensor, c: Tensor | None, p: Tensor | None, noise: CellNoise, *,
    seed: Tensor | None, xi: Tensor | None, backend: str,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Run the pointwise part of one step with the chosen backend, with the shapes of :func:`reference.cell`."""
    for name, given in (("h", h), ("c", c), ("p", p), ("xi", xi)):
        if given is not None and not given.is_floating_point():
            raise TypeError(f"{name} must be real floating point, not {given.dtype}")
    dtype = working_dtype(a.dtype)
    choose = backends.choose_uncached if torch.compiler.is_compiling() else backends.choose
    path = choose(
        "auto" if xi is not None else backend, a.device, a.dtype, noise.hard, False, xi is not None, transformed()
    )
    if traced() and xi is None and seed is None:
        path = _exported(path, backend)
    wide_a, wide_h = a.to(dtype), h.to(dtype)
    wide_q, wide_c, wide_p = (None if t is None else t.to(dtype) for t in (recurrent, c, p))
    if path in ("cpu", "triton") and a.numel() > 0:
        new_h, new_c = cell(kind, wide_a, wide_q, wide_h, wide_c, wide_p, seed, noise)
    else:
        check_cell(kind, wide_a, wide_p, seed, noise, recurrent=wide_q, h=wide_h, c=wide_c)
        count, hidden = NONLINEARITIES[kind], a.shape[1] // GATES[kind]
        if xi is None and seed is not None:
            rows = torch.arange(len(a), device=a.device)
            xi = recurrent_normal(seed, torch.zeros_like(rows), rows, count, hidden)
        new_h, new_c = reference.cell(
            kind, wide_a, wide_q, wide_h, wide_c, None if wide_p is None else wide_p.reshape(count, hidden),
            None if xi is None else xi.to(dtype), noise,
        )  # fmt: skip
    return new_h.to(a.dtype), new_c.to(a.dtype) if kind == "lstm" and new_c is not None else None


def _one_layer(
    kind: str, x: Tensor, h: Tensor | None, c: Tensor | None, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None,
    b_hh: Tensor | None, noise: Scheme | str | None, gate_noise: Scheme | str | None, p: Tensor | None,
    xi: Tensor | None, seed: Tensor | None, training: bool, hard: bool, reverse: bool, backend: str,
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
    if xi is not None and xi.shape != (steps, batch, count, hidden):
        raise ValueError(f"xi must be of shape {(steps, batch, count, hidden)}, not {tuple(xi.shape)}")
    if xi is not None and not xi.is_floating_point():
        raise TypeError(f"xi must be real floating point, not {xi.dtype}")
    training = training and any(own is not None and own.draws for own in (state, gate))
    if training and xi is None and seed is None:
        seed = draw_seed(x.device)
    dtype = working_dtype(x.dtype)
    scales = [torch.tensor(0.0 if s is None else s.scale, dtype=dtype, device=x.device) for s in (state, gate)]
    weights = LayerWeights(w_ih, w_hh, b_ih, b_hh, p)
    h, c = (None if s is None else s.unsqueeze(0) for s in (h, c))
    y, h_n, c_n = run_layers(
        kind, x, None, h, c, [weights],
        CellNoise(state, gate, *scales, hard=hard), seeds=[seed if training else None], reverse=reverse,
        backend=backends.check(backend),
        xi=None if xi is None or not training else xi.reshape(steps * batch, count, hidden),
    )  # fmt: skip
    return y, h_n[0], None if c_n is None else c_n[0]


@one_node
def noisy_lstm(
    x: Tensor, hx: tuple[Tensor, Tensor] | None, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
    b_hh: Tensor | None = None, *, noise: Scheme | str | None = "nah", gate_noise: Scheme | str | None = None,
    p: Tensor | None = None, xi: Tensor | None = None, seed: Tensor | None = None, training: bool = True,
    hard: bool = True, reverse: bool = False, backend: str = "auto",
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
        seed: one int64 that defines xi, used instead of a draw.
        training: False computes the expectation.
        hard: False uses the soft sigmoid and tanh.
        reverse: process the steps from last to first.
        backend: "auto", "reference", "cpu" or "triton".

    Returns: h at every step, [steps, batch, H], and the final h and c.

    >>> x, w = torch.randn(7, 3, 4), torch.randn(4 * 5, 5)
    >>> y, (h, c) = noisy_lstm(x, None, torch.randn(4 * 5, 4), w, noise="nah")
    >>> y.shape, h.shape
    (torch.Size([7, 3, 5]), torch.Size([3, 5]))
    """
    h, c = (None, None) if hx is None else hx
    y, h_n, c_n = _one_layer(
        "lstm", x, h, c, w_ih, w_hh, b_ih, b_hh, noise, gate_noise, p, xi, seed, training, hard, reverse, backend
    )
    return y, (h_n, c_n)  # pyright: ignore[reportReturnType]


@one_node
def noisy_gru(
    x: Tensor, hx: Tensor | None, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None, *,
    noise: Scheme | str | None = "nah", gate_noise: Scheme | str | None = None, p: Tensor | None = None,
    xi: Tensor | None = None, seed: Tensor | None = None, training: bool = True, hard: bool = True,
    reverse: bool = False, backend: str = "auto",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One noisy GRU layer in one direction. p is [3 H] in the order r, z, n; see :func:`noisy_lstm` for the arguments.

    ``r, z = sigm(.), sigm(.)``, ``n = tanh(W_in x + b_in + r (W_hn h + b_hn))``, ``h' = (1 - z) n + z h``.

    >>> y, h = noisy_gru(torch.randn(7, 3, 4), None, torch.randn(15, 4), torch.randn(15, 5))
    >>> y.shape, h.shape
    (torch.Size([7, 3, 5]), torch.Size([3, 5]))
    """
    y, h_n, _ = _one_layer(
        "gru", x, hx, None, w_ih, w_hh, b_ih, b_hh, noise, gate_noise, p, xi, seed, training, hard, reverse, backend
    )
    return y, h_n


@one_node
def noisy_rnn(
    x: Tensor, hx: Tensor | None, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None, *,
    nonlinearity: str = "tanh", noise: Scheme | str | None = "nah", p: Tensor | None = None, xi: Tensor | None = None,
    seed: Tensor | None = None, training: bool = True, hard: bool = True, reverse: bool = False, backend: str = "auto",
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
        backend,
    )  # fmt: skip
    return y, h_n
