"""The layer and the cell by the C kernel: float32 on a CPU, hard functions, no projection."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from noisyact.ops import native
from noisyact.ops.native.unit import Unit, contiguous
from noisyact.ops.recurrent.checks import check_sizes
from noisyact.ops.recurrent.reference import GATES, NONLINEARITIES, CellNoise
from noisyact.pairs import HardPair

__all__ = ["Call", "cell_backward", "cell_forward", "layer_backward", "layer_forward"]

_KINDS = {"lstm": 0, "gru": 1, "rnn_tanh": 2, "rnn_relu": 2}


class _Cell(ctypes.Structure):
    """`cell` in cells.h."""

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
    """`layer` in layer.h."""

    _fields_ = (
        ("cell", _Cell),
        ("reverse", ctypes.c_int32),
        ("steps", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("sizes", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("keep", ctypes.c_int32),
    )


_unit = functools.lru_cache(maxsize=64)(Unit.of)


@functools.lru_cache(maxsize=64)
def _steps(sizes: tuple[int, ...]) -> tuple[int, Any, Any]:
    """How many rows there are, and the rows and the first row of each step as C arrays."""
    check_sizes(sizes)
    array = ctypes.c_int64 * len(sizes)
    return sum(sizes), array(*sizes), array(*itertools.accumulate(sizes[:-1], initial=0))


@dataclasses.dataclass
class Call:
    """The settings of a call. Numbers are read here, once: backward uses the seed and the scales of the forward pass.

    It holds no address of a tensor. Storage may be replaced between forward and backward, so each function below takes
    the tensors that it needs.
    """

    kind: str
    noise: CellNoise
    seed: Tensor | None
    hidden: int
    sizes: Sequence[int]
    """Rows at each step."""
    reverse: bool = False
    keep: bool = True
    """Whether backward will come."""

    def __post_init__(self) -> None:
        state_pair, gate_pair = self.noise.state_pair(self.kind), self.noise.gate_pair()
        if not (isinstance(state_pair, HardPair) and isinstance(gate_pair, HardPair)):
            raise ValueError("hard=False: the C kernel has the hard functions alone")
        self.gates, self.nonlinearities = GATES[self.kind], NONLINEARITIES[self.kind]
        self.batch = self.sizes[0]
        self.rows, self._sizes, self._offsets = _steps(tuple(self.sizes))
        drawn = self.seed is not None
        self.structure = _Layer(
            _Cell(
                _KINDS[self.kind],
                self.gates,
                self.nonlinearities,
                _unit(self.noise.gate, gate_pair, float(self.noise.gate_scale), drawn),
                _unit(self.noise.state, state_pair, float(self.noise.state_scale), drawn),
                0 if self.seed is None else int(self.seed),
                self.hidden,
            ),
            self.reverse,
            len(self.sizes),
            self.batch,
            ctypes.addressof(self._sizes),
            ctypes.addressof(self._offsets),
            self.keep,
        )

    @property
    def width(self) -> int:
        """Columns of dgates: the GRU has one more, its candidate's input side."""
        return (4 if self.kind == "gru" else self.gates) * self.hidden


def _p(call: Call, p: Tensor | None) -> Tensor:
    """p as C takes it; ones stand for None."""
    return torch.ones(call.nonlinearities * call.hidden) if p is None else contiguous(p)


def _run(name: str, call: Call, p: Tensor, candidate_bias: Tensor | None, *arguments: Tensor | int | None) -> None:
    # Forward is the first to use a call. Two backward passes over it may run in two threads: each has its own copy.
    structure = call.structure if name == "noisyact_recurrent_forward" else _Layer.from_buffer_copy(call.structure)
    tensors = (p, candidate_bias, *arguments)
    cell = structure.cell
    cell.p, cell.bias, *passed = [a.data_ptr() if isinstance(a, Tensor) else a for a in tensors]
    if 0 in passed:
        _check_memory(tensors)
    if native.function(name, 1 + len(passed))(ctypes.addressof(structure), *passed, native.threads()):
        raise MemoryError(f"{name}: no memory for {call.rows} rows of {call.hidden} units")


def _check_memory(tensors: Sequence[Tensor | int | None]) -> None:
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.numel() and not tensor.data_ptr():
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} has no memory: its storage was freed")


