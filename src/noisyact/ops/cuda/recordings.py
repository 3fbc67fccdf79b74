"""Loops over the steps of a recurrent layer, recorded as CUDA graphs, for later calls with the same addresses.

The host needs longer for a step's two calls of CUDA than most GPUs for the step. In training torch's allocator gives
the tensors of a call the memory that those of the call before had, so the same calls come again. The second time they
come they are recorded, and from then on a single call replays them.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from noisyact.ops.cuda import entry_points

__all__ = ["available", "clear", "record", "replay", "worthwhile"]

_MOST_RECORDINGS, _MOST_SEEN = 256, 1024
"""The number of recordings that are kept, and of calls that are remembered. A call's tensors have a few places each."""
_FEWEST_CALLS, _MOST_CALLS = 16, 8192
"""The calls of CUDA in a recording. Fewer take the host no longer than what finds the recording."""
_NON_BLOCKING, _RELAXED = 1, 2
"""CUDA's kinds of a stream that does not wait for the default stream, and of a capture that forbids other threads
nothing (CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED).
"""
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_DRIVER = {
    "cuStreamCreate": (_POINTER, ctypes.c_uint),
    "cuStreamBeginCapture_v2": (_POINTER, ctypes.c_int),
    "cuStreamEndCapture": (_POINTER, _POINTER),
    "cuGraphInstantiateWithFlags": (_POINTER, _POINTER, ctypes.c_ulonglong),
    "cuGraphLaunch": (_POINTER, _POINTER),
    "cuGraphDestroy": (_POINTER,),
    "cuGraphExecDestroy": (_POINTER,),
}
_CUBLAS = {"cublasSetStream_v2": (_POINTER, _POINTER), "cublasSetWorkspace_v2": (_POINTER, _POINTER, _SIZE)}
"""The functions that are needed, and the types of their arguments."""

_recordings: collections.OrderedDict[Hashable, int | None] = collections.OrderedDict()
"""The recorded graphs, the one that was used last at the end. None stands for calls that CUDA did not record."""
_seen: collections.OrderedDict[Hashable, None] = collections.OrderedDict()
_lock = threading.Lock()


@functools.cache
def available() -> bool:
    """Whether CUDA has all functions, and cuBLAS the memory for its own use that torch gives it by default."""
    if "CUBLAS_WORKSPACE_CONFIG" in os.environ:
        return False
    found = [*map(entry_points.driver, _DRIVER), *map(entry_points.cublas, _CUBLAS)]
    return None not in found


def worthwhile(calls: int) -> bool:
    """Whether this number of calls of CUDA is recorded."""
    return _FEWEST_CALLS <= calls <= _MOST_CALLS and available()


def replay(key: Hashable, stream: int) -> bool:
    """Replay on the stream what has been recorded for a key; return False if nothing has been."""
    with _lock:
        graph = _recordings.get(key)
        if graph is None:
            return False
        _recordings.move_to_end(key)
        status = _call("cuGraphLaunch", graph, stream)
    if status:
        raise RuntimeError(f"the steps of a recurrent layer: the replay of their launches failed with error {status}")
    return True


def record(key: Hashable, handle: int, stream: int, run: Callable[[int], None]) -> bool:
    """Record what `run` does if the key comes a second time, and replay it; else return False, and do nothing.

    Args:
        key: all that decides what `run` does: the addresses, the sizes, the settings, and the stream.
        handle: that of cuBLAS, as torch has just set it for the stream.
        stream: the current one, on which the recording will be replayed.
        run: makes the calls of CUDA on the stream that it is given.
    """
    with _lock:
        if key in _recordings:
            return False
        if key not in _seen:
            _keep(_seen, key, None, _MOST_SEEN)
            return False
        del _seen[key]
        dropped = _keep(_recordings, key, _recorded(handle, stream, run), _MOST_RECORDINGS)
        if dropped is not None:
            _call("cuGraphExecDestroy", dropped)  # if it still runs, it ends first
    return replay(key, stream)


def clear() -> None:
    """Forget all recordings and give back their memory."""
    with _lock:
        for graph in _recordings.values():
            if graph is not None:
                _call("cuGraphExecDestroy", graph)
        _recordings.clear()
        _seen.clear()


def _keep(kept: collections.OrderedDict[Hashable, Any], key: Hashable, value: Any, most: int) -> Any:
    """Add a value, and return the oldest one if there are too many."""
    kept[key] = value
    return kept.popitem(last=False)[1] if len(kept) > most else None


def _recorded(handle: int, stream: int, run: Callable[[int], None]) -> int | None:
    """The executable graph of what `run` does; None if CUDA does not record it."""
    device = torch.cuda.current_device()
    own, memory = _own_stream(device), _memory(device, stream)
    graph, executable = _POINTER(), _POINTER()
    try:
        if _call("cublasSetStream_v2", handle, own) or _call("cuStreamBeginCapture_v2", own, _RELAXED):
            return None
        try:
            # Without memory of its own a recording would use torch's, which torch may give back.
            if _call("cublasSetWorkspace_v2", handle, memory.data_ptr(), memory.numel()):
                return None
            run(own)
        except RuntimeError:
            return None
        finally:  # else the stream could not be used again
            ended = _call("cuStreamEndCapture", own, ctypes.addressof(graph))
        if ended or not graph.value:
            return None
        failed = _call("cuGraphInstantiateWithFlags", ctypes.addressof(executable), graph.value, 0)
        _call("cuGraphDestroy", graph.value)
        return None if failed else executable.value
    finally:
        torch.cuda.current_blas_handle()  # sets the stream and the memory again


@functools.cache
def _own_stream(device: int) -> int:
    """A stream for captures alone. torch's are shared, and what another thread does on one would be recorded too."""
    stream = _POINTER()
    status = _call("cuStreamCreate", ctypes.addressof(stream), _NON_BLOCKING)
    if status or not stream.value:
        raise RuntimeError(f"CUDA made no stream on device {device}: error {status}")
    return stream.value


@functools.cache  # never given back, because a recording has its address
def _memory(device: int, stream: int) -> Tensor:
    """Memory for cuBLAS's own use in the recordings of a stream, which run one after the other.

    cuBLAS chooses its kernels by the size too, so it is that which torch gives it.
    """
    is_new = torch.cuda.get_device_capability(device)[0] >= 9
    size = 4096 * 8 * 1024 if is_new else 4096 * 1024 * 2 + 16 * 1024 * 8
    return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))


def _call(name: str, *arguments: int) -> int:
    """Call a function of CUDA and return its status, which is 0 if it succeeded."""
    return _function(name)(*arguments)


@functools.cache
def _function(name: str) -> Any:
    types = _DRIVER.get(name) or _CUBLAS[name]
    address: Any = (entry_points.driver if name in _DRIVER else entry_points.cublas)(name)
    return ctypes.CFUNCTYPE(ctypes.c_int, *types)(address)
