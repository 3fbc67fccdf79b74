"""The launches of the GPU kernels for one recurrent layer in one direction: plan, buffers, big products."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noisyact.ops.recurrent.gpu.backward import backward_kernel
from noisyact.ops.recurrent.gpu.forward import forward_kernel
from noisyact.ops.recurrent.gpu.plan import Plan, padded_size, slice_size
from noisyact.ops.recurrent.gpu.settings import functions
from noisyact.ops.recurrent.reference import GATES, NONLINEARITIES, CellNoise
from noisyact.ops.triton.launch import Launcher

__all__ = [
    "BackwardRoom",
    "ProductsAsCudnn",
    "Room",
    "Rows",
    "backward_rooms",
    "check_alarm",
    "forward_rooms",
    "layer_backward",
    "layer_forward",
]


class Rows(NamedTuple):
    """The rows of a layer: step t has offsets[t + 1] - offsets[t] of them."""

    steps: int
    batch: int
    offsets: Tensor | None
    """[steps + 1], int32 on the device; None where every step has the whole batch."""


class ProductsAsCudnn:
    """Products of float32 in TF32 where cuDNN would take it: nn.LSTM does, and torch.mm has another switch.

    A context. The switches are those of torch.backends, without what the host does there to find them.
    """

    def __enter__(self) -> None:
        self._before, wanted = torch._C._get_cublas_allow_tf32(), torch._C._get_cudnn_allow_tf32()
        self._changed = self._before != wanted
        if self._changed:
            torch._C._set_cublas_allow_tf32(wanted)

    def __exit__(self, *error: object) -> None:
        if self._changed:
            torch._C._set_cublas_allow_tf32(self._before)


_FORWARD_FLAGS = ("REVERSE", "PACKED", "HAS_STATE", "HAS_BIAS", "HAS_P", "KEEP")
_BACKWARD_FLAGS = (
    "REVERSE", "PACKED", "HAS_STATE", "HAS_P", "HAS_DY", "HAS_DHN", "HAS_DCN", "WANTS_STATE",
    "WEIGHTS_MULTIPLE",
)  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _launcher(
    kernel: Any, kind: str, state: Any, gate: Any, hard: bool, draw: bool, cut: Plan, precision: str, dtypes: tuple,
    flags: tuple[int, ...],
) -> Launcher:  # fmt: skip
    names = _BACKWARD_FLAGS if kernel is backward_kernel else _FORWARD_FLAGS
    constants = functions(kind, state, gate, hard, draw) | dict(zip(names, flags, strict=True)) | {
        "PERSISTENT": cut.persistent, "BB": cut.rows, "BU": cut.units, "BK": cut.depth, "RESIDENT": cut.resident,
        "STAGES": cut.stages, "PRECISION": precision, "num_warps": cut.warps,
    }  # fmt: skip
    if kernel is backward_kernel:
        constants |= {"SLICES": cut.slices, "TEAM": cut.team}
    if cut.persistent:
        constants["launch_cooperative_grid"] = True
    return Launcher(kernel, constants)


def _precision() -> str:
    return "tf32" if torch._C._get_cudnn_allow_tf32() else "ieee"


@functools.cache
def _alarm() -> Tensor:
    """One number in the host's memory that a kernel can write."""
    return torch.zeros(1, dtype=torch.int32, pin_memory=torch.cuda.is_available())


def check_alarm() -> None:
    """Raise if a kernel that has run gave up waiting."""
    if _alarm().item():
        _alarm().zero_()
        raise RuntimeError(
            "a recurrent GPU kernel gave up waiting for its other programs; the results since the last check are NaN. "
            "Use backend='reference' on this device"
        )


class Room(NamedTuple):
    """What the kernel of one layer writes to besides its outputs for each row; layers above each other share memory."""

    last_h: Tensor
    last_c: Tensor
    exchange: Tensor


class BackwardRoom(NamedTuple):
    """The same in backward."""

    sums: Tensor
    """Of each block of the batch, in float32."""
    gradients: Sequence[Tensor]
    """Of p, b_ih and b_hh, one behind the other; that of p empty where there is none."""
    exchange: Tensor


