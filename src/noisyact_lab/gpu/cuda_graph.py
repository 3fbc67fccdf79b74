"""A training step as a CUDA graph: one launch instead of hundreds, whose host overhead exceeds the GPU's time.

No step is run only to record it. The first call with inputs of a shape runs the step as an ordinary update, which also
creates whatever is made at first use (compiled kernels, the optimiser's state). The recording that follows computes
nothing. A replay uses the same kernels and the same random numbers as the step, so a resumed run, whose first update is
not a replay, has the result of an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["captured", "check_kernels"]

Step = Callable[..., Any]


def captured(step: Step, example_inputs: Sequence[Tensor]) -> Step:
    """Return a step that is recorded once for each shape of its inputs on a CUDA device and then replayed.

    On a CPU the step itself is returned. Each replay draws new noise and dropout from torch's generator. The rules:

    - The inputs are tensors on one device and are copied into the graph's inputs. The result is a tensor, a tuple of
      tensors or None, and the next call overwrites it.
    - The step does not read a number from the device (``item()``, ``if loss > 1``).
    - Numbers that change are in tensors that are updated in place. The noise scale is one, so `set_noise_scale` works
      between calls. A Python number keeps the value it had when the step was recorded.
    - The optimiser is created with ``capturable=True``, and its ``zero_grad()`` is part of the step.

    Args:
        step: a function of tensors.
        example_inputs: tensors on the step's device. The step is not run with them.

    >>> step = captured(lambda x: x + 1, [torch.zeros(2)])
    >>> step(torch.ones(2))
    tensor([2., 2.])
    """
    devices = {tensor.device for tensor in example_inputs}
    if len(devices) != 1:
        raise ValueError(f"the inputs of a step must be on one device, not on {sorted(map(str, devices)) or 'none'}")
    return _Captured(step) if devices.pop().type == "cuda" else step


def check_kernels(device: torch.device) -> None:
    """Raise if a recurrent kernel has timed out. In a graph only its NaN would show, which looks like divergence."""
    from noisyact.ops.triton import obstacle

    if obstacle(device) is None:
        from noisyact.ops.recurrent.gpu.launches import check_alarm

        check_alarm()


class _Captured:
    """A step with a graph for each shape of its inputs. The graphs never run concurrently, so they share memory."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._graphs: dict[tuple[torch.Size, ...], _Graph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        # A graph cannot be recorded on the default stream. A run on another stream records on that stream, because
        # graphs recorded on one stream share cuBLAS's workspace and must not run concurrently.
        current = torch.cuda.current_stream()
        self._stream = torch.cuda.Stream() if current == torch.cuda.default_stream() else current

    def __call__(self, *inputs: Tensor) -> Any:
        shapes = tuple([tensor.shape for tensor in inputs])
        graph = self._graphs.get(shapes)
        if graph is None:
            graph = self._graphs[shapes] = _Graph(self._step, inputs, self._pool, self._stream)
            return graph.first
        return graph.replay(inputs)


class _Graph:
    """The step for one shape of inputs: run once, recorded, and then replayed."""

    def __init__(self, step: Step, inputs: Sequence[Tensor], pool: Any, stream: torch.cuda.Stream) -> None:
        self._inputs = [tensor.clone() for tensor in inputs]
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            self.first = step(*self._inputs)
        current.wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with _no_collection(), torch.cuda.graph(self._graph, pool=pool, stream=stream):
            self._outputs = step(*self._inputs)

    def replay(self, inputs: Sequence[Tensor]) -> Any:
        for own, new in zip(self._inputs, inputs, strict=True):
            own.copy_(new, non_blocking=True)
        self._graph.replay()
        return self._outputs


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection, because freeing another graph or GPU memory would break the recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
