"""What torch's tracers are told about our functions and modules: torch.compile, and torch.fx's symbolic tracer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from torch.fx import Proxy
from torch.nn import Module

__all__ = ["as_call", "as_leaf", "constant", "one_node", "symbolic"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def constant(function: _Function) -> _Function:
    """Mark a function as constant for torch.compile, which then calls it once while tracing and does not trace into it.

    torch.compiler.assume_constant_result does the same, but imports the whole compiler, which takes a second.
    """
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


def symbolic(*arguments: Any) -> bool:
    """Whether torch.fx is tracing a call: an argument, or an element of one, is a Proxy and not a tensor."""
    for argument in arguments:
        if isinstance(argument, Proxy):
            return True
        if type(argument) in (tuple, list) and symbolic(*argument):
            return True
    return False


def as_leaf(module: Module, *arguments: Any, **settings: Any) -> Any:
    """Record a call of a module as one node of torch.fx's graph.

    torch.fx traces into every module that is not defined in torch.nn. What a noisy module computes depends on shapes,
    dtypes and devices, which a Proxy does not have.
    """
    while arguments[-1] is None:  # an argument that was not given
        arguments = arguments[:-1]
    given = {name: setting for name, setting in settings.items() if setting is not None}
    tracer = _tracer((*arguments, *given.values()))
    return tracer.create_proxy("call_module", tracer.path_of_module(module), arguments, given)


def as_call(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """Record a call of a function as one node of torch.fx's graph, like :func:`as_leaf`."""
    return _tracer((*arguments, *settings.values())).create_proxy("call_function", function, arguments, settings)


def one_node(function: _Function) -> _Function:
    """Mark a function of a tensor: torch.fx records a call of it as one node and does not trace into it."""

    @functools.wraps(function)
    def recorded(*arguments: Any, **settings: Any) -> Any:
        if symbolic(*arguments, *settings.values()):
            return as_call(recorded, *arguments, **settings)
        return function(*arguments, **settings)

    return recorded  # pyright: ignore[reportReturnType]


def _tracer(arguments: Any) -> Any:
    """The tracer of the first Proxy among the arguments."""
    proxy = next(argument for argument in arguments if symbolic(argument))
    return proxy.tracer if isinstance(proxy, Proxy) else _tracer(proxy)
