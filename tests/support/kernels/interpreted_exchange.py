"""Run by test_interpreted_kernels.py: the ways in which the programs of a launch wait for each other."""

import pytest
import torch
from interpreted_recurrent import CASES, RULED, check_case
from programs_in_turns import take_turns
from recurrent_cases import PLANS, Case

from noisyact.ops.recurrent.gpu import launches
from noisyact.ops.recurrent.gpu import layers as gpu


@pytest.fixture
def exchanging(monkeypatch, poisoned_memory):
    """A function that has the layers of a case divided into programs that exchange h, by values or by a counter."""

    def divide(case, by_value):
        for name, plan in zip(("forward_plan", "backward_plan"), PLANS["together"](case), strict=True):
            monkeypatch.setattr(gpu, name, lambda *_, plan=plan: plan)
        for name in ("forward_sizes", "backward_sizes"):
            sizes = getattr(gpu, name)
            monkeypatch.setattr(gpu, name, lambda *key, sizes=sizes: sizes(*key)._replace(by_value=by_value))
        take_turns(monkeypatch)

    return divide


@pytest.mark.parametrize("by_value", [True, False])
@pytest.mark.parametrize("case", [CASES[3], *RULED[-4:-2]], ids=lambda case: f"{case.kind}-{case.features()}")
def test_both_ways_to_wait_equal_the_reference(case, by_value, exchanging):
    """Long sequences have two slots and a counter instead of a slot for each step."""
    exchanging(case, by_value)
    check_case(case)


@pytest.mark.parametrize("bits", [-1, 0x7FC00000, 0x7FFFFFFF])
def test_a_nan_is_no_absent_value(bits, exchanging):
    """A program that waits for values must not take a NaN, whatever its bits, for one that is not there."""
    case = Case("gru", 3, 3, 33)
    case.h0.data[1] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    exchanging(case, True)
    y = case.by_kernels()[0].view(3, 3, 33)
    assert y[:, 1].isnan().all()
    assert y[:, [0, 2]].isfinite().all()


@pytest.mark.parametrize("case", [Case("lstm", 5, 9, 30, inputs=30), Case("gru", 3, 9, 9, state=False, reverse=True)])
def test_programs_that_only_compute_products_change_no_bits(case, monkeypatch, poisoned_memory):
    """A program sums a whole tile, so it does not matter which one does."""
    for name, plan in zip(("forward_plan", "backward_plan"), PLANS["registers"](case), strict=True):
        assert plan.alone
        monkeypatch.setattr(gpu, name, lambda *_, plan=plan: plan)
    take_turns(monkeypatch)
    grids, call = [], launches.Launcher.__call__
    monkeypatch.setattr(
        launches.Launcher, "__call__", lambda self, grid, *rest: (grids.append(grid[0]), call(self, grid, *rest))[1]
    )
    found = []
    for count in (0, 132):
        monkeypatch.setattr(launches, "processors", lambda device, count=count: count)
        outputs = case.by_kernels()
        found.append([*outputs, *case.gradients(outputs, case.leaves()).values()])
    assert grids[3] > grids[1]  # forward, backward, and again with further programs
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
