"""The execution of recurrent layers and cells: the choice of a backend, the dtype, and the calls of kernels."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from noisyact.noise import recurrent_normal, recurrent_positions
from noisyact.ops.activation.reference import working_dtype
from noisyact.ops.dispatch import exporting, exporting_to_onnx, plain, traced, tracing, transformed
from noisyact.ops.recurrent import reference, scan
from noisyact.ops.recurrent.cell import cell
from noisyact.ops.recurrent.checks import check_cell, check_layer, check_rules
from noisyact.ops.recurrent.cpu import layer as cpu
from noisyact.ops.recurrent.cpu import registration as cpu_registration
from noisyact.ops.recurrent.gpu import layers as gpu
from noisyact.ops.recurrent.gpu import registration as gpu_registration
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES, PLAIN_STATE, CellNoise, LayerWeights, StateRules
from noisyact.recurrent import backends

__all__ = ["call_dtype", "run_cell", "run_layers"]


def run_layers(
    kind: str, x: Tensor, sizes: Sequence[int] | None, h: Tensor | None, c: Tensor | None,
    weights: Sequence[LayerWeights], noise: CellNoise, *, seeds: Sequence[Tensor | None], reverse: bool, backend: str,
    xi: Tensor | None = None, rules: Sequence[StateRules] | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Run stacked layers in one direction with the chosen backend: together on a GPU, otherwise one by one.

    Args:
        x: [steps, batch, input], or packed [rows, input]; the output has the same leading dimensions.
        sizes: the number of rows at each step of packed x; None for x of three dimensions.
        h: the initial h of each layer, [layers, batch, H]; None for zeros. The same holds for c.
        weights: one for each layer; if only one bias is given, the other is zero.
        seeds: one for each layer; None computes the expectation.
        xi: the noise of a single layer, [rows, nonlinearities, H], used instead of a seed.
        rules: resets, zoneout, recurrent dropout and the position of the noise, one for each layer; None for none.

    Returns: h of the last layer at every step, and the final h and c of each layer, [layers, batch, H].
    """
    width = x.shape[-1]
    if _autocast(x):  # as nn.LSTM does
        dtype = call_dtype(x)
        x, h, c = _in_dtype(dtype, (x, h, c))
        weights = [LayerWeights(*_in_dtype(dtype, own._replace(p=None)))._replace(p=own.p) for own in weights]
        rules = None if rules is None else [_rules_in_dtype(dtype, own) for own in rules]
    batch = x.shape[1] if sizes is None else sizes[0]
    for index, own in enumerate(weights):
        own_h, own_c = None if h is None else h[index], None if c is None else c[index]
        width = check_layer(kind, x, width, batch, own_h, own_c, own, seeds[index], noise)
        if rules is not None:
            hidden = width if own.w_hr is None else own.w_hr.shape[1]
            check_rules(kind, rules[index], x, x.shape[0] if sizes is None else None, batch, width, hidden)
        if (own.b_ih is None) != (own.b_hh is None):
            weights = [_with_both_biases(own) for own in weights]
    compiling = torch.compiler.is_compiling()
    in_trace = compiling or tracing()
    choose = backends.choose_uncached if compiling else backends.choose
    path = choose(backend, x.device, xi is not None, transformed())
    if path == "triton" and x.shape[-2] == 0:  # without rows there is nothing to launch
        path = "reference"
    if in_trace and xi is None and seeds[0] is None and (rules is None or rules[0].mask_seed is None):
        path = _exported(path, backend, sizes is None)
    if sizes is None and (path == "reference" or not compiling):
        sizes = [batch] * x.shape[0]  # in a graph these are constants
    if path == "triton" and sizes is not None and x.numel() > 0 and not in_trace:
        dtype = x.dtype
        layers = [own if own.p is None or own.p.dtype is dtype else own._replace(p=own.p.to(dtype)) for own in weights]
        tensors = itertools.chain((x, h, c), *layers, *(() if rules is None else [own[:5] for own in rules]))
        if plain(*tensors):
            return gpu.layers(kind, sizes, x, h, c, layers, seeds, noise, reverse, rules)
    form, x = x.shape[:-1], x if sizes is None else x.reshape(-1, x.shape[-1])
    states: list[tuple[Tensor, Any]] = []
    for index, (own, seed) in enumerate(zip(weights, seeds, strict=True)):
        x, *state = _run_layer(
            kind, x, sizes, None if h is None else h[index], None if c is None else c[index], own, noise, seed=seed,
            xi=xi, reverse=reverse, path=path, rules=PLAIN_STATE if rules is None else rules[index],
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


def _stacked(states: tuple[Tensor, ...]) -> Tensor:
    return torch.stack(states)  # of one layer too: a view could not be detached in place, as nn.LSTM's state can


def _run_layer(
    kind: str, x: Tensor, sizes: Sequence[int] | None, h: Tensor | None, c: Tensor | None, weights: LayerWeights,
    noise: CellNoise, *, seed: Tensor | None, xi: Tensor | None, reverse: bool, path: str, rules: StateRules,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Run one layer in one direction over packed rows, with the shapes of :func:`reference.layer`.

    If sizes is None, x and the result are [steps, batch, width], and no number of the graph depends on steps or batch.
    If h and c are None, they are zeros. The noise is xi if given, else the seed's, else the expectation.
    """
    if path in ("cpu", "triton"):
        dtype = working_dtype(x.dtype) if path == "cpu" else x.dtype
        own_x, own_h, own_c, *own = _in_dtype(dtype, (x, h, c, *weights))
        rules = _rules_in_dtype(dtype, rules)
        run: Any = gpu_registration.layer
        if path == "cpu":  # the eager function takes no symbolic sizes
            eager = not traced() and plain(own_x, own_h, own_c, *own, *rules[:5])
            run = cpu.layer if eager else cpu_registration.layer
        results = run(kind, own_x, sizes, own_h, own_c, LayerWeights(*own), seed, noise, reverse, rules)
        y, h_n, c_n = results if x.dtype is results[0].dtype else _in_dtype(x.dtype, results)
        return y, h_n, c_n if kind == "lstm" else None
    output, w_hr = weights.w_hh.shape[1], weights.w_hr
    hidden = output if w_hr is None else w_hr.shape[1]
    if h is None:
        batch = x.shape[1] if sizes is None else sizes[0]
        h = x.new_zeros(batch, output)
        c = x.new_zeros(batch, hidden) if kind == "lstm" else None
    if xi is None and seed is not None and sizes is not None:
        positions = recurrent_positions(sizes, x.device, rules.first_step, rules.rows)
        xi = recurrent_normal(seed, *positions, NONLINEARITIES[kind], hidden, working_dtype(x.dtype))
    dtype = working_dtype(x.dtype)
    wide_x, wide_h, wide_c, wide_xi, *wide = _in_dtype(dtype, (x, h, c, xi, *weights))
    own_weights, rules = LayerWeights(*wide), _rules_in_dtype(dtype, rules)
    with torch.autocast(x.device.type, enabled=False) if _autocast(x) else contextlib.nullcontext():
        if sizes is None:
            results = scan.layer(kind, wide_x, wide_h, wide_c, own_weights, noise, reverse, rules)
        else:
            results = reference.layer(
                kind, wide_x, sizes, wide_h, wide_c, own_weights, wide_xi, noise, reverse, rules
            )  # fmt: skip
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


def _rules_in_dtype(dtype: torch.dtype, rules: StateRules) -> StateRules:
    if rules.reset_h is None:
        return rules
    reset_h, reset_c = _in_dtype(dtype, (rules.reset_h, rules.reset_c))
    return rules._replace(reset_h=reset_h, reset_c=reset_c)


def run_cell(
    kind: str, a: Tensor, recurrent: Tensor | None, h: Tensor, c: Tensor | None, p: Tensor | None, noise: CellNoise, *,
    seed: Tensor | None, xi: Tensor | None, backend: str, first_step: int = 0, rows: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Run the pointwise part of one step with the chosen backend, with the shapes of :func:`reference.cell`.

    The noise of a seed is that of step `first_step` and of the given rows, as in :class:`StateRules`.
    """
    for name, given in (("h", h), ("c", c), ("p", p), ("xi", xi)):
        if given is not None and not given.is_floating_point():
            raise TypeError(f"{name} must be real floating point, not {given.dtype}")
    dtype = working_dtype(a.dtype)
    choose = backends.choose_uncached if torch.compiler.is_compiling() else backends.choose
    path = choose("auto" if xi is not None else backend, a.device, xi is not None, transformed())
    if traced() and xi is None and seed is None:
        path = _exported(path, backend)
    wide_a, wide_h = a.to(dtype), h.to(dtype)
    wide_q, wide_c, wide_p = (None if t is None else t.to(dtype) for t in (recurrent, c, p))
    if path in ("cpu", "triton") and a.numel() > 0:
        at = {} if seed is None else {"first_step": first_step, "rows": rows}  # without noise no position matters
        new_h, new_c = cell(kind, wide_a, wide_q, wide_h, wide_c, wide_p, seed, noise, **at)
    else:
        check_cell(kind, wide_a, wide_p, seed, noise, recurrent=wide_q, h=wide_h, c=wide_c)
        count, hidden = NONLINEARITIES[kind], a.shape[1] // GATES[kind]
        if xi is None and seed is not None:
            positions = recurrent_positions([len(a)], a.device, first_step, rows)
            xi = recurrent_normal(seed, *positions, count, hidden, dtype)
        new_h, new_c = reference.cell(
            kind, wide_a, wide_q, wide_h, wide_c, None if wide_p is None else wide_p.reshape(count, hidden),
            None if xi is None else xi.to(dtype), noise,
        )  # fmt: skip
    return new_h.to(a.dtype), new_c.to(a.dtype) if kind == "lstm" and new_c is not None else None
