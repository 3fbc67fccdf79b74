"""The launches of the GPU kernels for one recurrent layer in one direction, and the buffers they write."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noisyact.ops.recurrent.gpu.backward import backward_kernel
from noisyact.ops.recurrent.gpu.call import StackCall, extra_rows
from noisyact.ops.recurrent.gpu.exchange import exchange_buffer
from noisyact.ops.recurrent.gpu.forward import forward_kernel
from noisyact.ops.recurrent.gpu.plan import Plan, Sizes, backward_plan, backward_sizes, processors
from noisyact.ops.recurrent.gpu.rules import NO_RULES, RULES_FLAGS, KernelRules, kernel_rules
from noisyact.ops.recurrent.gpu.settings import functions
from noisyact.ops.recurrent.gpu.steps.cublas import ProductsAsCudnn
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES, CellNoise, LayerWeights
from noisyact.ops.triton.launch import Launcher

__all__ = [
    "Backward", "BackwardBuffers", "Buffers", "Forward", "backward_buffers", "check_alarm",
    "forward_buffers", "layer_backward", "layer_forward", "rules_of",
]  # fmt: skip


_FORWARD_FLAGS = (
    "REVERSE", "PACKED", "SINGLE", "HAS_STATE", "HAS_BIAS", "HAS_P", "KEEP", "KEEP_SCALES", "PRODUCT_MULTIPLE",
    *RULES_FLAGS,
)  # fmt: skip
_BACKWARD_FLAGS = (
    "REVERSE", "PACKED", "SINGLE", "HAS_STATE", "HAS_P", "HAS_DY", "HAS_DHN", "HAS_DCN", "WANTS_STATE",
    "PRODUCTS_MULTIPLE", "WANTS_X", "SEEN", "WANTS_RESET", *RULES_FLAGS,
)  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _launcher(
    kernel: Any, kind: str, state: Any, gate: Any, hard: bool, draw: bool, plan: Plan, by_value: bool, precision: str,
    dtypes: tuple, flags: tuple[int, ...],
) -> Launcher:  # fmt: skip
    names = _BACKWARD_FLAGS if kernel is backward_kernel else _FORWARD_FLAGS
    constants = functions(kind, state, gate, hard, draw) | dict(zip(names, flags, strict=True)) | {
        "BB": plan.rows, "BU": plan.units, "BK": plan.depth, "SLICES": plan.slices, "RESIDENT": plan.resident,
        "ALONE": plan.alone, "BY_VALUE": by_value, "STAGES": plan.stages, "PRECISION": precision,
        "num_warps": plan.warps, "launch_cooperative_grid": True,
    }  # fmt: skip
    if kernel is backward_kernel:
        constants["TEAM"] = plan.team
    return Launcher(kernel, constants)


def _precision() -> str:
    """TF32 if cuDNN may use it, else three TF32 products, whose sum is as exact as a float32 product and far faster."""
    return "tf32" if torch._C._get_cudnn_allow_tf32() else "tf32x3"


@functools.cache
def _alarm() -> Tensor:
    """An integer in host memory that the kernels can write."""
    return torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=torch.cuda.is_available())


@functools.cache
def _alarm_number() -> ctypes.c_int32:
    """The same integer: reading it takes the host less time than an operation of torch."""
    return ctypes.c_int32.from_address(_alarm().data_ptr())


def check_alarm() -> None:
    """Raise an error if an earlier kernel gave up waiting."""
    if _alarm_number().value:
        _alarm_number().value = 0
        raise RuntimeError(
            "a recurrent GPU kernel gave up waiting for its other programs; the results since the last check are NaN. "
            "Use backend='reference' on this device"
        )


class Buffers(NamedTuple):
    """The tensors that the forward kernels of all layers write, besides their outputs for each row."""

    h_n: Tensor
    """[layers, batch, H], the final h."""
    c_n: Tensor | None
    """[layers, batch, H], the LSTM's final c."""
    exchange: Tensor
    """[layers, numbers], int32: the programs of a launch exchange h through it."""


class BackwardBuffers(NamedTuple):
    """The tensors that the backward kernels of all layers write."""

    dgates: Tensor
    """[rows, gates H], the gradients of the pre-activations; for the GRU those of W_ih x, then those of W_hh h. All
    layers share this tensor: a layer's gradients have been used before the next layer overwrites them.
    """
    sums: Tensor
    """The sums over each block of the batch, float32. All layers share this tensor."""
    gradients: Sequence[Tensor]
    """The gradients of p, b_ih and b_hh of each layer in turn. Without p its gradient is empty."""
    exchange: Tensor
    """[layers, numbers], int32: the programs of a launch exchange gradients through it."""
    dh0: Tensor | None
    """[layers, batch, H], the gradient of the initial h; None if it is not needed."""
    dc0: Tensor | None
    """[layers, batch, H], the gradient of the LSTM's initial c; None if it is not needed."""
    dreset_h: Tensor | None = None
    """[layers, batch, H], the gradient of the h after resets; None if it is not needed."""
    dreset_c: Tensor | None = None
    """[layers, batch, H], the gradient of the LSTM's c after resets; None if it is not needed."""


