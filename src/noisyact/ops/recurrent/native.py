"""The layer and the cell by the C kernel: float32 on a CPU, hard functions, no projection."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools

import torch
from torch import Tensor

from noisyact.ops import native
from noisyact.ops.native.unit import Unit, address
from noisyact.ops.recurrent.reference import GATES, NONLINEARITIES, CellNoise
from noisyact.pairs import HardPair

__all__ = ["Call", "cell_backward", "cell_forward", "layer_backward", "layer_forward", "pack"]

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
    """`layer` in native.c."""

    _fields_ = (
        ("cell", _Cell),
        ("reverse", ctypes.c_int32),
        ("steps", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("sizes", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("keep", ctypes.c_int32),
    )


@dataclasses.dataclass
class Call:
    """What a call needs beside its tensors. The structure holds addresses: keep this object while C uses it."""

    kind: str
    noise: CellNoise
    seed: Tensor | None
    p: Tensor | None
    bias: Tensor | None
    hidden: int
    sizes: Tensor
    """Rows at each step, int64."""
    reverse: bool = False
    keep: bool = True
    """Whether backward will come."""

    def __post_init__(self) -> None:
        state_pair, gate_pair = self.noise.state_pair(self.kind), self.noise.gate_pair()
        assert isinstance(state_pair, HardPair)
        assert isinstance(gate_pair, HardPair)
        self.gates, self.nonlinearities = GATES[self.kind], NONLINEARITIES[self.kind]
        self.filled_p = torch.ones(self.nonlinearities * self.hidden) if self.p is None else contiguous(self.p)
        sizes = self.sizes.tolist()
        self.batch, self.rows = sizes[0], sum(sizes)
        steps = ctypes.c_int64 * len(sizes)
        self._sizes, self._offsets = steps(*sizes), steps(*itertools.accumulate(sizes[:-1], initial=0))
        drawn = self.seed is not None
        self.structure = _Layer(
            cell=_Cell(
                kind=_KINDS[self.kind],
                gates=self.gates,
                nonlinearities=self.nonlinearities,
                gate=Unit.of(self.noise.gate, gate_pair, float(self.noise.gate_scale), drawn),
                state=Unit.of(self.noise.state, state_pair, float(self.noise.state_scale), drawn),
                seed=0 if self.seed is None else int(self.seed),
                hidden=self.hidden,
                p=self.filled_p.data_ptr(),
                bias=None if self.bias is None else self.bias.data_ptr(),
            ),
            reverse=self.reverse,
            steps=len(sizes),
            batch=self.batch,
            sizes=ctypes.addressof(self._sizes),
            offsets=ctypes.addressof(self._offsets),
            keep=self.keep,
        )

    @property
    def width(self) -> int:
        """Columns of dgates: the GRU has one more, its candidate's input side."""
        return (4 if self.kind == "gru" else self.gates) * self.hidden

    def zeros(self) -> Tensor:
        """A row of zeros as long as any that is read."""
        return torch.zeros(self.width)


def contiguous(tensor: Tensor) -> Tensor:
    """The tensor as C takes it."""
    return tensor.detach().to(torch.float32).contiguous()


def _run(name: str, call: Call, *arguments: Tensor | int | None) -> None:
    library = native.library()
    assert library is not None
    passed = [ctypes.c_int64(a) if isinstance(a, int) else address(a) for a in arguments]
    getattr(library, name)(ctypes.byref(call.structure), *passed, torch.get_num_threads())


def _room(call: Call, depth: int) -> Tensor:
    library = native.library()
    assert library is not None
    size = library.noisyact_recurrent_packed_size
    size.restype = ctypes.c_int64
    return torch.empty(size(ctypes.byref(call.structure), ctypes.c_int64(depth)))


