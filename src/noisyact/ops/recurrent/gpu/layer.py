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
from noisyact.ops.recurrent.gpu.plan import Plan, Sizes
from noisyact.ops.recurrent.gpu.settings import functions
from noisyact.ops.recurrent.reference import GATES, NONLINEARITIES, CellNoise
from noisyact.ops.triton.launch import Launcher

__all__ = [
    "BackwardRoom",
    "ProductsAsCudnn",
    "Room",
    "Rows",
    "backward_room",
    "check_alarm",
    "forward_room",
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


_FORWARD_FLAGS = ("REVERSE", "PACKED", "HAS_STATE", "HAS_BIAS", "HAS_P", "KEEP", "PRODUCT_MULTIPLE")
_BACKWARD_FLAGS = (
    "REVERSE", "PACKED", "HAS_STATE", "HAS_P", "HAS_DY", "HAS_DHN", "HAS_DCN", "WANTS_STATE",
    "PRODUCTS_MULTIPLE", "WANTS_X",
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
    """What the kernels of layers above each other write to besides their outputs for each row; the layers share it."""

    h_n: Tensor
    """[layers, batch, H]."""
    c_n: Tensor | None
    """The same, of the LSTM."""
    exchange: Tensor
    """[layers, numbers], zeros at first."""


class BackwardRoom(NamedTuple):
    """The same in backward."""

    dgates: Tensor
    """[rows, gates H]: the gradients of the pre-activations, in the GRU of W_ih x and then of W_hh h. One for all
    layers: those of a layer have been used when those of the next are written.
    """
    sums: Tensor
    """Of each block of the batch, in float32; one for all layers too."""
    gradients: Sequence[Tensor]
    """Of each layer's p, b_ih and b_hh, one behind the other; that of p empty where there is none."""
    exchange: Tensor
    dh0: Tensor | None
    dc0: Tensor | None


def _states(like: Tensor, layers: int, batch: int, hidden: int, cut: Plan) -> Tensor:
    """In float32 where they go from launch to launch."""
    if cut.persistent:
        return like.new_empty(layers, batch, hidden)
    return torch.empty(layers, batch, hidden, dtype=torch.float32, device=like.device)


def forward_room(kind: str, like: Tensor, layers: int, batch: int, hidden: int, cut: Plan, sizes: Sizes) -> Room:
    """For layers above each other."""
    h_n = _states(like, layers, batch, hidden, cut)
    c_n = _states(like, layers, batch, hidden, cut) if kind == "lstm" else None
    return Room(h_n, c_n, like.new_zeros(layers, sizes.exchange))


def backward_room(
    kind: str, like: Tensor, layers: int, batch: int, hidden: int, has_p: bool, wants_h0: bool, cut: Plan, sizes: Sizes
) -> BackwardRoom:
    """For layers above each other."""
    gates = GATES[kind]
    dgates = like.new_empty(like.shape[0], (6 if kind == "gru" else gates) * hidden)
    count, wide = NONLINEARITIES[kind] if has_p else 0, 4 if gates > 1 else 1
    sums = torch.empty(sizes.blocks, (count + wide) * hidden, dtype=torch.float32, device=like.device)
    parts = [count * hidden, gates * hidden, gates * hidden]
    gradients = like.new_empty(layers * sum(parts)).split_with_sizes(parts * layers)
    dh0 = dc0 = None
    if wants_h0 or not cut.persistent:
        dh0 = _states(like, layers, batch, hidden, cut)
        dc0 = _states(like, layers, batch, hidden, cut) if kind == "lstm" else None
    return BackwardRoom(dgates, sums, gradients, like.new_zeros(layers, sizes.exchange), dh0, dc0)


def layer_forward(
    kind: str, layer: int, x: Tensor, rows: Rows, h0: Tensor | None, c0: Tensor | None, w_ih: Tensor, w_hh: Tensor,
    b_ih: Tensor | None, b_hh: Tensor | None, p: Tensor | None, seed: Tensor | None, noise: CellNoise, reverse: bool,
    keep: bool, in_launch: bool, cut: Plan, sizes: Sizes, room: Room, form: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As reference.layer with xi from the seed. The last h and c are in the room.

    Args:
        layer: which, of those that h0, c0 and the room are for.
        h0: [layers, batch, H]; None for zeros, as for c0.
        in_launch: whether the launch has the input's product too; x and w_ih must then be contiguous.
        form: of every h, without its last dimension: the number of rows, or steps and batch.

    Returns: every h; and where `keep` is set, what backward needs: the pre-activations and the LSTM's c or the GRU's
    W_hn h + b_hn.
    """
    steps, batch, offsets = rows
    programs, blocks, padded, _, exchange_size = sizes
    hidden, gates = w_hh.shape[1], GATES[kind]
    h_n, c_n, exchange = room
    exchange = exchange if cut.resident else exchange[layer]
    inputs = multiple = 0
    if in_launch:
        inputs = x.shape[1]
        multiple = math.gcd(8, hidden, inputs)
        a = x.new_empty(x.shape[0], gates * hidden)
    else:
        a = torch.mm(x, w_ih.t())  # not addmm, which takes the host twice as long: the kernel adds the biases
    lines = programs * blocks * cut.units * (4 if gates > 1 else 1)
    packed = None if cut.resident else x.new_empty(lines * padded)
    y = x.new_empty(*form, hidden)
    extra = x.new_empty(x.shape[0] if keep and gates > 1 else 0, hidden)
    dtypes = (x.dtype, noise.state_scale.dtype, noise.gate_scale.dtype)

    def launch(first: int, last: int, h: Tensor | None, c: Tensor | None) -> None:
        flags = (reverse, offsets is not None, h is not None, b_hh is not None, p is not None, keep, multiple)
        _launcher(
            forward_kernel, kind, noise.state, noise.gate, noise.hard, seed is not None, cut, _precision(), dtypes,
            flags,
        )(
            (programs * blocks,),
            (a, w_hh, packed, b_ih, b_hh, p, seed, noise.gate_scale, noise.state_scale, h, c, offsets, y, extra, h_n,
             c_n, exchange, _alarm(), x if in_launch else None, w_ih if in_launch else None),
            (layer, first, last, steps, batch, hidden, padded, programs, exchange_size, inputs),
        )  # fmt: skip

    if cut.persistent:
        launch(0, steps, h0, c0)
        return y, a, extra
    if h0 is not None:
        slot = blocks * cut.rows * padded
        room.exchange[layer, slot : 2 * slot].view(-1, padded)[:batch, :hidden] = h0[layer]
    for i in range(steps):
        launch(i, i + 1, h0 if i == 0 else h_n, c0 if i == 0 else c_n)
    return y, a, extra


def layer_backward(
    kind: str, layer: int, dy: Tensor | None, dh_n: Tensor | None, dc_n: Tensor | None, y: Tensor, a: Tensor,
    extra: Tensor, rows: Rows, h0: Tensor | None, c0: Tensor | None, w_hh: Tensor, p: Tensor | None,
    seed: Tensor | None, noise: CellNoise, reverse: bool, wants_h0: bool, x: Tensor | None, w_ih: Tensor | None,
    cut: Plan, sizes: Sizes, room: BackwardRoom,
) -> tuple[Sequence[Tensor], Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients of p (empty if there is none), of b_ih and of b_hh; where x is given, the input, those of W_ih and
    W_hh too, and with w_ih that of x.

    Those of the pre-activations and of h0 and c0 are in the room. dh_n, dc_n, h0, c0: [layers, batch, H], or None.
    """
    steps, batch, offsets = rows
    programs, blocks, padded, inner, exchange_size = sizes
    hidden, gates = w_hh.shape[1], GATES[kind]
    dgates, sums, gradients, exchange, dh0, dc0 = room
    exchange = exchange if cut.resident else exchange[layer]
    gradients = gradients[3 * layer : 3 * layer + 3]
    out = gradients[0] if p is not None else gradients[1]
    packed = None
    if cut.team > 1:  # behind the weights the team's sums, in float32
        lines = programs * blocks * cut.team * cut.units
        packed = y.new_empty(lines * (inner + cut.rows * 4 // y.element_size()))
    elif not cut.resident:
        packed = y.new_empty(programs * blocks * cut.units * gates * padded)
    dw_ih = dw_hh = dx = None
    inputs = multiple = 0
    if x is not None:
        inputs = x.shape[1]
        multiple = math.gcd(8, hidden, inputs)
        dw_ih, dw_hh = x.new_empty(gates * hidden, inputs), x.new_empty(gates * hidden, hidden)
        dx = None if w_ih is None else x.new_empty(x.shape)
    dtypes = (y.dtype, noise.state_scale.dtype, noise.gate_scale.dtype)

    def launch(first: int, last: int, dh: Tensor | None, dc: Tensor | None) -> None:
        flags = (
            reverse, offsets is not None, h0 is not None, p is not None, dy is not None, dh is not None,
            dc is not None, dh0 is not None, multiple, dx is not None,
        )  # fmt: skip
        _launcher(
            backward_kernel, kind, noise.state, noise.gate, noise.hard, seed is not None, cut, _precision(), dtypes,
            flags,
        )(
            (programs * blocks,),
            (a, extra, y, w_hh, packed, p, seed, noise.gate_scale, noise.state_scale, h0, c0, offsets, dy, dh, dc,
             dgates, dh0, dc0, sums, out, exchange, _alarm(), x, w_ih, dw_ih, dw_hh,
             dx),
            (layer, first, last, steps, batch, hidden, padded, inner, programs, exchange_size, inputs),
        )  # fmt: skip

    if cut.persistent:
        launch(0, steps + wants_h0, dh_n, dc_n)
        return gradients, dw_ih, dw_hh, dx
    for i in range(steps + wants_h0):
        launch(i, i + 1, dh_n if i == 0 else dh0, dc_n if i == 0 else dc0)
    count, wide = NONLINEARITIES[kind] if p is not None else 0, 4 if gates > 1 else 1
    dp, db = sums.sum(0).to(y.dtype).split([count * hidden, wide * hidden])
    db_ih = torch.cat([db[: 2 * hidden], db[3 * hidden :]]) if kind == "gru" else db
    together = torch.cat([dp, db_ih, db[: gates * hidden]])
    return together.split_with_sizes([count * hidden, gates * hidden, gates * hidden]), None, None, None
