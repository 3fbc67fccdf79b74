"""Noise under activation checkpointing: the recomputation of a region uses the seeds of its first pass.

With ``preserve_rng_state=True``, torch.utils.checkpoint restores torch's generators before it recomputes a region.
Large-scale trainers often disable this. The recomputation would then draw new seeds, and the gradient would be silently
wrong, because the recomputed noise differs from the noise in the loss. Therefore each region's seeds are recorded with
the region and replayed, whether or not torch restores its generators.

torch has no public API that tells which region is running. The call stack does: frames of torch.utils.checkpoint hold
their region's object, and are recognised by their module and by the types of their variables. A region that is not
recognised (in a newer torch, or a composable checkpoint of torch.distributed) relies on torch to restore the generator:
its seeds are drawn again, and an error is raised if torch does not restore it.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from types import FrameType, GeneratorType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.utils import checkpoint

__all__ = ["CheckpointedPass", "current_pass", "graph_task", "saved_tensor_hooks"]

# None of these names is public API of torch. If one is missing, no region is recognised.
graph_task: Callable[[], int | None] = getattr(torch._C, "_current_graph_task_id", lambda: None)
saved_tensor_hooks: Callable[[bool], Any] = getattr(
    getattr(torch._C, "_autograd", None), "_top_saved_tensors_default_hooks", lambda _: ()
)
_NON_REENTRANT: Any = getattr(checkpoint, "_CheckpointFrame", ()) if graph_task() is not None else ()
_REENTRANT: Any = getattr(checkpoint, "CheckpointFunction", None) if graph_task() is not None else None

_MODULES = {checkpoint.__name__, checkpoint.checkpoint.__module__}
_FORWARD, _BACKWARD = (
    getattr(inspect.unwrap(getattr(_REENTRANT, name, None)), "__code__", None)  # pyright: ignore[reportArgumentType]
    for name in ("forward", "backward")
)


class Region:
    """One pass over a checkpointed region. The seeds are attributes of torch's object for the region."""

    def __init__(self, owner: Any, backward_pass: Any = None) -> None:
        self._owner = owner
        self._backward_pass = backward_pass

    @property
    def seeds(self) -> list[Tensor]:
        """The seeds of the first pass."""
        return getattr(self._owner, "noisyact_seeds", [])

    def record(self, seed: Tensor) -> None:
        """Record a seed of the first pass."""
        if not self.seeds:
            self._owner.noisyact_seeds, self._owner.noisyact_position = [], {}
        self.seeds.append(seed)

    def replay(self) -> Tensor:
        """The next recorded seed. Each backward pass that recomputes the region starts from the first seed."""
        seeds = self.seeds
        position = self._owner.noisyact_position.get(self._backward_pass, 0) if seeds else 0
        if position >= len(seeds):
            raise RuntimeError(
                f"a checkpointed region drew {len(seeds)} noise seeds in its first pass and needs more in its "
                "recomputation: it must run the same noisy modules both times"
            )
        self._owner.noisyact_position[self._backward_pass] = position + 1
        return seeds[position]


class CheckpointedPass:
    """The checkpointed regions around a draw, as found on the call stack.

    Regions nest. The regions in ``recording`` are in their first pass; ``replaying`` is the one that is recomputed. A
    region that first runs inside a recomputation replays the seeds of the region that is recomputed.
    """

    def __init__(self) -> None:
        self.recording: list[Region] = []
        self.replaying: Region | None = None
        self._always_seen = False
        self._restores: list[bool] = []

    def look(self, frame: FrameType) -> None:
        """Inspect a frame of torch.utils.checkpoint. Call this for the innermost frame first."""
        variables = frame.f_locals
        contexts = [v for v in variables.values() if isinstance(v, FunctionCtx)]
        for flag in (variables.get("preserve_rng_state"), *(getattr(c, "preserve_rng_state", None) for c in contexts)):
            if flag is not None:
                self._restores.append(bool(flag))
        if frame.f_code is _FORWARD:
            self.recording.append(Region(variables[frame.f_code.co_varnames[0]]))
        elif frame.f_code is _BACKWARD:
            self.replaying = Region(variables[frame.f_code.co_varnames[0]], graph_task())
            self._always_seen = True  # the first pass of this region was recognised too
        else:
            self._look_for_objects(variables)

    def _look_for_objects(self, variables: dict[str, Any]) -> None:
        for value in list(variables.values()):
            if isinstance(value, GeneratorType) and value.gi_frame is not None:
                # The generator of a first pass is suspended while the region runs.
                inner = value.gi_frame.f_locals.values()
                self.recording += [Region(owner) for owner in inner if _is_region(owner)]
            elif _is_region(value):
                # Use torch's own pass id, because a saved tensor may be unpacked outside of any backward pass.
                self.replaying = Region(value, variables.get("gid", graph_task()))

    def seed(self, draw: Callable[[], Tensor], of_torch: bool) -> Tensor:
        """Return the seed for this pass: drawn in the first pass, replayed in a recomputation.

        Args:
            draw: a function that draws a new seed.
            of_torch: whether ``draw`` uses torch's default generator.
        """
        if self.replaying is not None and (self.replaying.seeds or self._always_seen):
            if of_torch:
                draw()  # advance torch's restored generator, so that later dropout draws the same numbers again
            seed = self.replaying.replay()
        else:
            recognised = self.recording and self.replaying is None
            if not recognised and graph_task() != -1:
                self._require_restored_generator(of_torch)
            seed = draw()
        for region in self.recording:
            region.record(seed)
        return seed

    def _require_restored_generator(self, of_torch: bool) -> None:
        unknown = f"noise in a checkpointed region that noisyact does not recognise (torch {torch.__version__})"
        if not of_torch:
            raise RuntimeError(
                f"{unknown}: torch does not restore a generator of your own for the recomputation; pass a seed instead"
            )
        if not all(self._restores):
            raise RuntimeError(
                f"{unknown}: the recomputation would draw different noise from the first pass; "
                "use checkpoint(..., preserve_rng_state=True)"
            )
        if not self._restores:
            _warn_once(f"{unknown}: gradients are correct only with checkpoint(..., preserve_rng_state=True)")


def current_pass() -> CheckpointedPass | None:
    """The pass over checkpointed regions that the caller is part of; None outside any region."""
    found = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (found is None or found.replaying is None):
        if frame.f_globals.get("__name__") in _MODULES:
            found = found or CheckpointedPass()
            found.look(frame)
        frame = frame.f_back
    return found


def _is_region(value: Any) -> bool:
    return isinstance(value, _NON_REENTRANT) and hasattr(value, "__dict__")


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)
