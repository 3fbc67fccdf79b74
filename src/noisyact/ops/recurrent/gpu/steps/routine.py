"""What a layer does at every step, as a table of products and launches, and the loop over the steps.

The loop is in C if it can be, because on many machines Python cannot call two functions of CUDA in the time of a step.
Calls that come again with the same addresses are replayed (recordings.py).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noisyact.ops import native
from noisyact.ops.cuda import entry_points, recordings
from noisyact.ops.recurrent.gpu.steps.forward import POSITION
from noisyact.ops.recurrent.gpu.steps.timeline import Step, Timeline
from noisyact.ops.triton.launch import Prepared

__all__ = ["Launch", "Place", "Product", "Routine"]


class Place(NamedTuple):
    """Rows of a tensor that change from step to step."""

    tensor: Tensor
    """[rows, columns]; the columns are adjacent."""
    begin: tuple[str, ...] = ()
    """The names of up to two numbers of the position, which add up to the first row."""


class Product(NamedTuple):
    """``to = of w``, or ``to += of w``."""

    to: Place
    of: Place
    w: Tensor
    """[columns of `of`, columns of `to`], or the transpose of such a tensor."""
    adds: bool
    total: str
    """The number of rows is this number of the position minus `less`. Without rows nothing is done."""
    less: str | None = None

    def identity(self) -> tuple[Any, ...]:
        """All that decides what it does at a step."""
        to, of, w = self.to, self.of, self.w
        return (
            to.tensor.data_ptr(), to.tensor.stride(), to.begin, of.tensor.data_ptr(), of.tensor.stride(), of.begin,
            w.data_ptr(), w.shape, w.stride(), w.dtype, self.adds, self.total, self.less,
        )  # fmt: skip


class Launch(NamedTuple):
    """A launch of a pointwise kernel for all rows of the step."""

    kernel: Prepared
    rows: int
    """The number of rows of a program."""
    across: int
    """The number of programs for a row."""
    total: str = "size"
    less: str | None = None

    def identity(self) -> tuple[Any, ...]:
        """All that decides what it does at a step."""
        return self.kernel.launcher, self.kernel.first, self.rows, self.across, self.total, self.less


class Routine:
    """The operations of every step of a layer, in order.

    Args:
        operations: their tensors are all of one dtype and on one device.
        backwards: whether the steps run from the last to the first.
    """

    def __init__(
        self, operations: Sequence[Product | Launch], timeline: Timeline, backwards: bool = False
    ) -> None:  # fmt: skip
        self.operations, self.timeline, self.backwards = operations, timeline, backwards
        self._table: Any = None

    def run(self, part: slice) -> None:
        """Run these steps, of all in the order of the recurrence."""
        order = self.timeline.steps[part]
        if self.backwards:
            order = order[::-1]
        if len(order) < _FEWEST or not self._may_run_in_c():
            self._run_in_python(order)
            return
        index = self._product().device.index
        stream, key = torch._C._cuda_getCurrentRawStream(index), None
        calls = len(order) * len(self.operations)
        if recordings.worthwhile(calls) and not torch.cuda.is_current_stream_capturing():
            # The timeline has the positions of its steps in memory that lives as long as itself, and so as the key.
            key = (
                stream, index, self.timeline, part.start, part.stop, self.backwards,
                torch._C._get_cublas_allow_tf32(), *(own.identity() for own in self.operations),
            )  # fmt: skip
            if recordings.replay(key, stream):
                return
        if not self._has_table(order[0]):
            self._run_in_python(order)
            return
        device, positions = _device(self._product()), self.timeline.positions(part, self.backwards)
        run = functools.partial(self._run_in_c, positions, len(order), device)
        if key is None or not recordings.record(key, device.handle, stream, run):
            run(stream)

    def _run_in_python(self, order: Sequence[Step]) -> None:
        for step in order:
            position = dict(zip(POSITION, step.position, strict=True))
            for operation in self.operations:
                rows = position[operation.total] - (position[operation.less] if operation.less else 0)
                if rows <= 0:
                    continue
                if isinstance(operation, Launch):
                    operation.kernel((-(-rows // operation.rows), operation.across), *step.position)
                    continue
                to, of = (_rows(place, position, rows) for place in (operation.to, operation.of))
                if operation.adds:
                    to.addmm_(of, operation.w)
                else:
                    torch.mm(of, operation.w, out=to)

    def _product(self) -> Tensor:
        """The weights of a product of every step."""
        return next(own.w for own in self.operations if isinstance(own, Product))

    def _may_run_in_c(self) -> bool:
        """Whether C may call cuBLAS: torch itself would call it in the same way."""
        return (
            self._product().is_cuda
            and native.library() is not None and entry_points.cublas("cublasGemmEx") is not None
            and entry_points.driver("cuLaunchKernel") is not None and not torch.are_deterministic_algorithms_enabled()
            and torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction is True
            and torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction is True
        )  # fmt: skip

    def _has_table(self, step: Step) -> bool:
        """Whether the table of the operations is there, or can be made now."""
        if self._table is None:
            filled = [_operation(own, step) for own in self.operations]
            if None not in filled:
                self._table = (_Operation * len(filled))(*filled)
        return self._table is not None

    def _run_in_c(self, positions: Any, steps: int, device: _Device, stream: int) -> None:
        device.stream = stream
        status = native.function("noisyact_gpu_routine", 4)(
            ctypes.addressof(device), ctypes.addressof(self._table), ctypes.addressof(positions), steps,
            len(self.operations),
        )  # fmt: skip
        if status:
            what = f"a product by cuBLAS failed with status {status}" if status > 0 else f"a launch: error {-status}"
            raise RuntimeError(f"a step of a recurrent layer: {what}")


_FEWEST = 3
"""Fewer steps than these take less time in Python than the table."""
_MOST_PARAMETERS = 64
_DTYPES = {torch.float32: (0, 68), torch.float64: (1, 70), torch.float16: (2, 68), torch.bfloat16: (14, 68)}
"""CUDA's numbers of a dtype (cudaDataType) and of the dtype of its sums (cublasComputeType)."""


