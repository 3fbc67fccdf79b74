"""Markers for torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["constant"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def constant(function: _Function) -> _Function:
    """Mark a function as constant for torch.compile, which then calls it once while tracing and does not trace into it.

    torch.compiler.assume_constant_result does the same, but imports the whole compiler, which takes a second.
    """
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function
