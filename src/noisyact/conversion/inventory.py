"""An inventory of a model's noisy modules, saturating modules and saturating function calls."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from noisyact.activations import NoisyModule, check_model
from noisyact.conversion.replacing import is_substitute
from noisyact.conversion.saturating import FUNCTIONS, METHOD_NAMES, is_activation, is_saturating, obstacle
from noisyact.recurrent.cells import NoisyCell
from noisyact.recurrent.layers import NoisyRecurrent
from noisyact.recurrent.noise import RecurrentNoise
from noisyact.text_table import terminal_width, text_table

__all__ = ["Found", "Inventory", "in_words", "inventory", "rows_of", "unchanged"]

_NOT_TENSORS = ("self", "math", "np", "numpy")  # self.tanh(x) calls a submodule; math.tanh(2) is a constant


@dataclasses.dataclass(frozen=True)
class Found:
    """One entry of an :class:`Inventory`: a module or a function call."""

    name: str
    """The module's dotted name. For a function call, the name of the module whose forward method makes it."""
    kind: str
    """The module's type or the function's name."""
    where: str = ""
    """The file and line of a function call; empty for a module."""
    why: str = dataclasses.field(default="", compare=False)
    """Whether :func:`noisyact.noisify` replaces a module that is not noisy, and if not, why."""


@dataclasses.dataclass(frozen=True)
class Inventory:
    """The result of :func:`inventory`. Prints as a table."""

    noisy: tuple[Found, ...]
    saturating: tuple[Found, ...]
    """Modules that saturate and are not noisy."""
    calls: tuple[Found, ...]
    """Calls of saturating functions in forward methods, which conversion cannot replace."""
    others: tuple[Found, ...] = ()
    """Other torch activations. They do not saturate on both sides, and conversion does not replace them."""

    @property
    def complete(self) -> bool:
        """Whether every saturating part is noisy."""
        return not (self.saturating or self.calls)

    def __str__(self) -> str:
        rows = [("noisy", found.name or "(the model)", found.kind, "") for found in self.noisy]
        rows += [("saturating", found.name or "(the model)", found.kind, found.why) for found in self.saturating]
        rows += [("call", found.name or "(the model)", found.kind, found.where) for found in self.calls]
        rows += rows_of("other", self.others)
        if not rows:
            return "nothing noisy and nothing saturating"
        return text_table(("what", "module", "type", "where or why"), rows, terminal_width(), kept=(1, 2, 3))

    @property
    def left(self) -> str:
        """The parts that are not noisy, in one sentence: the count of each kind and the reason.

        >>> inventory(nn.Sequential(nn.ReLU(), nn.GELU(), nn.GELU())).left
        '1 ReLU (does not saturate on both sides; see NoisyReLU), 2 GELU (does not saturate on both sides)'
        """
        return in_words((*self.saturating, *self.others, *self.calls))


def in_words(found: Sequence[Found]) -> str:
    """The entries in one sentence: the count of each kind and the reason, and each function call.

    >>> in_words([Found("a", "GELU", why="does not saturate"), Found("", "torch.tanh", "net.py:7")])
    '1 GELU (does not saturate), a call of torch.tanh (net.py:7)'
    """
    modules, calls = ([one for one in found if bool(one.where) == is_call] for is_call in (False, True))
    parts = [f"{len(names)} {kind} ({why})" for (kind, why), names in _alike(modules).items()]
    return ", ".join(parts + [f"a call of {one.kind} ({one.where})" for one in calls])


def rows_of(what: str, found: Iterable[Found]) -> list[tuple[str, str, str, str]]:
    """The entries as rows of a table; modules of one kind with the same reason are one row.

    >>> rows_of("left", [Found("a", "GELU", why="w"), Found("b", "GELU", why="w"), Found("", "torch.tanh", "net.py:7")])
    [('left', 'a and 1 more', 'GELU', 'w'), ('left', '(the model)', 'torch.tanh', 'net.py:7')]
    """
    return [(what, _listed(names), kind, why) for (kind, why), names in _alike(found).items()]


