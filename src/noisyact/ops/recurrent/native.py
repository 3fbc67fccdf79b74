"""The layer and the cell by the C kernel: float32 on a CPU, hard functions, no projection."""

from __future__ import annotations

import ctypes
import dataclasses

import torch
from torch import Tensor

from noisyact.ops import native
from noisyact.ops.native.unit import Unit, address
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
    """`layer` in native.c."""

    _fields_ = (
        ("cell", _Cell),
        ("reverse", ctypes.c_int32),
        ("steps", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("sizes", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
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

    def __post_init__(self) -> None:
        state_pair, gate_pair = self.noise.state_pair(self.kind), self.noise.gate_pair()
        assert isinstance(state_pair, HardPair)
        assert isinstance(gate_pair, HardPair)
        self.gates, self.nonlinearities = GATES[self.kind], NONLINEARITIES[self.kind]
        self.filled_p = torch.ones(self.nonlinearities * self.hidden) if self.p is None else contiguous(self.p)
        self.offsets = self.sizes.cumsum(0) - self.sizes
        self.batch = int(self.sizes.max()) if len(self.sizes) else 0
        self.rows = int(self.sizes.sum())
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
            steps=len(self.sizes),
            batch=self.batch,
            sizes=self.sizes.data_ptr(),
            offsets=self.offsets.data_ptr(),
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


def _run(name: str, call: Call, *tensors: Tensor | None) -> None:
    library = native.library()
    assert library is not None
    addresses = [address(tensor) for tensor in tensors]
    getattr(library, name)(ctypes.byref(call.structure), *addresses, torch.get_num_threads())


def _pack(call: Call, w_hh: Tensor, direction: str) -> Tensor:
    library = native.library()
    assert library is not None
    size = library.noisyact_recurrent_packed_size
    size.restype = ctypes.c_int64
    packed = torch.empty(size(ctypes.byref(call.structure)))
    _run(f"noisyact_recurrent_pack_{direction}", call, w_hh, packed)
    return packed


def layer_forward(
    call: Call, gates: Tensor, w_hh: Tensor, h0: Tensor | None, c0: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Run the layer over `gates`, [rows, gates * H], the input's part, which becomes the whole pre-activations.

    Returns: every h and, for backward, the LSTM's every c or the GRU's recurrent parts, both [rows, H].
    """
    h = torch.empty(call.rows, call.hidden)
    extra = torch.empty(call.rows if call.gates > 1 else 0, call.hidden)
    packed = _pack(call, w_hh, "forward")
    _run("noisyact_recurrent_forward", call, packed, call.zeros(), gates, extra, h, h0, c0)
    return h, extra


def layer_backward(
    call: Call, gates: Tensor, extra: Tensor, h: Tensor, w_hh: Tensor, h0: Tensor | None, c0: Tensor | None,
    dh: Tensor, carry: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the pre-activations, of p and of h0 (the part through the weights). `carry` is changed: see native.c."""
    dgates = torch.empty(call.rows, call.width)
    dh0 = torch.empty(call.batch, call.hidden)
    partial = torch.zeros(max(1, -(-call.batch // 2)), call.nonlinearities * call.hidden)
    packed = _pack(call, w_hh, "backward")
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
    extra = torch.empty(call.batch, call.hidden)
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
