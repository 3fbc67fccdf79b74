"""Two ways for the programs of one launch to wait for each other.

A counter that all programs increment is a barrier: what they stored before may be read after it. Or the values take
the place of the counter: the memory is filled with ABSENT, each place is written once, and a reader loads the places
until the values are there. This saves the fence before the counter, and a round trip to memory.

The launch must be cooperative, so that all programs run at the same time. A program that has waited too long in one
launch sets an alarm that the host can read, and continues with NaN as its results.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["ABSENT", "PATIENCE", "arrive", "await_values", "marked", "wait"]

PATIENCE = tl.constexpr(1 << 24)  # the maximum number of polls in one launch, about ten seconds
ABSENT = tl.constexpr(-1)  # the bits of a value that is not there yet, in every dtype the bits of a NaN


@triton.jit
def arrive(counter):
    """Signal that this program's stores so far may be read."""
    tl.debug_barrier()  # waits for the stores of all threads, so that the release below covers them
    tl.atomic_add(counter, 1, sem="release")


@triton.jit
def wait(counter, target, polls):
    """Wait until the counter reaches the target. Returns the number of polls of this launch so far."""
    seen = tl.atomic_add(counter, 0, sem="acquire")
    while (seen < target) & (polls < PATIENCE):
        seen = tl.atomic_add(counter, 0, sem="acquire")
        polls += 1
    return polls


@triton.jit
def _bits(values):
    return values.to(tl.int32 if values.dtype.primitive_bitwidth == 32 else tl.int16, bitcast=True)


@triton.jit
def marked(values):
    """The values for `await_values` of other programs: the bits of ABSENT become those of another NaN."""
    bits = _bits(values)
    return tl.where(bits == ABSENT, ABSENT - 1, bits).to(values.dtype, bitcast=True)


@triton.jit
def await_values(source, mask, polls):
    """Load values that other programs store, waiting until all are there. Also returns the polls of this launch so far.

    Nothing is known of other memory that those programs wrote.
    """
    values = tl.load(source, mask=mask, other=0.0, volatile=True)
    while (tl.max((_bits(values) == ABSENT).to(tl.int32)) > 0) & (polls < PATIENCE):
        values = tl.load(source, mask=mask, other=0.0, volatile=True)
        polls += 1
    return values, polls
