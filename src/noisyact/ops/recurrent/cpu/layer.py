"""The recurrent layer on a CPU by the C kernel: float32, hard or soft functions.

One call runs one layer in one direction, including the time loop. C kernels also compute the products over all steps:
the input's part, and the gradients of the weights and of the input. registration.py is for torch.compile.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from noisyact.ops import native
from noisyact.ops.matmul import matmul
from noisyact.ops.native.unit import Unit
from noisyact.ops.recurrent.checks import check_backward, check_sizes
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES, CellNoise, LayerWeights
from noisyact.pairs import HARD_SIGMOID, HARD_TANH, RELU

__all__ = ["LayerCall", "backward", "forward", "layer", "run"]

_KINDS = {"lstm": 0, "gru": 1, "rnn_tanh": 2, "rnn_relu": 2}


class _Weights(ctypes.Structure):
    """The structure `weights` of layer.h."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in LayerWeights._fields)


class _Cell(ctypes.Structure):
    """The structure `cell` of cells.h. The C code sets p and the bias."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("gates", ctypes.c_int32),
        ("nonlinearities", ctypes.c_int32),
        ("gate", Unit),
        ("state", Unit),
        ("seed", ctypes.c_uint64),
        ("hidden", ctypes.c_int64),
        ("p", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


class _Layer(ctypes.Structure):
    """The structure `layer` of layer.h. The C code sets `projected`."""

    _fields_ = (
        ("cell", _Cell),
        ("reverse", ctypes.c_int32),
        ("steps", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("sizes", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("keep", ctypes.c_int32),
        ("projected", ctypes.c_int32),
        ("output", ctypes.c_int64),
    )


@functools.lru_cache(maxsize=64)
def _steps(sizes: tuple[int, ...]) -> tuple[int, Any, Any]:
    """The number of rows, and the number of rows and the first row of each step as C arrays."""
    check_sizes(sizes)
    array = ctypes.c_int64 * len(sizes)
    return sum(sizes), array(*sizes), array(*itertools.accumulate(sizes[:-1], initial=0))


@functools.lru_cache(maxsize=64)
def _units(noise: CellNoise, kind: str, gate_scale: float, state_scale: float, drawn: bool) -> tuple[Unit, Unit]:
    """The sigmoid and the tanh as C structures. The scales in `noise` are None, to make it a cache key."""
    soft = not noise.hard and kind != "rnn_relu"  # the ReLU has no soft version
    gate = Unit.of(noise.gate, HARD_SIGMOID, gate_scale, drawn, "sigmoid" if soft else "piecewise")
    state_pair = RELU if kind == "rnn_relu" else HARD_TANH
    return gate, Unit.of(noise.state, state_pair, state_scale, drawn, "tanh" if soft else "piecewise")


class LayerCall:
    """The settings of one call, without its tensors.

    The seed and the scales are read once, so that backward uses those of the forward pass. Addresses of tensors are not
    kept, because storage may be replaced between forward and backward.

    Args:
        sizes: the number of rows at each step.
        keep: whether backward will follow.
        output: the width of h if the layer has a projection.
    """

    def __init__(
        self, kind: str, noise: CellNoise, seed: Tensor | None, hidden: int, sizes: Sequence[int],
        reverse: bool = False, keep: bool = True, output: int | None = None,
    ) -> None:  # fmt: skip
        self.output = hidden if output is None else output
        self.kind, self.hidden, self.sizes, self.reverse, self.keep = kind, hidden, sizes, reverse, keep
        self.gates, self.nonlinearities, self.batch = GATES[kind], NONLINEARITIES[kind], sizes[0]
        self.width = (4 if kind == "gru" else self.gates) * hidden
        """The number of columns of dgates. The GRU has an additional gate, the input's side of its candidate."""
        self.rows, self._sizes, self._offsets = _steps(tuple(sizes))
        state, gate, state_scale, gate_scale, hard = noise
        schemes = CellNoise(state, gate, None, None, hard)  # pyright: ignore[reportArgumentType]
        units = _units(schemes, kind, float(gate_scale), float(state_scale), seed is not None)
        self.structure = _Layer(
            _Cell(_KINDS[kind], self.gates, self.nonlinearities, *units, 0 if seed is None else int(seed), hidden),
            reverse,
            len(sizes),
            self.batch,
            ctypes.addressof(self._sizes),
            ctypes.addressof(self._offsets),
            keep,
            False,
            self.output,
        )


