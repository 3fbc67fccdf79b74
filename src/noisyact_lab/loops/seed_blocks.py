"""Seeds of noise drawn many at a time: one by one, each is a launch that takes a GPU as long as a small kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from noisyact.noise import fresh_seed, source

__all__ = ["BLOCK", "seeds_in_blocks"]

BLOCK = 64
"""Seeds that are drawn at once."""


def seeds_in_blocks(on: bool = True) -> contextlib.AbstractContextManager[Any]:
    """Within it the seeds that calls take from torch's own generator are drawn in blocks; what is left over is dropped.

    The noise is another than without it. It is for a step that is recorded, and belongs into it: a block that was drawn
    before the recording would be the same at each replay. Regions of activation checkpointing draw as ever.

    >>> from noisyact.noise import draw_seed
    >>> with seeds_in_blocks():
    ...     first, second = (draw_seed(torch.device("cpu")) for _ in range(2))
    >>> torch.equal(first, second)
    False
    """
    return _Blocks() if on else contextlib.nullcontext()


class _Blocks:
    def __init__(self) -> None:
        self._left: dict[torch.device, Iterator[Tensor]] = {}

    def __enter__(self) -> None:
        self._before, source.draw = source.draw, self._next

    def __exit__(self, *_: object) -> None:
        source.draw = self._before

    def _next(self, device: torch.device) -> Tensor:
        if torch._C._are_functorch_transforms_active():  # they want to see every draw
            return fresh_seed(device, None, ())
        seed = next(self._left.get(device, iter(())), None)
        if seed is None:
            # Every second number alone: Triton compiles a kernel again for an address that is no multiple of 16.
            self._left[device] = iter(fresh_seed(device, None, (BLOCK, 2))[:, 0].unbind())
            seed = next(self._left[device])
        return seed
