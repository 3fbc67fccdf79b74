"""How a layer is cut into programs: by its sizes and by what the device has room for."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from noisyact.ops.recurrent.types import GATES

__all__ = [
    "Plan", "Sizes", "backward_plan", "backward_sizes", "forward_plan", "forward_sizes", "padded_size", "processors",
    "slice_size",
]  # fmt: skip

_RESIDENT = 256
"""Up to this many units the recurrent weights stay in registers."""
_ROWS_IN_LAUNCH, _INPUTS_IN_LAUNCH = 1024, 512
"""Up to so many rows of so many inputs the products over all rows are in the launch."""


class Plan(NamedTuple):
    """A cut of a layer."""

    persistent: bool
    """All steps in one launch, programs waiting for each other; else one launch a step."""
    rows: int
    """Sequences of a program."""
    units: int
    """Units of a program."""
    depth: int
    """How much of the product's inner dimension is loaded at a time."""
    resident: bool
    """The weights stay in registers; depth then covers the whole inner dimension."""
    stages: int
    """Loads in flight, in parts of that depth."""
    warps: int
    slices: int = 1
    """In backward: parts of the inner dimension that different warps take, added up at the end."""
    team: int = 1
    """In backward: programs that share out the inner dimension and exchange sums, each for the units of all of them."""

    def programs(self, hidden: int) -> int:
        """Programs for a block of the batch."""
        return -(-hidden // (self.units * self.team)) * self.team

    def blocks(self, batch: int) -> int:
        """Blocks of the batch, which never wait for each other."""
        return -(-batch // self.rows)

    def writes_products(self, rows: int, inputs: int) -> bool:
        """Whether the launch also has the products over all of this many rows: W_ih x, or the gradients of the weights
        and the input.

        Else they are torch's. It spares the host a call or three for each layer, which counts as long as the GPU waits
        for the host. Where there is much to multiply, the GPU is busy anyway, and torch's products are the faster ones.
        Only small layers, whose programs have room for it.
        """
        return self.persistent and self.resident and rows <= _ROWS_IN_LAUNCH and inputs <= _INPUTS_IN_LAUNCH


# Rows, units, depth in bytes, stages and warps of a program, and its team; the fastest first as measured on an H200.
# The first that fits the device is taken. Small programs are fast as long as there are processors for them.
_FORWARD_RESIDENT = ((16, 8, 0, 3, 4), (32, 8, 0, 3, 8), (16, 16, 0, 3, 8), (32, 16, 0, 3, 8), (64, 16, 0, 3, 8))
_FORWARD_16_BITS = (
    (16, 16, 256, 4, 4),
    (32, 16, 256, 3, 8),
    (64, 16, 128, 4, 8),
    (32, 32, 128, 3, 8),
    (64, 32, 128, 3, 8),
)
_FORWARD = ((16, 16, 256, 4, 4), (32, 16, 256, 4, 4), (64, 16, 128, 4, 8), (32, 32, 128, 3, 8), (64, 32, 128, 3, 8))
_BACKWARD_RESIDENT = ((16, 8, 0, 3, 8), (16, 16, 0, 3, 8), (32, 16, 0, 3, 8), (32, 32, 0, 3, 8))
_BACKWARD = (
    (16, 16, 256, 4, 8, 4),
    (32, 16, 256, 4, 8, 4),
    (64, 16, 256, 3, 8, 4),
    (16, 32, 128, 3, 8),
    (32, 32, 128, 2, 8),
)


@functools.lru_cache(maxsize=1024)
def forward_plan(kind: str, batch: int, hidden: int, size: int, device_processors: int) -> Plan:
    """The cut of the forward pass; `size` is that of a number in bytes."""
    resident = hidden <= _RESIDENT
    cuts = _FORWARD_RESIDENT if resident else _FORWARD if size == 4 else _FORWARD_16_BITS
    plan = _first_that_fits(cuts, batch, hidden, size, device_processors)
    return plan._replace(resident=True, depth=_power_of_two(hidden)) if resident else plan


@functools.lru_cache(maxsize=1024)
def backward_plan(kind: str, batch: int, hidden: int, size: int, device_processors: int) -> Plan:
    """The cut of the backward pass."""
    resident = hidden <= _RESIDENT
    plan = _first_that_fits(_BACKWARD_RESIDENT if resident else _BACKWARD, batch, hidden, size, device_processors)
    plan = plan._replace(slices=plan.warps if plan.team == 1 else 1, resident=resident)
    return plan._replace(depth=_power_of_two(slice_size(kind, padded_size(hidden, plan), plan))) if resident else plan


def _first_that_fits(
    cuts: tuple[tuple[int, ...], ...], batch: int, hidden: int, size: int, device_processors: int
) -> Plan:
    for rows, units, depth, stages, warps, *team in cuts:
        plan = Plan(True, rows, units, depth // size, False, stages, warps, 1, *team)
        if (rows == 16 or rows < 2 * batch) and plan.programs(hidden) * plan.blocks(batch) <= device_processors:
            return plan
    return Plan(False, 32, 16, 128 // size, False, 3, 8)


def padded_size(hidden: int, plan: Plan) -> int:
    """Units with the zeros that fill up the exchange and the weights: whole programs, whole parts of the product."""
    multiple = max(16, plan.units) if plan.resident else max(plan.depth, plan.units * plan.team)
    return -(-hidden // multiple) * multiple


def slice_size(kind: str, padded: int, plan: Plan) -> int:
    """The length of a slice of backward's inner dimension, which is all gates of all units."""
    multiple = 16 if plan.resident else plan.depth
    return -(-GATES[kind] * padded // (plan.slices * plan.team * multiple)) * multiple


class Sizes(NamedTuple):
    """What follows from a plan for the sizes of a layer."""

    programs: int
    """For a block of the batch."""
    blocks: int
    padded: int
    """As :func:`padded_size`."""
    slice: int
    """As :func:`slice_size`; in backward."""
    exchange: int
    """How many numbers a layer's programs exchange in: two slots, and behind them counters of 32 bits."""


@functools.lru_cache(maxsize=1024)
def forward_sizes(plan: Plan, batch: int, hidden: int, size: int) -> Sizes:
    """Those of the forward pass; `size` is that of a number in bytes."""
    padded, blocks = padded_size(hidden, plan), plan.blocks(batch)
    exchange = _exchange_size(blocks * plan.rows * padded, blocks + 1, size)
    return Sizes(plan.programs(hidden), blocks, padded, 0, exchange)


@functools.lru_cache(maxsize=1024)
def backward_sizes(plan: Plan, kind: str, batch: int, hidden: int, size: int) -> Sizes:
    """Those of the backward pass. Its counters: one for each block of the batch, one for all, and one for each team in
    a line of 128 bytes of its own.
    """
    padded, blocks, programs = padded_size(hidden, plan), plan.blocks(batch), plan.programs(hidden)
    counters = blocks + 1 if plan.team == 1 else (2 + blocks // 32 + blocks * programs // plan.team) * 32
    exchange = _exchange_size(blocks * plan.rows * GATES[kind] * padded, counters, size)
    return Sizes(programs, blocks, padded, slice_size(kind, padded, plan), exchange)


def _exchange_size(slot: int, counters: int, size: int) -> int:
    return -(-(2 * slot + -(-4 * counters // size)) // 64) * 64  # each layer's begins at a multiple of 128 bytes


def _power_of_two(number: int) -> int:
    return max(16, 1 << (number - 1).bit_length())


@functools.cache
def processors(device: torch.device) -> int:
    """How many programs surely run at once, one to a processor; 0 where programs cannot wait for each other."""
    if device.type != "cuda" or torch.version.hip is not None:
        return 0
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count if properties.major >= 8 else 0