def run(name: str, call: LayerCall, weights: Sequence[Tensor | None], *arguments: Tensor | int | None) -> None:
    """Call a C function with the layer, its weights in the order of LayerWeights (None means p = 1) and arguments."""
    *matrices, p, w_hr = weights
    if p is None:
        p = torch.ones(call.nonlinearities * call.hidden)
    tensors = (*matrices, p, w_hr, *arguments)
    passed = [a.data_ptr() if isinstance(a, Tensor) else a for a in tensors]
    if 0 in passed:
        _check_memory(tensors)
    structure, rest = _Weights(*passed[:6]), passed[6:]
    function = native.function(name, 2 + len(rest))
    if function(ctypes.addressof(call.structure), ctypes.addressof(structure), *rest, native.threads()):
        raise MemoryError(f"{name}: no memory for {call.rows} rows of {call.hidden} units")


def _check_memory(tensors: Sequence[Tensor | int | None]) -> None:
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.numel() and not tensor.data_ptr():
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} has no memory: its storage was freed")


def _ready(tensors: Sequence[Tensor | None]) -> list[Any]:
    """The tensors, contiguous for the C kernels."""
    return [t if t is None else t.resolve_neg().contiguous() for t in tensors]


@functools.lru_cache(maxsize=256)
def _plan(kind: str, hidden: int, output: int, size: int) -> tuple[bool, int, int]:
    """Whether the input is projected step by step, and the number of floats in all packed weights of each pass."""
    structure = _Layer(_Cell(_KINDS[kind], GATES[kind], hidden=hidden), output=output)
    together = bool(native.loaded().noisyact_recurrent_together(ctypes.byref(structure), ctypes.c_int64(size)))
    gates = GATES[kind]
    forward = _packed(gates, hidden, output + (size if together else 0)) + _packed(1, output, hidden)
    return together, forward, _packed(1, output, gates * hidden) + _packed(1, hidden, output)


def _packed(gates: int, units: int, depth: int) -> int:
    """The number of floats in a packed weight, [gates * units, depth]."""
    packed_size = native.loaded().noisyact_recurrent_packed_size
    packed_size.restype = ctypes.c_int64
    return packed_size(ctypes.byref(_Layer(_Cell(gates=gates, hidden=units))), ctypes.c_int64(depth))