def _exchanges(like: Tensor, layers: int, slot: int, blocks: int, teams: int = 0) -> Tensor:
    """Zeros: for each layer two slots, behind them counters of 32 bits.

    One for each block of the batch, one for all, and one for each team in a line of 128 bytes of its own.
    """
    counters = (2 + blocks // 32 + teams) * 32 if teams else blocks + 1
    size = 2 * slot + math.ceil(4 * counters / like.element_size())
    return like.new_zeros(layers, -(-size // 64) * 64)  # each begins at a multiple of 128 bytes


def forward_rooms(
    kind: str, like: Tensor, layers: int, batch: int, hidden: int, cut: Plan
) -> tuple[Tensor, Tensor, list[Room]]:
    """The last h and c of layers above each other, [layers, batch, H] each, and each layer's room."""
    dtype = like.dtype if cut.persistent else torch.float32
    h_n = torch.empty(layers, batch, hidden, dtype=dtype, device=like.device)
    c_n = torch.empty(layers, batch if kind == "lstm" else 0, hidden, dtype=dtype, device=like.device)
    blocks = cut.blocks(batch)
    exchanges = _exchanges(like, layers, blocks * cut.rows * padded_size(hidden, cut), blocks)
    last_c = c_n.unbind() if kind == "lstm" else [c_n] * layers
    return h_n, c_n, list(map(Room, h_n.unbind(), last_c, exchanges.unbind()))


def backward_rooms(
    kind: str, like: Tensor, layers: int, batch: int, hidden: int, has_p: bool, cut: Plan
) -> list[BackwardRoom]:
    """Each layer's room in backward. The sums are the same memory for all: no layer needs those of another."""
    gates, blocks = GATES[kind], cut.blocks(batch)
    count, wide = NONLINEARITIES[kind] if has_p else 0, 4 if gates > 1 else 1
    sums = torch.empty(blocks, (count + wide) * hidden, dtype=torch.float32, device=like.device)
    sizes = [count * hidden, gates * hidden, gates * hidden]
    gradients = like.new_empty(layers * sum(sizes)).split_with_sizes(sizes * layers)
    teams = blocks * cut.programs(hidden) // cut.team if cut.team > 1 else 0
    exchanges = _exchanges(like, layers, blocks * cut.rows * gates * padded_size(hidden, cut), blocks, teams)
    return [BackwardRoom(sums, gradients[3 * i : 3 * i + 3], exchange) for i, exchange in enumerate(exchanges.unbind())]


def layer_forward(
    kind: str, x: Tensor, rows: Rows, h0: Tensor | None, c0: Tensor | None, w_ih: Tensor, w_hh: Tensor,
    b_ih: Tensor | None, b_hh: Tensor | None, p: Tensor | None, seed: Tensor | None, noise: CellNoise, reverse: bool,
    keep: bool, cut: Plan, room: Room, form: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As reference.layer with xi from the seed. h0 and c0 may be None for zeros. The last h and c are in the room.

    Args:
        form: of every h, without its last dimension: the number of rows, or steps and batch.

    Returns: every h; and where `keep` is set, what backward needs: the pre-activations and the LSTM's c or the GRU's
    W_hn h + b_hn.
    """
    steps, batch, offsets = rows
    hidden, gates = w_hh.shape[1], GATES[kind]
    padded, blocks, programs = padded_size(hidden, cut), cut.blocks(batch), cut.programs(hidden)
    h_n, c_n, exchange = room
    a = torch.mm(x, w_ih.t())  # not addmm, which takes the host twice as long: the kernel adds the biases
    lines = programs * blocks * cut.units * (4 if gates > 1 else 1)
    packed = None if cut.resident else x.new_empty(lines * padded)
    y = x.new_empty(*form, hidden)
    extra = x.new_empty(x.shape[0] if keep and gates > 1 else 0, hidden)
    dtypes = (x.dtype, noise.state_scale.dtype, noise.gate_scale.dtype)

    def launch(first: int, last: int, h: Tensor | None, c: Tensor | None) -> None:
        flags = (reverse, offsets is not None, h is not None, b_hh is not None, p is not None, keep)
        _launcher(
            forward_kernel, kind, noise.state, noise.gate, noise.hard, seed is not None, cut, _precision(), dtypes,
            flags,
        )(
            (programs * blocks,),
            (a, w_hh, packed, b_ih, b_hh, p, seed, noise.gate_scale, noise.state_scale, h, c, offsets, y, extra, h_n,
             c_n, exchange, _alarm()),
            (first, last, steps, batch, hidden, padded, programs),
        )  # fmt: skip

    if cut.persistent:
        launch(0, steps, h0, c0)
        return y, a, extra
    if h0 is not None:
        slot = blocks * cut.rows * padded
        exchange[slot : 2 * slot].view(-1, padded)[:batch, :hidden] = h0
    for i in range(steps):
        launch(i, i + 1, h0 if i == 0 else h_n, c0 if i == 0 else c_n)
    return y, a, extra


def layer_backward(
    kind: str, dy: Tensor | None, dh_n: Tensor | None, dc_n: Tensor | None, y: Tensor, a: Tensor, extra: Tensor,
    rows: Rows, h0: Tensor | None, c0: Tensor | None, w_hh: Tensor, p: Tensor | None, seed: Tensor | None,
    noise: CellNoise, reverse: bool, wants_h0: bool, x: Tensor | None, cut: Plan, room: BackwardRoom,
) -> tuple[Tensor, Tensor | None, Tensor | None, Sequence[Tensor], Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients of the pre-activations (for the GRU of W_ih x, then of W_hh h), of h0 and c0 (None where not
    wanted); those of p (empty if there is none), of b_ih and of b_hh; and of W_ih and W_hh where the input x is given.
    """
    steps, batch, offsets = rows
    hidden, gates = w_hh.shape[1], GATES[kind]
    wide = 4 if gates > 1 else 1
    padded, blocks, programs = padded_size(hidden, cut), cut.blocks(batch), cut.programs(hidden)
    sums, gradients, exchange = room
    out = gradients[0] if p is not None else gradients[1]
    inner = slice_size(kind, padded, cut)
    packed = None
    if cut.team > 1:  # behind the weights the team's sums, in float32
        lines = programs * blocks * cut.team * cut.units
        packed = y.new_empty(lines * (inner + cut.rows * 4 // y.element_size()))
    elif not cut.resident:
        packed = y.new_empty(programs * blocks * cut.units * gates * padded)
    dgates = y.new_empty(a.shape[0], (6 if kind == "gru" else gates) * hidden)
    state_dtype = y.dtype if cut.persistent else torch.float32
    dh0 = dc0 = None
    if wants_h0 or not cut.persistent:
        dh0 = torch.empty(batch, hidden, dtype=state_dtype, device=y.device)
        dc0 = torch.empty(batch, hidden, dtype=state_dtype, device=y.device) if kind == "lstm" else None
    dw_ih = dw_hh = None
    inputs = multiple = 0
    if x is not None:
        inputs = x.shape[1]
        multiple = math.gcd(8, hidden, inputs)
        dw_ih, dw_hh = x.new_empty(gates * hidden, inputs), x.new_empty(gates * hidden, hidden)
    dtypes = (y.dtype, noise.state_scale.dtype, noise.gate_scale.dtype)

    def launch(first: int, last: int, dh: Tensor | None, dc: Tensor | None) -> None:
        flags = (
            reverse, offsets is not None, h0 is not None, p is not None, dy is not None, dh is not None,
            dc is not None, dh0 is not None, multiple,
        )  # fmt: skip
        _launcher(
            backward_kernel, kind, noise.state, noise.gate, noise.hard, seed is not None, cut, _precision(), dtypes,
            flags,
        )(
            (programs * blocks,),
            (a, extra, y, w_hh, packed, p, seed, noise.gate_scale, noise.state_scale, h0, c0, offsets, dy, dh, dc,
             dgates, dh0, dc0, sums, out, exchange, _alarm(), x, dw_ih, dw_hh),
            (first, last, steps, batch, hidden, padded, inner, programs, inputs),
        )  # fmt: skip

    if cut.persistent:
        launch(0, steps + wants_h0, dh_n, dc_n)
        return dgates, dh0, dc0, gradients, dw_ih, dw_hh
    for i in range(steps + wants_h0):
        launch(i, i + 1, dh_n if i == 0 else dh0, (dc_n if i == 0 else dc0) if kind == "lstm" else None)
    count = NONLINEARITIES[kind] if p is not None else 0
    dp, db = sums.sum(0).to(y.dtype).split([count * hidden, wide * hidden])
    db_ih = torch.cat([db[: 2 * hidden], db[3 * hidden :]]) if kind == "gru" else db
    dh0, dc0 = (None if d is None else d.to(y.dtype) for d in (dh0, dc0))
    together = torch.cat([dp, db_ih, db[: gates * hidden]])
    gradients = together.split_with_sizes([count * hidden, gates * hidden, gates * hidden])
    return dgates, dh0, dc0, gradients, None, None
