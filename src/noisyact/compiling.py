"""What torch.compile is told about this package's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["constant"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def constant(function: _Function) -> _Function:
    """Mark a function whose result the compiler may take as a constant: it calls it once and does not look inside.

    As torch.compiler.assume_constant_result does, which first imports the whole compiler: a second at every start.
    """
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function
