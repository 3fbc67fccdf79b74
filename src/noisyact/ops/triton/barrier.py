"""A barrier for the programs of one launch: a counter that all programs increment, and a bounded wait.

The launch must be cooperative, so that all programs run at the same time. A program that has waited too long in one
launch sets an alarm that the host can read, and continues with NaN as its results.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["PATIENCE", "arrive", "wait"]

PATIENCE = tl.constexpr(1 << 24)  # the maximum number of polls in one launch, about ten seconds


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
