"""The memory through which the programs of a launch exchange values, filled before the launch."""

from __future__ import annotations

import collections
import functools

import torch
from torch import Tensor

from noisyact.ops.recurrent.gpu.plan import Sizes
from noisyact.ops.triton.barrier import ABSENT

__all__ = ["exchange_buffer"]

_BUFFERS, _MOST_NUMBERS = 32, 1 << 13
"""Buffers of up to so many numbers are filled so many at a time: the fill of one takes the host as long as a launch."""


def exchange_buffer(layers: int, sizes: Sizes, device: torch.device) -> Tensor:
    """The exchange of stacked layers, int32: [layers, numbers]. Each call returns other memory."""
    start, numbers = ABSENT.value if sizes.by_value else 0, layers * sizes.exchange
    if device.type != "cuda" or numbers > _MOST_NUMBERS or torch.cuda.is_current_stream_capturing():
        return torch.full((layers, sizes.exchange), start, dtype=torch.int32, device=device)
    spare = _spare(layers, sizes.exchange, start, device, torch._C._cuda_getCurrentRawStream(device.index))
    try:
        return spare.pop()
    except IndexError:
        first, *others = torch.full((_BUFFERS, layers, sizes.exchange), start, dtype=torch.int32, device=device)
        spare.extend(others)
        return first


@functools.lru_cache(maxsize=32)
def _spare(layers: int, numbers: int, start: int, device: torch.device, stream: int) -> collections.deque[Tensor]:
    """Filled buffers for launches on a stream. A graph fills its own, at every replay."""
    return collections.deque()
