"""Programs of one launch that wait for each other: a counter that all of them add to, and a bounded wait.

The launch must be cooperative, so that all programs run at once. The wait is bounded: a program that has waited too
long in one launch raises an alarm that the host can read and continues with NaN as its results.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["PATIENCE", "arrive", "wait"]

PATIENCE = tl.constexpr(1 << 24)  # polls in one launch, about ten seconds of them


@triton.jit
def arrive(counter):
    """Signal that this program's stores so far may be read."""
    tl.debug_barrier()  # all threads have stored; the release below then covers them all
    tl.atomic_add(counter, 1, sem="release")


@triton.jit
def wait(counter, target, polls):
    """Wait until the counter reaches the target. Returns the polls of this launch so far."""
    seen = tl.atomic_add(counter, 0, sem="acquire")
    while (seen < target) & (polls < PATIENCE):
        seen = tl.atomic_add(counter, 0, sem="acquire")
        polls += 1
    return polls
