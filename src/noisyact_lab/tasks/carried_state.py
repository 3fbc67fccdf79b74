"""The state of recurrent layers, carried from one update to the next."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from noisyact.recurrent.layers import NoisyRecurrent
from noisyact_lab.engine.process_group import SINGLE_PROCESS, ProcessGroup

__all__ = ["CarriedState"]


class CarriedState(nn.Module):
    """The state of recurrent layers from one update to the next; a module, so that a checkpoint has it.

    In a group each process has the whole state, but writes only that of its own columns until all is gathered.
    """

    def __init__(self, recurrent: NoisyRecurrent, batch: int) -> None:
        super().__init__()
        parts = 2 if recurrent.kind == "lstm" else 1
        self.register_buffer("parts", torch.zeros(parts, recurrent.num_layers, batch, recurrent.hidden_size))
        self._group = SINGLE_PROCESS

    def spread(self, group: ProcessGroup) -> None:
        """From now on carry the state of this process's columns."""
        self._group = group

    def reset(self) -> None:
        """Set the state to zero."""
        self.get_buffer("parts").zero_()

    def gather(self) -> None:
        """Put the columns of the whole group into their places, as a checkpoint must have them."""
        self.get_buffer("parts").copy_(self._group.all_gather(self._mine(), dim=2))

    def _mine(self) -> Tensor:
        return self._group.share(self.get_buffer("parts"), dim=2)  # a view: what is written there is in its place

    def state(self) -> Any:
        """The state as the layers take it: (h, c), or h."""
        parts = self._mine().unbind()
        return parts if len(parts) == 2 else parts[0]

    def keep(self, state: Any) -> None:
        """Carry this state from now on, without its gradient."""
        parts = state if isinstance(state, tuple) else (state,)
        for mine, new in zip(self._mine(), parts, strict=True):
            mine.copy_(new.detach())
