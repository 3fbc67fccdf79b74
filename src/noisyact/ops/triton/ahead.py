"""What the first launches need, done in other threads while the caller's thread does something else.

Triton's compiler, the hash of its library and the C compiler run without Python's lock.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["compile_ahead", "in_turns", "prepare", "prepared"]

_TRANSLATION = threading.Lock()


def prepare() -> None:
    """Start to import and read what every first launch of a process needs. Call it as early as possible."""
    _preparation()


def prepared() -> None:
    """Wait until what :func:`prepare` has started is done; otherwise Triton would do it a second time."""
    _preparation().join()


def in_turns(kernel: Any) -> bool:
    """Let only one thread at a time translate Python to Triton's language, and return whether this can be arranged.

    That part of a compilation is short and holds Python's lock anyway. It changes the filters of warnings, and before
    Python 3.11.9 and 3.12.3 the parser raises an error if another thread parses too.
    """
    from triton.runtime import driver

    caches = getattr(kernel, "device_caches", None)
    if caches is not None:
        _ = caches[driver.active.get_current_device()]  # Triton sets ASTSource now, unless it has done so
    source = getattr(kernel, "ASTSource", None)
    if source is None:
        return False
    if not hasattr(source, "waits"):
        kernel.ASTSource = _waiting(source)
    with _TRANSLATION:
        _ = kernel.cache_key  # parses all functions that the kernel calls
    return True


@functools.cache
def _waiting(source: Any) -> Any:
    """A subclass of triton.compiler.ASTSource."""

    class Source(source):
        waits = True

        def make_ir(self, *arguments: Any, **keywords: Any) -> Any:
            with _TRANSLATION:
                return super().make_ir(*arguments, **keywords)

    return Source


def compile_ahead(kernel: Any, arguments: Sequence[Any], constants: Mapping[str, Any]) -> threading.Thread | None:
    """Compile a kernel in another thread, for the launch that will follow. Returns the thread; None if it is not safe.

    A launch with arguments of the same kinds finds it compiled once the thread has ended. If the compilation fails,
    that launch compiles again and raises the error.

    Args:
        kernel: a triton.jit function.
        arguments: those of the launch; a dtype stands for a tensor whose address is a multiple of 16.
        constants: the values of the kernel's constants, and the compiler options.
    """
    prepared()
    if not in_turns(kernel):
        return None
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    return _started(_compile, kernel, device, arguments, constants)


@functools.cache
def _preparation() -> threading.Thread:
    return _started(_prepare)


def _started(function: Any, *arguments: Any) -> threading.Thread:
    # Not a daemon: Python could not stop it within Triton's compiler, so it must end before the process does.
    thread = threading.Thread(target=function, args=arguments, name="noisyact-ahead")
    thread.start()
    return thread


def _prepare() -> None:
    """Compute what Triton would compute in the first launch; where it has another name, that launch computes it."""
    with contextlib.suppress(Exception):
        from triton.runtime.cache import triton_key

        triton_key()  # reads Triton's library, 400 MB
    with contextlib.suppress(Exception):
        import triton.experimental.gluon.language  # noqa: F401  # by Triton's first look at an argument
    with contextlib.suppress(Exception):
        from triton.runtime import driver

        _ = driver.active.utils  # compiled by the C compiler in the first process


def _compile(kernel: Any, device: int | None, arguments: Sequence[Any], constants: Mapping[str, Any]) -> None:
    with contextlib.suppress(Exception):
        from triton.runtime import driver

        if device is not None:
            torch.cuda.set_device(device)  # of this thread
        compiled = kernel.warmup(*arguments, grid=(1,), **constants)
        # Up to Triton 3.6 this lets the C compiler build what launches the kernel. The module is loaded by the launch
        # itself, because a load may not happen while another thread records a CUDA graph.
        driver.active.launcher_cls(compiled.src, compiled.metadata)
