"""Calls of a Triton kernel that cost the host little: what Triton works out at every call is worked out once.

Triton looks at each argument of each call to find the compiled kernel for it. Here that is remembered for arguments of
the same kinds, and the compiled kernel is called with bare addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from torch import Tensor

__all__ = ["Launcher"]


class Launcher:
    """A kernel whose arguments are tensors (or None), then numbers, then constants of the compilation."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._compiled: dict[Hashable, tuple[Any, tuple]] = {}

    def __call__(
        self, grid: tuple[int, ...], tensors: Sequence[Tensor | None], numbers: Sequence[int], settings: Hashable,
        constants: Callable[..., dict[str, Any]],
    ) -> None:  # fmt: skip
        """Launch.

        Args:
            grid: how many programs, in one to three dimensions.
            tensors: the first arguments, all on the current device.
            numbers: the next ones.
            settings: stands for the constants: the same for the same ones alone.
            constants: makes them, and the options of the compilation, of ``*settings``.
        """
        addresses = [None if t is None else t.data_ptr() for t in tensors]
        # What Triton compiles for: the types, which pointers and numbers are multiples of 16, and the device.
        kinds = tuple(
            None if t is None else (t.dtype, a % 16)  # pyright: ignore[reportOptionalOperand]
            for t, a in zip(tensors, addresses, strict=True)
        )
        key = (settings, kinds, tuple(n if n in (0, 1) else n % 16 for n in numbers), grid, tensors[0].device)  # pyright: ignore[reportOptionalMemberAccess]
        known = self._compiled.get(key)
        if known is not None:
            run, tail = known
            run(*addresses, *numbers, *tail)
            return
        values = constants(*settings)  # pyright: ignore[reportGeneralTypeIssues]
        compiled = self.kernel[grid](*tensors, *numbers, **values)
        if compiled is not None:  # the interpreter compiles nothing
            names = self.kernel.arg_names[len(tensors) + len(numbers) :]
            self._compiled[key] = compiled[(*grid, 1, 1)[:3]], tuple(values[name] for name in names)