class Forward(NamedTuple):
    """The settings and tensors that the layers of a forward call share."""

    call: StackCall
    plan: Plan
    sizes: Sizes
    h0: Tensor | None
    """[layers, batch, H]; None for zeros."""
    c0: Tensor | None
    """[layers, batch, H]; None for zeros."""
    keep: bool
    """Whether backward will follow."""
    kept: CellNoise | None
    """Receives the scales that the kernels used; None if they are not needed."""
    buffers: Buffers
    rules: Sequence[KernelRules] | None
    """One for each layer; None for layers without rules."""
    wants_x: bool = False
    """Whether the gradient of the first layer's input will be needed."""


class Backward(NamedTuple):
    """The settings and tensors that the layers of a backward call share."""

    call: StackCall
    plan: Plan
    sizes: Sizes
    h0: Tensor | None
    """[layers, batch, H]; None for zeros."""
    c0: Tensor | None
    """[layers, batch, H]; None for zeros."""
    dh_n: Tensor | None
    """[layers, batch, H], the gradient of the final h."""
    dc_n: Tensor | None
    """[layers, batch, H], the gradient of the LSTM's final c."""
    wants_h0: bool
    buffers: BackwardBuffers
    rules: Sequence[KernelRules] | None
    """One for each layer; None for layers without rules."""


def rules_of(call: StackCall, hidden: int) -> Sequence[KernelRules] | None:
    """The rules of the layers of a call for the kernels; None for layers without rules."""
    if call.rules is None:
        return None
    return [kernel_rules(call.kind, own, call.batch, hidden) for own in call.rules]


def forward_buffers(kind: str, like: Tensor, layers: int, batch: int, hidden: int, sizes: Sizes) -> Buffers:
    """Buffers for stacked layers."""
    h_n = like.new_empty(layers, batch, hidden)
    c_n = like.new_empty(layers, batch, hidden) if kind == "lstm" else None
    return Buffers(h_n, c_n, exchange_buffer(layers, sizes, like.device))


def backward_buffers(
    kind: str, like: Tensor, rows: int, layers: int, batch: int, hidden: int, has_p: bool, wants_h0: bool,
    wants_reset: bool, sizes: Sizes,
) -> BackwardBuffers:  # fmt: skip
    """Buffers for stacked layers."""
    gates = GATES[kind]
    dgates = like.new_empty(rows, (6 if kind == "gru" else gates) * hidden)
    count, wide = NONLINEARITIES[kind] if has_p else 0, 4 if gates > 1 else 1
    sums = torch.empty(sizes.blocks, (count + wide) * hidden, dtype=torch.float32, device=like.device)
    parts = [count * hidden, gates * hidden, gates * hidden]
    gradients = like.new_empty(layers * sum(parts)).split_with_sizes(parts * layers)
    dh0 = dc0 = None
    if wants_h0:
        dh0 = like.new_empty(layers, batch, hidden)
        dc0 = like.new_empty(layers, batch, hidden) if kind == "lstm" else None
    exchange = exchange_buffer(layers, sizes, like.device)
    if not wants_reset:
        return BackwardBuffers(dgates, sums, gradients, exchange, dh0, dc0)
    dreset_h = like.new_empty(layers, batch, hidden)
    dreset_c = like.new_empty(layers, batch, hidden) if kind == "lstm" else None
    return BackwardBuffers(dgates, sums, gradients, exchange, dh0, dc0, dreset_h, dreset_c)


