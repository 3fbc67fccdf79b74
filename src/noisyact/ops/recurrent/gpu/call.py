"""The settings of a GPU call of stacked recurrent layers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from noisyact.ops.recurrent.checks import check_sizes
from noisyact.ops.recurrent.types import GATES, CellNoise, StateRules

__all__ = ["StackCall", "extra_rows", "packed_rows", "stack_call"]


class StackCall(NamedTuple):
    """The settings of a call of stacked layers in one direction."""

    kind: str
    noise: CellNoise
    seeds: Sequence[Tensor | None]
    """One seed for each layer; None for the expectation."""
    steps: int
    batch: int
    offsets: Tensor | None
    """[steps + 1], int32: the first row of each step, and the number of rows. None if all steps have the same size."""
    before: Tensor | None
    """For each row, the row of the previous h, as computed by :func:`packed_rows`. None if all sizes are equal."""
    reverse: bool
    rules: Sequence[StateRules] | None = None
    """One for each layer, all with the same features; None for layers without any."""
    sizes: tuple[int, ...] | None = None
    """The number of rows at each step. None if all steps have the same size."""

    def every_size(self) -> tuple[int, ...]:
        """The number of rows at each step."""
        return (self.batch,) * self.steps if self.sizes is None else self.sizes


def stack_call(
    kind: str, sizes: Sequence[int], seeds: Sequence[Tensor | None], noise: CellNoise, reverse: bool,
    device: torch.device, rules: Sequence[StateRules] | None = None,
) -> StackCall:  # fmt: skip
    """The call for the given number of rows at each step."""
    batch = sizes[0]
    offsets, before = (None, None) if sizes[-1] == batch else packed_rows(tuple(sizes), reverse, device)
    packed = None if offsets is None else tuple(sizes)
    return StackCall(kind, noise, seeds, len(sizes), batch, offsets, before, reverse, rules, packed)


def extra_rows(kind: str, rows: int, zoneout_c: float) -> int:
    """The number of rows that forward saves besides the pre-activations: the LSTM's c or the GRU's W_hn h + b_hn.

    With zoneout of c these are the LSTM's c before zoneout in all rows, and then the c after it.
    """
    if GATES[kind] == 1:
        return 0
    return 2 * rows if kind == "lstm" and zoneout_c > 0 else rows


@functools.lru_cache(maxsize=8)
def packed_rows(sizes: tuple[int, ...], reverse: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """The first row of each step, int32; and for each row, the row of the previous h in ``[every h; initial h]``."""
    check_sizes(sizes)
    size = torch.tensor(sizes, device="cpu")
    offsets = torch.cat([size.new_zeros(1), size.cumsum(0)])
    step = torch.repeat_interleave(torch.arange(len(sizes), device="cpu"), size)
    place = torch.arange(int(offsets[-1]), device="cpu") - offsets[step]
    other = step + 1 if reverse else step - 1
    known = (other >= 0) & (other < len(sizes))
    other = other.clamp(0, len(sizes) - 1)
    known &= place < size[other]
    before = torch.where(known, offsets[other], offsets[-1]) + place
    return offsets.to(torch.int32).to(device), before.to(device)
