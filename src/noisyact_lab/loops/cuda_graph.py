"""A training step as a CUDA graph: one launch where there were some hundred, which take the host longer than the GPU.

Nothing is run for the sake of the recording, so nothing has to be undone after it: the first call with inputs of a
shape does the step as it is, an update like any other, and is followed by the recording, which runs nothing. Whatever
is made at first use (compiled kernels, the optimiser's state) is there by then. A graph does what the step does, with
the same kernels and the same random numbers, so a run that is resumed, whose first update is a plain one, ends as one
that was never stopped.
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
    """The step as it is where the inputs are on a CPU; on a CUDA device recorded once for each shape, then replayed.

    Noise and dropout are drawn anew at each replay, from torch's own generator. What a step must keep to:

    - its inputs are tensors on one device, and are copied into the graph's own; what it returns, a tensor, a tuple of
      tensors or None, is overwritten by the next call;
    - it does not read a number back (``item()``, ``if loss > 1``);
    - numbers that change are in tensors that stay where they are, as the noise's scale is (`set_noise_scale` works
      between calls): a Python number is for ever the one of the recording;
    - its optimiser is made with ``capturable=True`` and its ``zero_grad()`` is part of the step.

    Args:
        step: a function of tensors.
        example_inputs: they say which device; nothing is run with them.

    >>> step = captured(lambda x: x + 1, [torch.zeros(2)])
    >>> step(torch.ones(2))
    tensor([2., 2.])
    """
    devices = {tensor.device for tensor in example_inputs}
    if len(devices) != 1:
        raise ValueError(f"the inputs of a step must be on one device, not on {sorted(map(str, devices)) or 'none'}")
    return _Captured(step) if devices.pop().type == "cuda" else step


def check_kernels(device: torch.device) -> None:
    """Raise if a recurrent kernel gave up, which in a graph shows as NaN alone and would pass for a divergence."""
    from noisyact.ops.triton import obstacle

    if obstacle(device) is None:
        from noisyact.ops.recurrent.gpu.launches import check_alarm

        check_alarm()


class _Captured:
    """A step with a graph for each shape of its inputs. They take turns, so they share their memory."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._graphs: dict[tuple[torch.Size, ...], _Graph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        # No graph can be recorded on the default stream. A run that has a stream of its own records there: graphs
        # recorded on one stream share the products' workspace, and must not run at once.
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
    """The step for one shape: done once, recorded, and then replayed."""

    def __init__(self, step: Step, inputs: Sequence[Tensor], pool: Any, stream: torch.cuda.Stream) -> None:
        self._inputs = [tensor.clone() for tensor in inputs]
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            self.first = step(*self._inputs)
        current.wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with _nothing_collected(), torch.cuda.graph(self._graph, pool=pool, stream=stream):
            self._outputs = step(*self._inputs)

    def replay(self, inputs: Sequence[Tensor]) -> Any:
        for own, new in zip(self._inputs, inputs, strict=True):
            own.copy_(new, non_blocking=True)
        self._graph.replay()
        return self._outputs


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """Garbage may hold another graph, or memory of the GPU, that must not be freed while this one is recorded."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