def _alike(found: Iterable[Found]) -> dict[tuple[str, str], list[str]]:
    """The names of the entries, grouped by kind and reason, or by kind and place for function calls."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in found:
        groups.setdefault((one.kind, one.why or one.where), []).append(one.name)
    return groups


def _listed(names: list[str]) -> str:
    return (names[0] or "(the model)") + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def inventory(model: nn.Module, *inputs: Any, **keywords: Any) -> Inventory:
    """List a model's noisy modules, other saturating modules, saturating function calls and other activations.

    With inputs, the model runs once on them, and every call of torch.tanh, x.sigmoid(), F.hardtanh and so on outside
    an activation module is recorded. The run is in evaluation mode without gradients and preserves buffers and random
    generators. Without inputs, the source of the model's classes and the modules' attributes are searched for such
    functions.

    >>> print(inventory(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.GELU())))
    what        module  type  where or why
    saturating  1       Tanh  noisify replaces it
    other       2       GELU  does not saturate on both sides
    """
    check_model(model)
    noisy, saturating, others = [], [], []
    for name, module in model.named_modules():
        if isinstance(module, RecurrentNoise):
            continue  # its layer or cell is listed instead
        if _is_noisy(module):
            noisy.append(Found(name, type(module).__name__))
        elif _saturates(module):
            saturating.append(Found(name, type(module).__name__, why=_why(module)))
        elif is_activation(module) or isinstance(module, (NoisyRecurrent, NoisyCell)):
            others.append(Found(name, type(module).__name__, why=_why(module)))
    calls = _run_calls(model, inputs, keywords) if inputs or keywords else _source_calls(model)
    return Inventory(tuple(noisy), tuple(saturating), tuple(calls), tuple(others))


def _is_noisy(module: nn.Module) -> bool:
    if isinstance(module, (NoisyRecurrent, NoisyCell)):
        return module.noise is not None
    return isinstance(module, NoisyModule)


def _saturates(module: nn.Module) -> bool:
    """Whether a module saturates. This includes noisyact's recurrent layers and cells that were made without noise."""
    return is_saturating(module) or (isinstance(module, (NoisyRecurrent, NoisyCell)) and module.kind != "rnn_relu")


def _why(module: nn.Module) -> str:
    if isinstance(module, (NoisyRecurrent, NoisyCell)):
        if module.kind == "rnn_relu":
            return "does not saturate on both sides"
        return "noisify replaces it" if is_substitute(module) else "was made without noise"
    return obstacle(module) or "noisify replaces it"


def _run_calls(model: nn.Module, inputs: tuple, keywords: dict[str, Any]) -> list[Found]:
    watcher = _CallWatcher()
    with unchanged(model), _stack_of_modules(model, watcher.stack), torch.no_grad(), watcher:
        model.eval()(*inputs, **keywords)
    return list(dict.fromkeys(watcher.found))


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restore training flags, buffers and random generators on exit, even after an error."""
    flags = [(module, module.training) for module in model.modules()]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]  # a forward method may replace them
    values = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {t.device for t in (*model.parameters(), *model.buffers()) if t.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices, key=str)):
        try:
            yield
        finally:
            for module, flag in flags:
                module.training = flag
            for module, own in buffers:
                module._buffers.update(own)
            for buffer, before in values:
                if not (buffer.is_meta or torch.equal(buffer, before)):
                    buffer.data.copy_(before)


class _CallWatcher(TorchFunctionMode):
    """Records calls of saturating torch functions outside noisy and saturating modules."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[tuple[str, nn.Module]] = []
        self.found: list[Found] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = FUNCTIONS.get(func)
        if name is not None:
            path, module = self.stack[-1] if self.stack else ("", None)
            if module is None or not (_is_noisy(module) or _saturates(module)):
                self.found.append(Found(path, name, _caller()))
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _stack_of_modules(model: nn.Module, stack: list[tuple[str, nn.Module]]) -> Iterator[None]:
    """Keep the modules whose forward method is running on the stack."""
    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda m, args, name=name: stack.append((name, m))))
        handles.append(module.register_forward_hook(lambda m, args, out: stack.pop() and None, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _caller() -> str:
    """The file and line of the nearest frame outside torch and this file."""
    inside = (str(Path(torch.__file__).parent), __file__)
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(inside):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _source_calls(model: nn.Module) -> list[Found]:
    found = []
    for name, module in model.named_modules():
        if _is_noisy(module) or _saturates(module):
            continue
        for attribute, value in vars(module).items():
            if isinstance(value, Callable) and isinstance(value, Hashable) and value in FUNCTIONS:
                found.append(Found(name, FUNCTIONS[value], f"self.{attribute}"))
        for kind in type(module).__mro__:
            if issubclass(kind, nn.Module) and kind.__module__.partition(".")[0] not in ("torch", "noisyact"):
                found += [Found(name, call, where) for call, where in _calls_in_source(kind)]
    return list(dict.fromkeys(found))


def _calls_in_source(kind: type) -> Iterator[tuple[str, str]]:
    try:
        lines, first = inspect.getsourcelines(kind)
        file = Path(inspect.getsourcefile(kind) or "").name
    except (OSError, TypeError):
        return  # without source (interactive or compiled code), only a run with inputs finds the calls
    source = "".join(lines)
    if source[0].isspace():  # a class inside a function
        source, first = f"if True:\n{source}", first - 1
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            owner = getattr(getattr(function, "value", None), "id", "")
            if called in METHOD_NAMES and owner not in _NOT_TENSORS:
                yield ast.unparse(function), f"{file}:{first + node.lineno - 1}"