def layer_forward(
    run: Forward, index: int, x: Tensor, rows: int, weights: LayerWeights, in_launch: bool, form: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer, like reference.layer with xi from the seed. The final h and c are in the buffers.

    Args:
        index: the layer's index in the states and buffers.
        x: [rows, input]; with `in_launch` contiguous, and of any leading dimensions.
        weights: contiguous tensors.
        in_launch: whether the launch also computes the input's product.
        form: the leading dimensions of the output: the number of rows, or steps and batch.

    Returns: h at every step; and for backward the pre-activations, and the LSTM's c or the GRU's W_hn h + b_hn.
    """
    (kind, noise, seeds, steps, batch, offsets, _, reverse, given, _), plan, sizes, h0, c0, keep, kept, buffers, *_ = (
        run
    )
    rules = NO_RULES if run.rules is None else run.rules[index]
    w_ih, w_hh, b_ih, b_hh, p, _ = weights
    seed, hidden, gates = seeds[index], w_hh.shape[1], GATES[kind]
    h_n, c_n, exchange = buffers
    exchange = exchange if plan.resident else exchange[index]
    inputs, multiple, programs = 0, 0, sizes.programs * sizes.blocks
    if in_launch:
        inputs = x.shape[-1]
        multiple = math.gcd(8, hidden, inputs)
        a = x.new_empty(rows, gates * hidden)
        programs = plan.with_helpers(programs, [(rows, gates * hidden)], processors(x.device))
    else:
        with ProductsAsCudnn():
            a = torch.mm(x, w_ih.t())  # addmm has twice the host overhead; the kernel adds the biases instead
    lines = sizes.programs * sizes.blocks * plan.units * (4 if gates > 1 else 1)
    packed = None if plan.resident else x.new_empty(lines * sizes.padded)
    y = x.new_empty(*form, hidden)
    zoneout_c = 0.0 if given is None else given[index].zoneout_c
    count = extra_rows(kind, rows, zoneout_c) if keep else 0
    extra = x.new_empty(count, hidden)  # if empty, the kernel gets y instead: no memory has the address 0
    dtypes = (x.dtype, noise.state_scale.dtype, noise.gate_scale.dtype)
    kept_scales = (None, None) if kept is None else (kept.gate_scale, kept.state_scale)

    flags = (
        reverse, offsets is not None, plan.loads_single_units(hidden), h0 is not None, b_hh is not None, p is not None,
        keep, kept is not None, multiple, *rules.flags,
    )  # fmt: skip
    launcher = _launcher(
        forward_kernel, kind, noise.state, noise.gate, noise.hard, seed is not None, plan, sizes.by_value,
        _precision(), dtypes, flags,
    )  # fmt: skip
    if keep and launcher.is_new:
        _compile_backward_ahead(run, index, rows, x, weights)
    launcher(
        (programs,),
        (a, w_hh, packed, b_ih, b_hh, p, seed, noise.gate_scale, noise.state_scale, *kept_scales, h0, c0, offsets, y,
         extra if count else y, h_n, c_n, exchange, _alarm(), x if in_launch else None, w_ih if in_launch else None,
         *rules.tensors),
        (index, steps, batch, hidden, sizes.padded, sizes.programs, sizes.exchange, sizes.counters, inputs,
         *rules.numbers),
    )  # fmt: skip
    return y, a, extra


def layer_backward(
    run: Backward, index: int, dy: Tensor | None, kept: Sequence[Tensor], weights: LayerWeights, x: Tensor | None,
    seen: Tensor | None, wants_x: bool,
) -> tuple[Sequence[Tensor], Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients of p (empty without p), b_ih and b_hh; and, if x is given, those of W_ih, W_hh and x.

    The gradients of the pre-activations, of h0 and of c0 are in the buffers.

    Args:
        dy: the gradient of h at every step.
        kept: the results of :func:`layer_forward`.
        x: the input, if the launch also computes the products; else None.
        seen: [rows, H], receives the h that each recurrent product saw, if the rules change it; else None.
        wants_x: whether the gradient of x is needed.
    """
    (kind, noise, seeds, steps, batch, offsets, _, reverse, *_), plan, sizes, h0, c0, dh_n, dc_n, wants_h0, *_ = run
    rules, buffers = NO_RULES if run.rules is None else run.rules[index], run.buffers
    (y, a, extra), p, w_hh = kept, weights.p, weights.w_hh
    seed, hidden, gates = seeds[index], w_hh.shape[1], GATES[kind]
    dgates, sums, gradients, exchange, dh0, dc0, dreset_h, dreset_c = buffers
    exchange = exchange if plan.resident else exchange[index]
    gradients = gradients[3 * index : 3 * index + 3]
    out = gradients[0] if p is not None else gradients[1]
    packed = None
    if plan.team > 1:  # the team's float32 sums follow the weights
        lines = sizes.programs * sizes.blocks * plan.team * plan.units
        packed = y.new_empty(lines * (sizes.slice + plan.rows * 4 // y.element_size()))
    elif not plan.resident:
        packed = y.new_empty(sizes.programs * sizes.blocks * plan.units * gates * sizes.padded)
    w_ih = dw_ih = dw_hh = dx = None
    inputs, multiple, programs = 0, 0, sizes.programs * sizes.blocks
    if x is not None:
        inputs = x.shape[-1]
        multiple = math.gcd(8, hidden, inputs)
        dw_ih, dw_hh = x.new_empty(gates * hidden, inputs), x.new_empty(gates * hidden, hidden)
        w_ih, dx = (weights.w_ih, x.new_empty(x.shape)) if wants_x else (None, None)
        products = [(gates * hidden, inputs), (gates * hidden, hidden), *([(len(a), inputs)] if wants_x else ())]
        programs = plan.with_helpers(programs, products, processors(x.device))
    dtypes = (y.dtype, noise.state_scale.dtype, noise.gate_scale.dtype)

    rounds = steps + (wants_h0 or dreset_h is not None)
    flags = (
        reverse, offsets is not None, plan.loads_single_units(hidden), h0 is not None, p is not None, dy is not None,
        dh_n is not None, dc_n is not None, dh0 is not None, multiple, dx is not None, seen is not None,
        dreset_h is not None, *rules.flags,
    )  # fmt: skip
    _launcher(
        backward_kernel, kind, noise.state, noise.gate, noise.hard, seed is not None, plan, sizes.by_value,
        _precision(), dtypes, flags,
    )(
        (programs,),
        (a, extra if len(extra) else y, y, w_hh, packed, p, seed, noise.gate_scale, noise.state_scale, h0, c0, offsets,
         dy, dh_n, dc_n,
         dgates, dh0, dc0, sums, out, exchange, _alarm(), x, w_ih, dw_ih, dw_hh, dx, seen, dreset_h, dreset_c,
         *rules.tensors),
        (index, rounds, steps, batch, hidden, sizes.padded, sizes.slice, sizes.programs, sizes.exchange, sizes.counters,
         inputs, *rules.numbers),
    )  # fmt: skip
    return gradients, dw_ih, dw_hh, dx


def _compile_backward_ahead(run: Forward, index: int, rows: int, x: Tensor, weights: LayerWeights) -> None:
    """Compile the kernel of :func:`layer_backward` in another thread while that of :func:`layer_forward` is compiled.

    The guess is that y will have a gradient, and the final state none. Otherwise backward compiles another kernel.
    """
    call, h0, c0 = run.call, run.h0, run.c0
    noise = call.noise if run.kept is None else run.kept
    kind, offsets, seed, dtype = call.kind, call.offsets, call.seeds[index], x.dtype
    w_ih, w_hh, _, _, p, _ = weights
    inputs, hidden, size = w_ih.shape[1], w_hh.shape[1], x.element_size()
    plan = backward_plan(kind, call.batch, hidden, size, processors(x.device))
    sizes = backward_sizes(plan, kind, call.steps, call.batch, hidden, size)
    rules = NO_RULES if run.rules is None else run.rules[index]
    reset_h = None if call.rules is None else call.rules[index].reset_h
    wants_state = h0 is not None and h0.requires_grad
    wants_reset = reset_h is not None and reset_h.requires_grad
    wants_weights = w_ih.requires_grad or w_hh.requires_grad
    wants_seen = wants_weights and rules.change_product()
    multiple, wants_x = 0, {False}
    if wants_weights and offsets is None and plan.writes_products(rows, inputs):
        # The layers above the first have the same forward kernel, but need the gradient of their input.
        multiple, wants_x = math.gcd(8, hidden, inputs), {run.wants_x or index > 0, run.wants_x or len(call.seeds) > 1}
    dtypes = (dtype, noise.state_scale.dtype, noise.gate_scale.dtype)

    def given(condition: Any) -> torch.dtype | None:
        return dtype if condition else None

    for wants in wants_x if plan.persistent else ():
        flags = (
            call.reverse, offsets is not None, plan.loads_single_units(hidden), h0 is not None, p is not None, True,
            False, False, wants_state, multiple, wants, wants_seen, wants_reset, *rules.flags,
        )  # fmt: skip
        launcher = _launcher(
            backward_kernel, kind, noise.state, noise.gate, noise.hard, seed is not None, plan, sizes.by_value,
            _precision(), dtypes, flags,
        )  # fmt: skip
        if not launcher.is_new:
            continue
        lstm, product = kind == "lstm", given(multiple)
        launcher.compile_ahead(
            (dtype, dtype, dtype, w_hh, given(plan.team > 1 or not plan.resident), p, seed, noise.gate_scale,
             noise.state_scale, h0, c0, offsets, dtype, None, None, dtype, given(wants_state),
             given(wants_state and lstm), torch.float32, dtype, torch.int32, _alarm(), product, given(wants), product,
             product, given(wants), given(wants_seen), given(wants_reset), given(wants_reset and lstm), *rules.tensors),
            (index, call.steps, call.steps, call.batch, hidden, sizes.padded, sizes.slice, sizes.programs,
             sizes.exchange, sizes.counters, inputs if multiple else 0, *rules.numbers),
        )  # fmt: skip
