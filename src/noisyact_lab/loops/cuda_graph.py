"""A training step as a CUDA graph: one launch instead of hundreds, which take the host longer than the GPU.

No step is run only for the recording. The first call with inputs of a shape runs the step, which is an ordinary update
and creates whatever is made at first use (compiled kernels, the optimiser's state); the recording that follows runs
nothing. A replay does what the step does, with the same kernels and the same random numbers, so a resumed run, whose
first update is not a replay, ends with the result of an uninterrupted one.
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
    """Return a step that on a CUDA device is recorded once for each shape of its inputs and then replayed.

    On a CPU the step itself is returned. Each replay draws new noise and dropout from torch's generator. The rules:

    - the inputs are tensors on one device, which are copied into those of the graph; the result, a tensor, a tuple of
      tensors or None, is overwritten by the next call;
    - the step does not read a number from the device (``item()``, ``if loss > 1``);
    - numbers that change are in tensors that are changed in place, as the noise's scale is (`set_noise_scale` works
      between calls): a Python number keeps its value of the recording;
    - the optimiser is made with ``capturable=True``, and its ``zero_grad()`` is part of the step.

    Args:
        step: a function of tensors.
        example_inputs: tensors on the step's device; the step is not run with them.

    >>> step = captured(lambda x: x + 1, [torch.zeros(2)])
    >>> step(torch.ones(2))
    tensor([2., 2.])
    """
    devices = {tensor.device for tensor in example_inputs}
    if len(devices) != 1:
        raise ValueError(f"the inputs of a step must be on one device, not on {sorted(map(str, devices)) or 'none'}")
    return _Captured(step) if devices.pop().type == "cuda" else step


def check_kernels(device: torch.device) -> None:
    """Raise if a recurrent kernel has given up: in a graph only its NaN would show, which looks like divergence."""
    from noisyact.ops.triton import obstacle

    if obstacle(device) is None:
        from noisyact.ops.recurrent.gpu.launches import check_alarm

        check_alarm()


class _Captured:
    """A step with a graph for each shape of its inputs. The graphs never run at once and share their memory."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._graphs: dict[tuple[torch.Size, ...], _Graph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        # No graph can be recorded on the default stream. A run on another stream records there: graphs recorded on one
        # stream share the products' workspace and must not run at once.
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
    """The step for one shape: run once, recorded, and then replayed."""

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
    """Switch garbage collection off: freeing another graph, or GPU memory, would break the recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