def pack(call: Call, w_ih: Tensor, w_hh: Tensor) -> tuple[Tensor, Tensor]:
    """The weights as the forward kernel takes them: in the order in which it reads them, or W_ih in its own.

    A large W_ih is used once, for all steps at a time; the kernel then packs it by parts that stay in the cache.
    """
    w_ih, w_hh = contiguous(w_ih), contiguous(w_hh)
    return (_packed(call, w_ih) if _together(call, w_ih.shape[1]) else w_ih), _packed(call, w_hh)


def _packed(call: Call, weight: Tensor) -> Tensor:
    packed = _room(call, weight.shape[1])
    _run("noisyact_recurrent_pack_forward", call, weight, weight.shape[1], packed)
    return packed


def _together(call: Call, size: int) -> bool:
    library = native.library()
    assert library is not None
    return bool(library.noisyact_recurrent_together(ctypes.byref(call.structure), ctypes.c_int64(size)))


def layer_forward(
    call: Call, x: Tensor, packed: tuple[Tensor, Tensor], bias: Tensor | None, h0: Tensor | None, c0: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the layer over x, [rows, input].

    Returns: every h, [rows, H]; and for backward the pre-activations, [rows, gates * H], and the LSTM's every c or the
    GRU's recurrent parts, [rows, H]. Without backward only the last c, [batch, H], is kept.
    """
    h = torch.empty(call.rows, call.hidden)
    w_ih, w_hh = packed
    if call.keep:
        extra = torch.empty(call.rows if call.gates > 1 else 0, call.hidden)
    else:
        extra = torch.zeros(call.batch, call.hidden) if c0 is None else c0.clone()
    gates = torch.empty(call.rows if call.keep or not _together(call, x.shape[1]) else 0, call.gates * call.hidden)
    _run("noisyact_recurrent_forward", call, x, x.shape[1], w_ih, bias, w_hh, call.zeros(), gates, extra, h, h0, c0)
    return h, gates, extra


def layer_backward(
    call: Call, gates: Tensor, extra: Tensor, h: Tensor, w_hh: Tensor, h0: Tensor | None, c0: Tensor | None,
    dh: Tensor, carry: Tensor, wants_h0: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Gradients of the pre-activations, of p and of h0 (its part through the weights); `carry` changes too."""
    dgates = torch.empty(call.rows, call.width)
    dh0 = torch.empty(call.batch, call.hidden) if wants_h0 else None
    partial = torch.zeros(max(1, -(-call.batch // 2)), call.nonlinearities * call.hidden)
    packed = _room(call, call.hidden)
    _run("noisyact_recurrent_pack_backward", call, w_hh, packed)
    _run(
        "noisyact_recurrent_backward", call, packed, call.zeros(), gates, extra, h, h0, c0, dh, carry, dgates, partial,
        dh0,
    )  # fmt: skip
    return dgates, partial.sum(0), dh0


def cell_forward(
    call: Call, gates: Tensor, product: Tensor | None, h: Tensor | None, c: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One step whose products are done. Returns the new h, and the LSTM's new c or the GRU's recurrent part."""
    new_h = torch.empty(call.batch, call.hidden)
    extra = torch.zeros(call.batch, call.hidden)  # an RNN writes nothing here, and torch compares what it returns
    _run(
        "noisyact_cell_forward",
        call,
        gates,
        product,
        new_h if h is None else h,
        new_h if c is None else c,
        extra,
        new_h,
    )
    return new_h, extra


def cell_backward(
    call: Call, gates: Tensor, extra: Tensor, h: Tensor | None, c: Tensor | None, dh: Tensor, carry: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the pre-activations and of p; `carry` is changed as in the layer."""
    dgates = torch.empty(call.batch, call.width)
    partial = torch.zeros(call.batch, call.nonlinearities * call.hidden)
    _run(
        "noisyact_cell_backward", call, gates, carry if h is None else h, carry if c is None else c, extra, dh, carry,
        dgates, partial,
    )  # fmt: skip
    return dgates, partial.sum(0)
