"""The settings of a call of the C kernels, their structures, and the call itself."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from noisyact.ops import native
from noisyact.ops.native.unit import DoubleUnit, Unit
from noisyact.ops.recurrent.checks import check_sizes
from noisyact.ops.recurrent.cpu.rules import CallRules, RulesStructure
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES, PLAIN_STATE, CellNoise, LayerWeights, StateRules
from noisyact.pairs import HARD_SIGMOID, HARD_TANH, RELU

__all__ = ["LayerCall", "dropout_factors", "plan", "run"]

_KINDS = {"lstm": 0, "gru": 1, "rnn_tanh": 2, "rnn_relu": 2}


class _Weights(ctypes.Structure):
    """The structure `weights` of layer.h."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in LayerWeights._fields)


def _structures(unit: type[ctypes.Structure]) -> tuple[Any, Any]:
    """The structures `cell` of cells.h and `layer` of layer.h. The C code sets what is not set here."""

    class Cell(ctypes.Structure):
        _fields_ = (
            ("kind", ctypes.c_int32),
            ("gates", ctypes.c_int32),
            ("nonlinearities", ctypes.c_int32),
            ("gate", unit),
            ("state", unit),
            ("seed", ctypes.c_uint64),
            ("hidden", ctypes.c_int64),
            ("p", ctypes.c_void_p),
            ("bias", ctypes.c_void_p),
            ("rows", ctypes.c_void_p),
            ("first_step", ctypes.c_int64),
        )

    class Layer(ctypes.Structure):
        _fields_ = (
            ("cell", Cell),
            ("reverse", ctypes.c_int32),
            ("steps", ctypes.c_int64),
            ("batch", ctypes.c_int64),
            ("sizes", ctypes.c_void_p),
            ("offsets", ctypes.c_void_p),
            ("keep", ctypes.c_int32),
            ("projected", ctypes.c_int32),
            ("output", ctypes.c_int64),
            ("rules", ctypes.c_void_p),
        )

    return Cell, Layer


_STRUCTURES = {torch.float32: _structures(Unit), torch.float64: _structures(DoubleUnit)}
_SUFFIXES = {torch.float32: "", torch.float64: "_double"}
"""What the names of the C functions end with, for each dtype."""


@functools.lru_cache(maxsize=64)
def _steps(sizes: tuple[int, ...]) -> tuple[int, Any, Any]:
    """The number of rows, and the number of rows and the first row of each step as C arrays."""
    check_sizes(sizes)
    array = ctypes.c_int64 * len(sizes)
    return sum(sizes), array(*sizes), array(*itertools.accumulate(sizes[:-1], initial=0))


@functools.lru_cache(maxsize=64)
def _units(
    noise: CellNoise, kind: str, gate_scale: float, state_scale: float, drawn: bool, dtype: torch.dtype
) -> tuple[Any, Any]:
    """The sigmoid and the tanh as C structures. The scales in `noise` are None, to make it a cache key."""
    soft = not noise.hard and kind != "rnn_relu"  # the ReLU has no soft version
    unit = Unit if dtype is torch.float32 else DoubleUnit
    gate = unit.of(noise.gate, HARD_SIGMOID, gate_scale, drawn, "sigmoid" if soft else "piecewise")
    state_pair = RELU if kind == "rnn_relu" else HARD_TANH
    return gate, unit.of(noise.state, state_pair, state_scale, drawn, "tanh" if soft else "piecewise")


