"""The GPU kernels of the recurrent layers without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from noisyact.ops.recurrent.gpu.plan import backward_plan, forward_plan, padded_size, slice_size
from noisyact.ops.recurrent.reference import GATES

TESTS = Path(__file__).parent


@pytest.mark.parametrize("part", ["registers or wait_for", "in_parts", "one_slice", "cells or rules or compiled"])
def test_kernels_in_the_interpreter(part):
    """In a process of their own: Triton decides at its import whether kernels are interpreted."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", str(TESTS / "interpreted_recurrent.py")]
    run = subprocess.run(
        [*command, "-k", part], capture_output=True, text=True, cwd=TESTS.parent,
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
def test_plans_cover_the_layer_and_fit_the_device(kind):
    processors, teams = 132, set()
    for batch in (1, 20, 64, 128):
        for hidden in (1, 200, 257, 650, 1024, 1500, 2500):
            for size in (2, 4):
                for choose in (forward_plan, backward_plan):
                    plan = choose.__wrapped__(kind, batch, hidden, size, processors)
                    padded = padded_size(hidden, plan)
                    inner = padded
                    if choose is backward_plan:
                        inner = slice_size(kind, padded, plan)
                        assert inner * plan.slices * plan.team >= GATES[kind] * padded
                    assert hidden <= plan.programs(hidden) * plan.units <= padded
                    assert plan.programs(hidden) % plan.team == 0
                    assert not plan.persistent or plan.programs(hidden) * plan.blocks(batch) <= processors
                    assert plan.persistent or plan.team == 1
                    assert inner % plan.depth == 0 or plan.resident
                    teams.add(plan.team)
    assert teams == {1, 4}
