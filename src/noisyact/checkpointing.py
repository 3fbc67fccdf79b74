"""Noise under activation checkpointing: the second run of a region gets the seeds of the first.

torch.utils.checkpoint restores the random generators for the recomputation only with ``preserve_rng_state=True``;
large-scale trainers often switch that off. Fresh seeds would then give the recomputed activations other noise than the
loss has seen, and a wrong gradient without a word. So seeds drawn inside a region are kept with the region.

torch offers no public way to ask "which checkpointed region is this, and is it running again?". The answer is on the
call stack: both of torch's implementations have a frame there that holds the region's own object. If a future torch
renames those, no region is found and seeds are drawn as outside; the tests would say so.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._C import _autograd
from torch.utils import checkpoint

__all__ = ["Region", "current_regions"]


class Region:
    """One pass over a checkpointed region. The seeds live on torch's own object for the region and go with it."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def record(self, seed: Tensor) -> None:
        """Keep a seed of the first pass."""
        if not hasattr(self._owner, "noisyact_seeds"):
            self._owner.noisyact_seeds, self._owner.noisyact_position = [], {}
        self._owner.noisyact_seeds.append(seed)

    def replay(self) -> Tensor:
        """The next seed of the first pass."""
        seeds: list[Tensor] = getattr(self._owner, "noisyact_seeds", [])
        # Each backward pass that recomputes the region starts again from its first seed.
        backward_pass = torch._C._current_graph_task_id()
        position = self._owner.noisyact_position.get(backward_pass, 0) if seeds else 0
        if position >= len(seeds):
            raise RuntimeError(
                f"a checkpointed region drew {len(seeds)} noise seeds in its first pass and asks for more in the "
                "second: it must run the same noisy modules both times"
            )
        self._owner.noisyact_position[backward_pass] = position + 1
        return seeds[position]


def current_regions() -> tuple[list[Region], Region | None]:
    """The checkpointed regions around the caller: those in their first pass, and the one that is being recomputed.

    Regions nest. What runs for the first time inside a region's second pass has been recorded by that region.
    """
    recomputing = torch._C._current_graph_task_id() != -1
    hooked = _autograd._top_saved_tensors_default_hooks(True) is not None
    if not (recomputing or hooked or not torch.is_grad_enabled()):
        return [], None  # every checkpointed pass shows one of these; looking at the stack is for those alone
    recording: list[Region] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        look = _FRAMES.get(frame.f_code)
        owner = None if look is None else look(frame)
        if owner is not None:
            if frame.f_code in _REPLAYING:
                return recording, Region(owner)
            recording.append(Region(owner))
        frame = frame.f_back
    return recording, None


def _frame_of_generator(frame: FrameType) -> Any:
    generator = frame.f_locals.get("gen")
    inner = getattr(generator, "gi_frame", None)
    return None if inner is None else inner.f_locals.get("new_frame")


def _frame_of_unpack_hook(frame: FrameType) -> Any:
    return frame.f_locals.get("frame")


def _context(frame: FrameType) -> Any:
    return frame.f_locals.get("ctx")


def _unpack_hook_code() -> Any:
    constants = checkpoint._checkpoint_hook.__init__.__code__.co_consts
    return next((c for c in constants if getattr(c, "co_name", "") == "unpack_hook"), None)


def _code(function: Any) -> Any:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "__code__", None)


_REPLAYING = {_unpack_hook_code(), _code(checkpoint.CheckpointFunction.backward)} - {None}
_FRAMES = {
    _code(checkpoint.checkpoint): _frame_of_generator,
    _unpack_hook_code(): _frame_of_unpack_hook,
    _code(checkpoint.CheckpointFunction.forward): _context,
    _code(checkpoint.CheckpointFunction.backward): _context,
}
_FRAMES.pop(None, None)