class LayerCall:
    """The settings of one call, without its tensors.

    The seed and the scales are read once, so that backward uses those of the forward pass. Addresses of tensors are not
    kept, because storage may be replaced between forward and backward.

    Args:
        sizes: the number of rows at each step.
        keep: whether backward will follow.
        output: the width of h if the layer has a projection.
        dtype: float32 or float64.
        rules: those for the state; their tensors are given to :func:`forward` and :func:`backward`.
    """

    def __init__(
        self, kind: str, noise: CellNoise, seed: Tensor | None, hidden: int, sizes: Sequence[int],
        reverse: bool = False, keep: bool = True, output: int | None = None, dtype: torch.dtype = torch.float32,
        rules: StateRules = PLAIN_STATE,
    ) -> None:  # fmt: skip
        cell_structure, layer_structure = _STRUCTURES[dtype]
        self.dtype = dtype
        self.output = hidden if output is None else output
        self.kind, self.hidden, self.sizes, self.reverse, self.keep = kind, hidden, sizes, reverse, keep
        self.gates, self.nonlinearities, self.batch = GATES[kind], NONLINEARITIES[kind], sizes[0]
        self.width = (4 if kind == "gru" else self.gates) * hidden
        """The number of columns of dgates. The GRU has an additional gate, the input's side of its candidate."""
        self.rows, self._sizes, self._offsets = _steps(tuple(sizes))
        self.rules = None if rules is PLAIN_STATE else CallRules(rules, sizes, self.output, hidden, dtype)
        self.zoned_c = self.rules is not None and self.rules.zoneout_c and kind == "lstm"
        self.extra_rows = 0 if self.gates == 1 else 2 * self.rows if self.zoned_c else self.rows
        state, gate, state_scale, gate_scale, hard = noise
        schemes = CellNoise(state, gate, None, None, hard)  # pyright: ignore[reportArgumentType]
        units = _units(schemes, kind, float(gate_scale), float(state_scale), seed is not None, dtype)
        self.structure = layer_structure(
            cell_structure(
                _KINDS[kind], self.gates, self.nonlinearities, *units, 0 if seed is None else int(seed), hidden
            ),
            reverse,
            len(sizes),
            self.batch,
            ctypes.addressof(self._sizes),
            ctypes.addressof(self._offsets),
            keep,
            False,
            self.output,
        )


def run(
    name: str, call: LayerCall, weights: Sequence[Tensor | None], rules: RulesStructure | None,
    *arguments: Tensor | int | None,
) -> None:  # fmt: skip
    """Call a C function with the layer, its weights in the order of LayerWeights (None means p = 1) and arguments."""
    *matrices, p, w_hr = weights
    if p is None:
        p = torch.ones(call.nonlinearities * call.hidden, dtype=call.dtype, device=native.CPU)
    tensors = (*matrices, p, w_hr, *arguments)
    passed = [a.data_ptr() if isinstance(a, Tensor) else a for a in tensors]
    if 0 in passed:
        _check_memory(tensors)
    structures = call.structure, _Weights(*passed[:6]), rules
    addresses = (None if structure is None else ctypes.addressof(structure) for structure in structures)
    function = native.function(name + _SUFFIXES[call.dtype], 3 + len(passed) - 6)
    if function(*addresses, *passed[6:], native.threads()):
        raise MemoryError(f"{name}: no memory for {call.rows} rows of {call.hidden} units")


def _check_memory(tensors: Sequence[Tensor | int | None]) -> None:
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.numel() and not tensor.data_ptr():
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} has no memory: its storage was freed")


@functools.lru_cache(maxsize=256)
def plan(kind: str, hidden: int, output: int, size: int, dtype: torch.dtype) -> tuple[bool, int, int]:
    """Whether the input is projected step by step, and the number of elements in all packed weights of each pass."""
    cell, layer = _STRUCTURES[dtype]
    structure = layer(cell(_KINDS[kind], GATES[kind], hidden=hidden), output=output)
    together = getattr(native.loaded(), "noisyact_recurrent_together" + _SUFFIXES[dtype])
    step_by_step = bool(together(ctypes.byref(structure), ctypes.c_int64(size)))
    packed, gates = functools.partial(_packed, dtype), GATES[kind]
    forward = packed(gates, hidden, output + (size if step_by_step else 0)) + packed(1, output, hidden)
    return step_by_step, forward, packed(1, output, gates * hidden) + packed(1, hidden, output)


def _packed(dtype: torch.dtype, gates: int, units: int, depth: int) -> int:
    """The number of elements in a packed weight, [gates * units, depth]."""
    cell, layer = _STRUCTURES[dtype]
    packed_size = getattr(native.loaded(), "noisyact_recurrent_packed_size" + _SUFFIXES[dtype])
    packed_size.restype = ctypes.c_int64
    return packed_size(ctypes.byref(layer(cell(gates=gates, hidden=units))), ctypes.c_int64(depth))


def dropout_factors(call: LayerCall, state: Sequence[Tensor | None]) -> Tensor | None:
    """The mask of the recurrent dropout, [batch, output]; None if there is none."""
    if call.rules is None or not call.rules.dropout:
        return None
    factors = torch.empty(call.batch, call.output, dtype=call.dtype, device=native.CPU)
    run("noisyact_recurrent_dropout", call, (None,) * 6, call.rules.structure(rows=state[3]), factors)
    return factors
