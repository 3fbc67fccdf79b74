"""Run by test_interpreted_kernels.py: the ways in which the programs of a launch wait for each other."""

import pytest
import torch
from interpreted_recurrent import CASES, RULED, check_case
from programs_in_turns import take_turns
from recurrent_cases import PLANS, Case

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
