"""Launches of Triton kernels with little host overhead.

Triton inspects every argument of every call to find the compiled kernel. A launcher caches the kernel for arguments of
the same kinds and calls it with bare addresses, as Triton itself finally does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import JITFunction, knobs

from noisyact.ops.triton import ahead

__all__ = ["Binary", "Launcher", "Prepared"]


_LOW_BITS = (15).__and__  # returns NotImplemented for arguments that are not integers


class Launcher:
    """A kernel and its compile-time constants. Its arguments are tensors (or floats, or None), then integers.

    Args:
        kernel: a triton.jit function whose constants come last.
        constants: the values of the constants, and the compiler options.

    All calls of one launcher must have tensors of the same dtypes.
    """

    def __init__(self, kernel: Any, constants: dict[str, Any]) -> None:
        # Multiplications and additions are fused, as they were by default up to Triton 3.9.
        self._kernel, self._constants = kernel, {"enable_fp_fusion": True, **constants}
        self._tail = tuple(constants[name] for name in kernel.arg_names if name in constants)
        self._compiled: dict[Any, Any] = {}
        self._ahead: Any = None

    @property
    def is_new(self) -> bool:
        """Whether nothing has been compiled for this launcher, nor is being compiled."""
        return not self._compiled and self._ahead is None

    def compile_ahead(self, tensors: Sequence[Tensor | torch.dtype | float | None], numbers: tuple[int, ...]) -> None:
        """Compile the kernel in another thread for a later call; a dtype stands for a tensor that is still to come."""
        if isinstance(self._kernel, JITFunction):  # the interpreter compiles nothing
            self._ahead = ahead.compile_ahead(self._kernel, (*tensors, *numbers), self._constants)

    def _compile(self, grid: tuple[int, ...], arguments: tuple[Any, ...]) -> Any:
        """The first launch for arguments of these kinds."""
        ahead.prepared()
        if self._ahead is not None:
            self._ahead.join()
        elif isinstance(self._kernel, JITFunction):
            ahead.in_turns(self._kernel)
        return self._kernel[grid](*arguments, **self._constants)

    def compiled_for(self, arguments: tuple[Any, ...]) -> Any:
        """Compile and load the kernel for arguments of these kinds without a launch; None in the interpreter."""
        if not isinstance(self._kernel, JITFunction):
            return None
        ahead.prepared()
        ahead.in_turns(self._kernel)
        compiled = self._kernel.warmup(*arguments, grid=(1,), **self._constants)
        _ = compiled.run  # loads it
        return compiled

    def __call__(
        self, grid: tuple[int, ...], tensors: Sequence[Tensor | float | None], numbers: tuple[int, ...]
    ) -> None:
        """Launch a grid of programs on the current device, which must be that of the tensors."""
        addresses = [t if t is None or type(t) is float else t.data_ptr() for t in tensors]
        if 0 in addresses:
            _check_memory(tensors)
        # Besides the dtypes, a compiled kernel depends on the device, on which addresses and numbers are multiples of
        # 16, and on which numbers are 1 or need 64 bits.
        device = torch._C._cuda_getDevice() if self._compiled else None
        key = (device, _kinds(numbers), *map(_LOW_BITS, addresses))
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compile(grid, (*tensors, *numbers))
            if compiled is not None:  # the interpreter returns None
                self._compiled[(torch.cuda.current_device(), *key[1:])] = compiled
            return
        blocks = (*grid, 1, 1)[:3]
        if _watched():
            compiled[blocks](*addresses, *numbers, *self._tail)
            return
        stream = torch._C._cuda_getCurrentRawStream(device)
        compiled.run(
            *blocks, stream, compiled.function, compiled.packed_metadata, None, None, None, *addresses, *numbers,
            *self._tail,
        )  # fmt: skip

    def prepared(self, tensors: Sequence[Tensor | float | None], numbers: tuple[int, ...]) -> Prepared:
        """A function that launches the kernel with these first arguments again and again."""
        return Prepared(self, tensors, numbers)


class Prepared:
    """Launches a kernel with the same first arguments again and again, with less host overhead.

    It takes a grid of two dimensions and the kernel's last integers, for which the kernel must not be specialized and
    which must be below 2^31. It holds for the current stream, and for as long as the tensors have memory.
    """

    def __init__(self, launcher: Launcher, tensors: Sequence[Tensor | float | None], numbers: tuple[int, ...]) -> None:
        addresses = [t if t is None or type(t) is float else t.data_ptr() for t in tensors]
        if 0 in addresses:
            _check_memory(tensors)
        self.launcher, self.tensors, self.numbers = launcher, tensors, numbers
        self.first = (*addresses, *numbers)
        self._key = (_kinds(numbers), *map(_LOW_BITS, addresses))
        self._start: Any = None
        self._head: tuple = ()

    def __call__(self, grid: tuple[int, int], *last: int) -> None:
        """Launch the kernel."""
        launcher = self.launcher
        if self._start is not None:
            self._start(*grid, 1, *self._head, *last, *launcher._tail)
            return
        compiled = self._compiled()
        if compiled is None:
            compiled = launcher._compile(grid, (*self.tensors, *self.numbers, *last))
            if compiled is not None:  # the interpreter returns None
                launcher._compiled[(torch.cuda.current_device(), *self._key)] = compiled
        elif _watched():
            compiled[(*grid, 1)](*self.first, *last, *launcher._tail)
        else:
            stream = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
            self._head = (
                stream, compiled.function, compiled.packed_metadata, None, None, None, *self.first
            )  # fmt: skip
            self._start = compiled.run
            self._start(*grid, 1, *self._head, *last, *launcher._tail)

    def _compiled(self) -> Any:
        """The kernel for these arguments; None if it has not been compiled."""
        found = self.launcher._compiled
        return found.get((torch._C._cuda_getDevice(), *self._key)) if found else None

    def binary(self, last: Sequence[int]) -> Binary | None:
        """What the CUDA driver needs to launch the kernel, compiled if it has not been; None if a launch is watched.

        Args:
            last: the kernel's last integers in one of its launches.
        """
        if _watched():
            return None
        compiled = self._compiled()
        if compiled is None:
            compiled = self.launcher.compiled_for((*self.tensors, *self.numbers, *last))
            if compiled is None:
                return None
            self.launcher._compiled[(torch.cuda.current_device(), *self._key)] = compiled
        kinds, total = _parameters(compiled)
        if total is None:
            return None
        given = [value or 0 for value, kind in zip(self.first, kinds, strict=False) if kind != "constexpr"]
        return Binary(compiled.function, 32 * compiled.metadata.num_warps, compiled.metadata.shared, given, total)


class Binary(NamedTuple):
    """A compiled kernel as the CUDA driver takes it."""

    function: int
    threads: int
    """The number of threads of a program."""
    shared: int
    """The bytes of shared memory."""
    first: list[int]
    """The values of the first parameters, before those that differ from launch to launch."""
    parameters: int
    """The number of parameters. Those after the last that a caller gives are addresses that may be null."""


@functools.lru_cache(maxsize=1024)
def _parameters(compiled: Any) -> tuple[list[str], int | None]:
    """The kinds of a kernel's arguments, and the number of parameters of its binary; None if they are not understood.

    An argument that is None or 1 is a constant. Triton adds addresses of memory for its own use after all arguments.
    """
    metadata, source = compiled.metadata, compiled.src
    own_memory = getattr(metadata, "global_scratch_size", 0) or getattr(metadata, "profile_scratch_size", 0)
    head = re.search(r"\.entry\s+\w+\((.*?)\)", compiled.asm.get("ptx", ""), re.DOTALL)
    kinds = list(source.signature.values())
    if (
        head is None
        or own_memory
        or getattr(metadata, "num_ctas", 1) != 1
        or any(kind.startswith("fp") for kind in kinds)
    ):
        return kinds, None
    return kinds, head[1].count(".param")


def _check_memory(tensors: Sequence[Tensor | float | None]) -> None:
    """Raise a ValueError for a tensor whose storage was freed."""
    for t in tensors:
        if isinstance(t, Tensor) and t.numel() and t.data_ptr() == 0:
            raise ValueError(f"a tensor of shape {tuple(t.shape)} on {t.device} has no memory: its storage was freed")


@functools.lru_cache(maxsize=1024)
def _kinds(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([-1 if n == 1 else n & 15 | (n > 0x7FFFFFFF) << 4 for n in numbers])


def _watched() -> bool:
    """Whether a profiler has registered launch hooks with Triton."""
    before, after = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(getattr(before, "calls", before) or getattr(after, "calls", after))
