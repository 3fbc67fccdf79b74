"""How a layer is cut into programs: by its sizes and by what the device has room for."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from noisyact.ops.recurrent.reference import GATES

__all__ = ["Plan", "backward_plan", "forward_plan", "padded_size", "processors", "slice_size"]

_RESIDENT = 256
"""Up to this many units the recurrent weights stay in registers."""


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

    held: int = 0
    """In forward: parts of the weights, of that depth, which stay in shared memory."""

    def programs(self, hidden: int) -> int:
        """Programs for a block of the batch."""
        return -(-hidden // self.units)

    def blocks(self, batch: int) -> int:
        """Blocks of the batch, which never wait for each other."""
        return -(-batch // self.rows)


# Rows and units of a program and its warps, the fastest first as measured; the first that fits the device is taken.
# Small programs are fast as long as there are processors for them; those of few rows read the weights more often.
_FORWARD = ((16, 8, 4), (32, 8, 8), (16, 16, 4), (64, 8, 8), (32, 16, 8), (64, 16, 8), (32, 32, 8), (64, 32, 8))
_BACKWARD = ((16, 16, 8), (32, 16, 8), (16, 32, 8), (32, 32, 8))


@functools.lru_cache(maxsize=1024)
def forward_plan(kind: str, batch: int, hidden: int, size: int, device_processors: int) -> Plan:
    """The cut of the forward pass; `size` is that of a number in bytes."""
    resident = hidden <= _RESIDENT
    depth = _power_of_two(hidden) if resident else 256 // size
    for rows, units, warps in _FORWARD:
        plan = Plan(True, rows, units, depth, resident, 3, warps)
        if rows >= 2 * batch and rows > 16:
            continue
        if plan.programs(hidden) * plan.blocks(batch) <= device_processors:
            return plan
    return Plan(False, 32, 16, depth, resident, 3, 8)


@functools.lru_cache(maxsize=1024)
def backward_plan(kind: str, batch: int, hidden: int, size: int, device_processors: int) -> Plan:
    """The cut of the backward pass."""
    resident = hidden <= _RESIDENT
    for rows, units, warps in _BACKWARD:
        plan = Plan(True, rows, units, 128 // size, resident, 3, warps, warps)
        if rows >= 2 * batch and rows > 16:
            continue
        if plan.programs(hidden) * plan.blocks(batch) <= device_processors:
            break
    else:
        plan = Plan(False, 32, 16, 128 // size, resident, 3, 8, 8)
    if resident:
        plan = plan._replace(depth=_power_of_two(slice_size(kind, padded_size(hidden, plan), plan)))
    return plan


def padded_size(hidden: int, plan: Plan) -> int:
    """Units with the zeros that fill up the exchange and the weights: whole programs, whole parts of the product."""
    multiple = max(16, plan.units) if plan.resident else max(plan.depth, plan.units)
    return -(-hidden // multiple) * multiple


def slice_size(kind: str, padded: int, plan: Plan) -> int:
    """The length of a slice of backward's inner dimension, which is all gates of all units."""
    multiple = 16 if plan.resident else plan.depth
    return -(-GATES[kind] * padded // (plan.slices * multiple)) * multiple


def _power_of_two(number: int) -> int:
    return max(16, 1 << (number - 1).bit_length())


@functools.cache
def processors(device: torch.device) -> int:
    """How many programs surely run at once, one to a processor; 0 where programs cannot wait for each other."""
    if device.type != "cuda" or torch.version.hip is not None:
        return 0
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count if properties.major >= 8 else 0
