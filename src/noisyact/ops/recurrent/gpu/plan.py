"""The division of a layer into programs, by its sizes and the device."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from noisyact.ops.recurrent.types import GATES

__all__ = [
    "TILE", "Plan", "Sizes", "backward_plan", "backward_sizes", "forward_plan", "forward_sizes", "in_one_launch",
    "padded_size", "processors", "slice_size",
]  # fmt: skip

_RESIDENT_LINES = 1024
"""The largest number of gates of all units for which the recurrent weights stay in registers."""
_SHARED_BYTES = 226 * 1024
"""The shared memory of a program. The operands of a product with resident weights pass through it as a whole."""
TILE = 32, 128
"""The lines and columns of a tile of a product that a launch computes over all rows."""
_ROWS_IN_LAUNCH, _INPUTS_IN_LAUNCH = 1024, 512
"""The largest numbers of rows and inputs for which the launch computes the products over all rows."""

_MOST_SLOTS, _UNITS_BY_VALUE = 1 << 24, 128
"""A layer exchanges at most so many bytes with a slot for each step; longer sequences share two slots. It has at most
so many units: a program waits for the values of all, and the registers do not hold the addresses of more.
"""

_ALONE_UNITS, _ALONE_BYTES = 128, 1 << 16
"""The most units and the most bytes of recurrent weights of a layer whose units are all in one program."""
_ALONE = ((8, 4), (16, 4), (32, 8), (64, 8))
"""Rows and warps of a program that has all units. With 128 units it has 8 warps at least."""
_FEW_ROWS, _FEW_BYTES = 128, 1 << 15
"""Up to this number of rows, a layer with more bytes of recurrent weights is faster with several programs."""


class Plan(NamedTuple):
    """The division of a layer into programs."""

    persistent: bool
    """Whether one launch runs all steps, with programs that wait for each other. Otherwise it runs step by step."""
    rows: int
    """The number of sequences of a program."""
    units: int
    """The number of units of a program."""
    depth: int
    """The length of the product's inner dimension that is loaded at a time."""
    resident: bool
    """Whether the weights stay in registers; depth then covers the whole inner dimension."""
    stages: int
    """The number of parts of length `depth` that are loaded concurrently."""
    warps: int
    slices: int = 1
    """The number of slices of the inner dimension; different warps process them and add the results."""
    team: int = 1
    """In backward, the number of programs that divide the inner dimension and exchange sums for all their units."""
    alone: bool = False
    """Whether a program has all units, so that no program waits for another at a step."""

    def programs(self, hidden: int) -> int:
        """The number of programs for a block of the batch."""
        return -(-hidden // (self.units * self.team)) * self.team

    def blocks(self, batch: int) -> int:
        """The number of blocks of the batch. Programs of different blocks do not wait for each other."""
        return -(-batch // self.rows)

    def writes_products(self, rows: int, inputs: int) -> bool:
        """Whether the launch computes the products over all rows: W_ih x, or gradients of the weights and the input.

        This saves the host up to three torch calls per layer, which matters while the GPU waits for the host. Larger
        products are faster in torch. Only layers with resident weights have registers left for these products.
        """
        return self.persistent and self.resident and rows <= _ROWS_IN_LAUNCH and inputs <= _INPUTS_IN_LAUNCH

    def loads_single_units(self, hidden: int) -> bool:
        """Whether a thread loads single units; otherwise the adjacent ones that one instruction can load."""
        return self.alone or hidden % 16 != 0

    def with_helpers(self, programs: int, products: Sequence[tuple[int, int]], device_processors: int) -> int:
        """The number of programs of a launch that also computes products, each of so many lines and columns.

        If a program has all units of its rows, a layer has few programs. Further ones then only compute products.
        """
        if not self.alone:
            return programs
        tiles = sum(-(-lines // TILE[0]) * -(-columns // TILE[1]) for lines, columns in products)
        return max(programs, min(tiles, device_processors))


# Rows, units, depth in bytes, stages and warps of a program, and its team. The fastest on an H200 comes first, and the
# first one that fits the device is taken. Small programs are fast as long as there are processors for all of them. With
# a depth of 0 the weights stay in registers.
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
# An RNN has one gate, so the weights of more units stay in registers.
_FORWARD_RNN = ((16, 8, 0, 3, 8), (32, 8, 0, 3, 8), (16, 16, 0, 3, 8), (32, 16, 0, 3, 8))
_BACKWARD_RNN = _BACKWARD_RESIDENT[:3]


@functools.lru_cache(maxsize=1024)
def forward_plan(kind: str, batch: int, hidden: int, size: int, device_processors: int) -> Plan:
    """The plan of the forward pass. `size` is the number of bytes of an element."""
    if (alone := _alone(kind, batch, hidden, size, device_processors)) is not None:
        return alone
    cuts = (
        *_resident_cuts(kind, hidden, _FORWARD_RESIDENT, _FORWARD_RNN),
        *(_FORWARD if size == 4 else _FORWARD_16_BITS),
    )
    lines = 4 if GATES[kind] > 1 else 1
    return _first_that_fits(cuts, batch, hidden, size, device_processors, 1, lines)


@functools.lru_cache(maxsize=1024)
def backward_plan(kind: str, batch: int, hidden: int, size: int, device_processors: int) -> Plan:
    """The plan of the backward pass. `size` is the number of bytes of an element."""
    if (alone := _alone(kind, batch, hidden, size, device_processors)) is not None:
        return alone
    cuts = (*_resident_cuts(kind, hidden, _BACKWARD_RESIDENT, _BACKWARD_RNN), *_BACKWARD)
    plan = _first_that_fits(cuts, batch, hidden, size, device_processors, GATES[kind], 1)
    return plan if plan.team > 1 or not plan.persistent else plan._replace(slices=plan.warps)


def _alone(kind: str, batch: int, hidden: int, size: int, device_processors: int) -> Plan | None:
    """The plan of a layer that is so small that a program holds all its recurrent weights; None for others."""
    units = _power_of_two(hidden)
    lines = units * (4 if GATES[kind] > 1 else 1)
    if size > 4 or units > _ALONE_UNITS or lines * units * size > _ALONE_BYTES:
        return None
    if lines * units * size > _FEW_BYTES and batch <= _FEW_ROWS:
        return None  # its instructions wait for each other longer than programs do
    for rows, warps in _ALONE:
        warps = max(warps, units // 16)
        if -(-batch // rows) <= device_processors:
            return Plan(True, rows, units, units, True, 1, warps, alone=True)
    return None


def in_one_launch(kind: str, batch: int, hidden: int, size: int, device_processors: int) -> bool:
    """Whether one launch runs all steps of a layer, in the forward pass and in the backward pass.

    >>> [in_one_launch("gru", batch, 200, 4, processors) for batch, processors in ((20, 132), (4096, 132), (20, 0))]
    [True, False, False]
    """
    return all(plan(kind, batch, hidden, size, device_processors).persistent for plan in (forward_plan, backward_plan))


def _resident_cuts(
    kind: str, hidden: int, cuts: tuple[tuple[int, ...], ...], of_rnn: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, ...], ...]:
    """The cuts whose recurrent weights stay in registers."""
    if 4 * hidden <= _RESIDENT_LINES:
        return cuts
    return of_rnn if GATES[kind] == 1 and hidden <= _RESIDENT_LINES else ()


def _first_that_fits(
    cuts: tuple[tuple[int, ...], ...],
    batch: int,
    hidden: int,
    size: int,
    device_processors: int,
    inner: int,
    lines: int,
) -> Plan:
    """The plan of the first cut whose programs can all run at once.

    Args:
        inner: the length of the product's inner dimension for each unit.
        lines: the number of lines of the product for each unit.
    """
    for rows, units, depth, stages, warps, *team in cuts:
        plan = Plan(True, rows, units, depth // size, False, stages, warps, 1, team[0] if team else 1)
        if depth == 0:
            plan = plan._replace(resident=True, slices=warps)
            plan = plan._replace(depth=_power_of_two(-(-inner * padded_size(hidden, plan) // warps)))
            if plan.slices * plan.depth * (rows + lines * units) * size > _SHARED_BYTES:
                continue
        fits = plan.programs(hidden) * plan.blocks(batch) <= device_processors
        if fits and size <= 4 and (rows == 16 or rows < 2 * batch):  # these kernels do not compute in float64
            return plan
    return Plan(False, 32, 16, 128 // size, False, 3, 8)


def padded_size(hidden: int, plan: Plan) -> int:
    """The number of units, padded to whole programs and whole parts of the product."""
    multiple = max(16, plan.units) if plan.resident else max(plan.depth, plan.units * plan.team)
    return -(-hidden // multiple) * multiple


def slice_size(kind: str, padded: int, plan: Plan) -> int:
    """The length of a slice of backward's inner dimension, which consists of all gates of all units."""
    multiple = 16 if plan.resident else plan.depth
    return -(-GATES[kind] * padded // (plan.slices * plan.team * multiple)) * multiple


class Sizes(NamedTuple):
    """The sizes that follow from a plan for a layer."""

    programs: int
    """The number of programs for a block of the batch."""
    blocks: int
    padded: int
    """The result of :func:`padded_size`."""
    slice: int
    """The result of :func:`slice_size` in backward; 0 in forward."""
    counters: int
    """The number of 32-bit counters with which a layer's exchange buffer begins, padded to 128 bytes."""
    exchange: int
    """The size of a layer's exchange buffer in units of 32 bits: the counters, followed by the slots."""
    by_value: bool
    """Whether each step has a slot, and programs wait for the values in it. Otherwise there are two slots."""


@functools.lru_cache(maxsize=1024)
def forward_sizes(plan: Plan, steps: int, batch: int, hidden: int, size: int) -> Sizes:
    """The sizes of the forward pass. `size` is the number of bytes of an element."""
    padded, blocks = padded_size(hidden, plan), plan.blocks(batch)
    exchange = _exchange(plan, steps, hidden, blocks * plan.rows * padded * size, blocks + 1)
    return Sizes(plan.programs(hidden), blocks, padded, 0, *exchange)


@functools.lru_cache(maxsize=1024)
def backward_sizes(plan: Plan, kind: str, steps: int, batch: int, hidden: int, size: int) -> Sizes:
    """The sizes of the backward pass.

    There is one counter for each block of the batch, one for all programs, and one for each team in its own 128 bytes.
    """
    padded, blocks, programs = padded_size(hidden, plan), plan.blocks(batch), plan.programs(hidden)
    counters = blocks + 1 if plan.team == 1 else (2 + blocks // 32 + blocks * programs // plan.team) * 32
    exchange = _exchange(plan, steps, hidden, blocks * plan.rows * GATES[kind] * padded * size, counters)
    return Sizes(programs, blocks, padded, slice_size(kind, padded, plan), *exchange)


def _exchange(plan: Plan, steps: int, hidden: int, slot: int, counters: int) -> tuple[int, int, bool]:
    """`counters`, `exchange` and `by_value` of the sizes, for slots of this number of bytes."""
    is_small = hidden <= _UNITS_BY_VALUE and (steps + 1) * slot <= _MOST_SLOTS
    by_value = plan.resident and not plan.alone and is_small
    counters = -(-counters // 32) * 32
    slots = steps + 1 if by_value else 0 if plan.alone else 2
    return counters, counters + -(-slots * slot // 128) * 32, by_value


def _power_of_two(number: int) -> int:
    return max(16, 1 << (number - 1).bit_length())


@functools.cache
def processors(device: torch.device) -> int:
    """The number of programs that can run at once, one per multiprocessor; 0 if programs cannot wait for each other."""
    if device.type != "cuda" or torch.version.hip is not None:
        return 0
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count if properties.major >= 8 else 0
