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
    """A kernel whose arguments are tensors (or floats, or None), then whole numbers, then constants."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._compiled: dict[Hashable, tuple[Any, tuple]] = {}

    def __call__(
        self, grid: tuple[int, ...], tensors: Sequence[Tensor | float | None], numbers: Sequence[int],
        settings: Hashable, constants: Callable[..., dict[str, Any]],
    ) -> None:  # fmt: skip
        """Launch.

        Args:
            grid: how many programs, in one to three dimensions.
            tensors: the first arguments, all on the current device.
            numbers: the next ones.
            settings: stands for the constants and for the dtypes of the tensors: the same for the same ones alone.
            constants: makes the constants, and the options of the compilation, of ``*settings``.
        """
        addresses = [t if t is None or isinstance(t, float) else t.data_ptr() for t in tensors]
        # What Triton compiles for besides: which pointers and numbers are multiples of 16, which are 1 or
        # long, and the device.
        places = tuple([a & 15 if isinstance(a, int) else type(a) for a in addresses])
        sizes = tuple([-1 if n == 1 else n & 15 | (n > 0x7FFFFFFF) << 4 for n in numbers])
        key = (settings, places, sizes, tensors[0].device)  # pyright: ignore[reportOptionalMemberAccess]
        known = self._compiled.get(key)
        if known is not None:
            compiled, tail = known
            compiled[(*grid, 1, 1)[:3]](*addresses, *numbers, *tail)
            return
        values = constants(*settings)  # pyright: ignore[reportGeneralTypeIssues]
        compiled = self.kernel[grid](*tensors, *numbers, **values)
        if compiled is not None:  # the interpreter compiles nothing
            names = self.kernel.arg_names[len(tensors) + len(numbers) :]
            self._compiled[key] = compiled, tuple(values[name] for name in names)
