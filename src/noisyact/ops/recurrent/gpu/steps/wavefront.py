"""Layers above each other at the same time: each is one part of the sequence behind the layer before it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["parts_of", "run"]

_PARTS, _STEPS, _NUMBERS = 2, 4, 1 << 18
"""The parts for each layer; the fewest steps of a part; and the size of a state, batch times units, from which a layer
fills a GPU alone.
"""


def parts_of(steps: int, layers: int, numbers: int) -> list[slice]:
    """The parts of a sequence that the layers process in turn; one part if they are processed one after the other.

    Args:
        steps: the length of the sequence.
        layers: the number of layers.
        numbers: the size of a layer's state.

    >>> parts_of(20, 2, 1000)
    [slice(0, 5, None), slice(5, 10, None), slice(10, 15, None), slice(15, 20, None)]
    >>> parts_of(20, 1, 1000)
    [slice(0, 20, None)]
    """
    count = 1
    if layers > 1 and numbers < _NUMBERS:
        count = max(1, min(_PARTS * layers, steps // _STEPS))
    ends = [steps * part // count for part in range(count + 1)]
    return [slice(*ends[part : part + 2]) for part in range(count)]


def run(passes: Sequence[Callable[[slice], None]], parts: Sequence[slice], device: torch.device) -> None:
    """Run each pass over all parts in order. A pass begins a part once the pass before it has ended that part.

    With several parts each pass has its own stream, so that layers too small to fill the GPU share it. Their tensors
    must have been allocated before, on the current stream, which afterwards waits for all others.
    """
    if len(passes) == 1 or len(parts) == 1 or device.type != "cuda":
        for each in passes:
            for part in parts:
                each(part)
        return
    main = torch.cuda.current_stream(device)
    streams = [main, *_streams(device, len(passes) - 1)]
    ready = main.record_event()
    ended: list[list[Any]] = [[] for _ in passes]
    for wave in range(len(parts) + len(passes) - 1):
        for index, each in enumerate(passes):
            number = wave - index
            if not 0 <= number < len(parts):
                continue
            with torch.cuda.stream(streams[index]):
                if index > 0:
                    if number == 0:
                        streams[index].wait_event(ready)
                    streams[index].wait_event(ended[index - 1][number])
                each(parts[number])
                ended[index].append(streams[index].record_event())
    for events in ended[1:]:
        main.wait_event(events[-1])


@functools.lru_cache(maxsize=16)
def _streams(device: torch.device, count: int) -> tuple[torch.cuda.Stream, ...]:
    return tuple(torch.cuda.Stream(device) for _ in range(count))