def layer(
    kind: str, x: Tensor, sizes: Sequence[int], h: Tensor | None, c: Tensor | None, weights: LayerWeights,
    seed: Tensor | None, noise: CellNoise, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute :func:`reference.layer` with xi from the seed. All tensors but the seed are float32.

    Args:
        sizes: the number of rows at each step.
        h: the initial h; None for zeros. The same holds for c.

    Returns: h at every step, the final h, and the final c (without rows except for the LSTM).
    """
    output, w_hr = weights.w_hh.shape[1], weights.w_hr
    hidden = output if w_hr is None else w_hr.shape[1]
    call = LayerCall(kind, noise, seed, hidden, sizes, reverse, torch.is_grad_enabled(), output)
    if call.keep:
        return _EagerLayer.apply(call, x, h, c, *weights)  # pyright: ignore[reportReturnType]
    return forward(call, x, h, c, weights)[:3]


def forward(
    call: LayerCall, x: Tensor, h0: Tensor | None, c0: Tensor | None, weights: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor, Tensor, Any, Tensor, Tensor]:
    """Run the layer over x, [rows, input].

    Returns: h at every step, [rows, output]; the final h and c; and for backward, at every step, the pre-activations,
    [rows, gates * H], the LSTM's c or the GRU's W_hn h + b_hn, [rows, H], and with a projection m = o tanh(c),
    [rows, H] (else without rows). Without `keep`, only the final c is stored.
    """
    x, h0, c0, *weights = _ready((x, h0, c0, *weights))
    size, hidden, keep = x.shape[1], call.hidden, call.keep
    together, packed_size, _ = _plan(call.kind, hidden, call.output, size)
    h = torch.empty(call.rows, call.output)
    m = torch.empty(0 if weights[5] is None else call.rows if keep else call.batch, hidden)
    if keep:
        extra = torch.empty(call.rows if call.gates > 1 else 0, hidden)
    else:
        extra = torch.zeros(call.batch, hidden) if c0 is None else c0.clone()
    gates = torch.empty(call.rows, call.gates * hidden) if keep or not together else None
    packed = torch.empty(packed_size)
    run(
        "noisyact_recurrent_forward", call, weights, x, size, packed, gates, extra,
        None if weights[5] is None else m, h, h0, c0,
    )  # fmt: skip
    last = _last_rows(call.sizes, call.reverse)
    if call.kind != "lstm":
        return h, h[last].clone(), h.new_empty(0, hidden), gates, extra, m
    return h, h[last].clone(), extra[last].clone() if keep else extra, gates, extra, m


def backward(
    call: LayerCall, gradients: Sequence[Tensor | None], kept: Sequence[Tensor], x: Tensor, h0: Tensor | None,
    c0: Tensor | None, weights: LayerWeights, wants_x: bool, wants_h0: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """The gradients of x, h0, c0, both weights, both biases, p and the projection.

    Args:
        gradients: the gradients of h at every step, of the final h and of the final c.
        kept: the first and the last three results of :func:`forward`.
    """
    kind, hidden, output = call.kind, call.hidden, call.output
    (dh, dh_n, dc_n), (h, gates, extra, m) = gradients, kept
    dh, dc_n, h0, c0, w_hh, p, w_hr = _ready((dh, dc_n, h0, c0, weights.w_hh, weights.p, weights.w_hr))
    dh = torch.zeros_like(h) if dh is None else dh
    if dh_n is not None:
        dh = dh.clone()
        dh[_last_rows(call.sizes, call.reverse)] += dh_n
    carry = torch.zeros(call.batch, hidden) if dc_n is None or kind != "lstm" else dc_n.clone()
    dgates, dh0 = torch.empty(call.rows, call.width), torch.empty(call.batch, output) if wants_h0 else None
    sums, dh_sum = torch.empty(call.nonlinearities * hidden + call.width), None if w_hr is None else torch.empty_like(h)
    packed = torch.empty(_plan(kind, hidden, output, 0)[2])
    run(
        "noisyact_recurrent_backward", call, (None, w_hh, None, None, p, w_hr), packed, gates, extra, h, h0, c0, dh,
        carry, dgates, sums, dh0, dh_sum,
    )  # fmt: skip
    dw_hr = None if dh_sum is None else matmul(dh_sum.t(), m)
    dp, db = sums.split_with_sizes([call.nonlinearities * hidden, call.width])
    recurrent_side = dgates[:, : 3 * hidden] if kind == "gru" else dgates
    dw_hh = _recurrent_weights(recurrent_side, h, h0, call.sizes, call.reverse)
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
    return dx, dh0, carry, dw_ih, dw_hh, db_ih, db_hh, dp, dw_hr


def _last_rows(sizes: Sequence[int], reverse: bool) -> Tensor | slice:
    """The row of each sequence's final h: in reverse that of step 0, else that of the sequence's last step."""
    batch, steps = sizes[0], len(sizes)
    if reverse:
        return slice(0, batch)
    if sizes[-1] == batch:
        return slice((steps - 1) * batch, steps * batch)
    rows = torch.tensor(sizes)
    offsets = rows.cumsum(0) - rows
    lengths = (rows[:, None] > torch.arange(batch)).sum(0)
    return offsets[lengths - 1] + torch.arange(batch)


def _recurrent_weights(dgates: Tensor, h: Tensor, first: Tensor | None, sizes: Sequence[int], reverse: bool) -> Tensor:
    """The gradient of W_hh: the product of every row's dgates with the previous h."""
    batch, rows = sizes[0], len(h)
    if sizes[-1] == batch:  # a rectangular batch: two slices, one step apart
        after, before, entry = slice(batch, None), slice(0, rows - batch), slice(0, batch)
        if reverse:
            after, before, entry = before, after, slice(rows - batch, None)
        gradient = matmul(dgates[after].t(), h[before])
        return gradient if first is None else gradient.add_(matmul(dgates[entry].t(), first))
    first = h.new_zeros(batch, h.shape[1]) if first is None else first
    offsets, parts = list(itertools.accumulate(sizes[:-1], initial=0)), []
    for t, size in enumerate(sizes):
        other = t + 1 if reverse else t - 1
        known = min(size, sizes[other]) if 0 <= other < len(sizes) else 0
        if known:
            parts.append(h[offsets[other] : offsets[other] + known])
        parts.append(first[known:size])
    return matmul(dgates.t(), torch.cat(parts))


def gradients_asked_for(
    gradients: Sequence[Any], wants_x: bool, wants_h0: bool, c0: Tensor | None, weights: LayerWeights
) -> tuple:
    """The results of :func:`backward`, with None for tensors that need no gradient or do not exist."""
    dx, dh0, dc0, dw_ih, dw_hh, db_ih, db_hh, dp, dw_hr = gradients
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
        x, h0, c0, *weights = tensors
        h, h_n, c_n, gates, extra, m = forward(call, x, h0, c0, weights)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(h, gates, extra, m, *tensors)
        ctx.call = call
        return h, h_n, c_n

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Compute the gradients. The kernels do not support second derivatives."""
        check_backward("layer", grad_outputs)
        h, gates, extra, m, x, h0, c0, *tensors = ctx.saved_tensors
        weights = LayerWeights(*tensors)
        _, wants_x, wants_h0, *_ = ctx.needs_input_grad
        gradients = backward(ctx.call, grad_outputs, (h, gates, extra, m), x, h0, c0, weights, wants_x, wants_h0)
        return None, *gradients_asked_for(gradients, wants_x, wants_h0, c0, weights)