def _rows(place: Place, position: dict[str, int], rows: int) -> Tensor:
    begin = sum(position[name] for name in place.begin)
    return place.tensor[begin : begin + rows]


class _Place(ctypes.Structure):
    """The structure `place` of routine.c."""

    _fields_ = (("base", ctypes.c_void_p), ("row_bytes", ctypes.c_int64), ("begins", ctypes.c_int32 * 2))

    @classmethod
    def of(cls, place: Place) -> _Place:
        begins = [_number(name) for name in (*place.begin, None, None)[:2]]
        tensor = place.tensor
        return cls(tensor.data_ptr(), tensor.stride(0) * tensor.element_size(), (ctypes.c_int32 * 2)(*begins))


class _Operation(ctypes.Structure):
    """The structure `operation` of routine.c."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("total", "less", "is_launch", "adds")),
        ("to", _Place),
        ("of", _Place),
        ("w", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("inner", "columns", "to_width", "of_width", "w_width")),
        *((name, ctypes.c_int32) for name in (
            "w_is_transposed", "rows_of_program", "across", "threads", "shared", "parameters", "first",
        )),
        ("function", ctypes.c_void_p),
        ("values", ctypes.c_uint64 * _MOST_PARAMETERS),
    )  # fmt: skip


class _Device(ctypes.Structure):
    """The structure `device` of routine.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("multiply", "launch", "handle", "stream")),
        *((name, ctypes.c_int32) for name in ("dtype", "sums", "doubles")),
    )


def _number(name: str | None) -> int:
    return -1 if name is None else POSITION.index(name)


def _operation(own: Product | Launch, step: Step) -> _Operation | None:
    """The structure of an operation; None for a launch that C cannot do. `step` is any step."""
    rows = {"total": _number(own.total), "less": _number(own.less)}
    if isinstance(own, Product):
        inner, columns = own.w.shape
        is_transposed = own.w.stride(1) != 1
        of_rows = own.w.stride(1) if is_transposed else max(own.w.stride(0), columns)
        return _Operation(
            **rows, is_launch=False, adds=own.adds, to=_Place.of(own.to), of=_Place.of(own.of), w=own.w.data_ptr(),
            inner=inner, columns=columns, to_width=max(own.to.tensor.stride(0), columns),
            of_width=max(own.of.tensor.stride(0), inner), w_width=of_rows, w_is_transposed=is_transposed,
        )  # fmt: skip
    binary = own.kernel.binary(step.position)
    if binary is None or not len(binary.first) + len(POSITION) <= binary.parameters <= _MOST_PARAMETERS:
        return None
    return _Operation(
        **rows, is_launch=True, rows_of_program=own.rows, across=own.across, threads=binary.threads,
        shared=binary.shared, parameters=binary.parameters, first=len(binary.first), function=binary.function,
        values=(ctypes.c_uint64 * _MOST_PARAMETERS)(*binary.first),
    )  # fmt: skip


def _device(w: Tensor) -> _Device:
    """The functions that C calls for products with these weights, but for the stream."""
    dtype, sums = _DTYPES[w.dtype]
    return _Device(
        multiply=entry_points.cublas("cublasGemmEx"), launch=entry_points.driver("cuLaunchKernel"),
        handle=torch.cuda.current_blas_handle(), dtype=dtype, sums=sums, doubles=w.dtype is torch.float64,
    )  # fmt: skip