@functools.lru_cache(maxsize=256)
def _plan(kind: str, hidden: int, size: int) -> tuple[bool, int, int]:
    """Whether the input is projected step by step, and the floats that W_hh and W_ih take when packed."""
    library, layer = native.loaded(), _Layer(_Cell(_KINDS[kind], GATES[kind], hidden=hidden))
    library.noisyact_recurrent_packed_size.restype = ctypes.c_int64
    room = [library.noisyact_recurrent_packed_size(ctypes.byref(layer), ctypes.c_int64(n)) for n in (hidden, size)]
    together = bool(library.noisyact_recurrent_together(ctypes.byref(layer), ctypes.c_int64(size)))
    return together, room[0], room[1]


def layer_forward(
    call: Call, x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None, p: Tensor | None,
    h0: Tensor | None, c0: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """Run the layer over x, [rows, input]; every tensor contiguous. First states of None are zeros.

    Returns: every h, [rows, H]; and for backward the pre-activations, [rows, gates * H], and the LSTM's every c or the
    GRU's recurrent parts, [rows, H]. Without backward only the last c, [batch, H], is kept.
    """
    size = x.shape[1]
    together, room_hh, room_ih = _plan(call.kind, call.hidden, size)
    h = torch.empty(call.rows, call.hidden)
    if call.keep:
        extra = torch.empty(call.rows if call.gates > 1 else 0, call.hidden)
    else:
        extra = torch.zeros(call.batch, call.hidden) if c0 is None else c0.clone()
    gates = torch.empty(call.rows, call.gates * call.hidden) if call.keep or not together else None
    packed = torch.empty(room_hh + room_ih if together else room_hh)
    candidate_bias = b_hh[2 * call.hidden :] if call.kind == "gru" and b_hh is not None else None
    _run(
        "noisyact_recurrent_forward", call, _p(call, p), candidate_bias, x, size, w_ih, w_hh, b_ih, b_hh, packed, gates,
        extra, h, h0, c0,
    )  # fmt: skip
    return h, gates, extra


def layer_backward(
    call: Call, gates: Tensor, extra: Tensor, h: Tensor, w_hh: Tensor, p: Tensor | None, h0: Tensor | None,
    c0: Tensor | None, dh: Tensor, carry: Tensor, wants_h0: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Gradients: of the pre-activations, their sum over all rows, of p, of h0 through the weights. `carry` changes."""
    dgates = torch.empty(call.rows, call.width)
    dh0 = torch.empty(call.batch, call.hidden) if wants_h0 else None
    sums = torch.empty(call.nonlinearities * call.hidden + call.width)
    packed = torch.empty(_plan(call.kind, call.hidden, 0)[1])
    _run(
        "noisyact_recurrent_backward", call, _p(call, p), None, w_hh, packed, gates, extra, h, h0, c0, dh, carry,
        dgates, sums, dh0,
    )  # fmt: skip
    count = call.nonlinearities * call.hidden
    dp, db = sums.split_with_sizes([count, call.width])
    return dgates, db, dp, dh0


def cell_forward(
    call: Call, gates: Tensor, product: Tensor | None, h: Tensor | None, c: Tensor | None, p: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One step whose products are done. Returns the new h, and the LSTM's new c or the GRU's recurrent part."""
    new_h = torch.empty(call.batch, call.hidden)
    extra = torch.zeros(call.batch, call.hidden)  # an RNN writes nothing here, and torch compares what it returns
    _run(
        "noisyact_cell_forward", call, _p(call, p), None, gates, product, new_h if h is None else h,
        new_h if c is None else c, extra, new_h,
    )  # fmt: skip
    return new_h, extra


def cell_backward(
    call: Call, gates: Tensor, extra: Tensor, h: Tensor | None, c: Tensor | None, p: Tensor | None, dh: Tensor,
    carry: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of the pre-activations, and of p from each row; `carry` is changed as in the layer."""
    dgates = torch.empty(call.batch, call.width)
    partial = torch.zeros(call.batch, call.nonlinearities * call.hidden)
    _run(
        "noisyact_cell_backward", call, _p(call, p), None, gates, carry if h is None else h, carry if c is None else c,
        extra, dh, carry, dgates, partial,
    )  # fmt: skip
    return dgates, partial
