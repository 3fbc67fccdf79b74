"""NoiseScheduler: every noisy module follows the schedule, and a resumed run equals an uninterrupted one."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from noisyact import (
    NoiseScheduler,
    NoisyHardSigmoid,
    NoisyHardTanh,
    NoisyReLU,
    anneal,
    noisify,
    set_noise_scale,
)


def reciprocal(step: int) -> float:
    return 1.0 / (step + 1)


SCHEDULES = [
    anneal.inverse_sqrt(),
    anneal.inverse_sqrt(30.0, 0.5, every=1),
    anneal.cosine(3.0, 0.0, steps=50),
    anneal.join([anneal.constant(2.0), anneal.linear(2.0, 0.0, steps=10)], [20]),
    reciprocal,
]


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 3), NoisyHardTanh(), nn.ModuleDict({"gate": NoisyHardSigmoid("nani")}), NoisyReLU("nan:c=9"),
        noisify(nn.Sequential(nn.Tanh())),
    )  # fmt: skip


def scales(model: nn.Module) -> list[float]:
    return [buffer.item() for name, buffer in model.named_buffers() if name.endswith("scale")]


def as_float32(value: float) -> float:
    return float(np.float32(value))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_noisy_parts_follow(schedule):
    model = make_model()
    scheduler = NoiseScheduler(model, schedule)
    for step in range(40):
        assert scheduler.last_step == step
        assert scheduler.value == schedule(step)
        assert scales(model) == [as_float32(schedule(step))] * 4
        scheduler.step()


@settings(deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(SCHEDULES), st.integers(0, 5))
def test_resuming_at_any_step_is_exact(step, schedule, further):
    model, resumed = nn.Sequential(NoisyHardTanh()), nn.Sequential(NoisyHardTanh("nan:c=7"))
    scheduler = NoiseScheduler(model, schedule)
    scheduler.set_step(step)
    other = NoiseScheduler(resumed, schedule)
    other.load_state_dict(scheduler.state_dict())
    for _ in range(further + 1):
        assert (other.last_step, other.value) == (scheduler.last_step, scheduler.value)
        assert scales(resumed) == scales(model) == [as_float32(schedule(scheduler.last_step))]
        scheduler.step()
        other.step()


def test_the_state_is_the_step_alone_and_is_no_live_reference():
    scheduler = NoiseScheduler(make_model(), SCHEDULES[0])
    state = scheduler.state_dict()
    scheduler.step()
    assert state == {"last_step": 0}
    assert scheduler.state_dict() == {"last_step": 1}


@pytest.mark.parametrize("convert", [nn.Module.half, nn.Module.bfloat16, lambda model: model.double().half()])
def test_the_scale_of_a_model_in_half_precision_is_not_rounded(convert):
    model = convert(make_model())
    assert model[0].weight.itemsize == 2
    scheduler = NoiseScheduler(model, SCHEDULES[0])
    scheduler.set_step(1_234)
    assert scales(model) == [as_float32(scheduler.value)] * 4
    model = convert(model)
    assert scales(model) == [as_float32(scheduler.value)] * 4


def test_a_schedule_that_gives_nonsense_is_named_and_changes_nothing():
    model = make_model()
    scheduler = NoiseScheduler(model, lambda step: [0.5, -1.0, math.nan, "x", torch.ones(())][step])
    for step, error, named in [
        (1, ValueError, r"-1\.0"),
        (2, ValueError, "nan"),
        (3, TypeError, "'x'"),
        (4, TypeError, "tensor"),
    ]:
        with pytest.raises(error, match=f"noise scale must be .*{named}"):
            scheduler.set_step(step)
        assert scheduler.last_step == 0
        assert scales(model) == [0.5] * 4


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: NoiseScheduler(nn.Linear(2, 2), SCHEDULES[0]), ValueError, "Linear has no noisy part"),
        (lambda: NoiseScheduler(nn.Tanh, SCHEDULES[0]), TypeError, "Tanh"),
        (lambda: NoiseScheduler(make_model(), 0.5), TypeError, r"schedule.*0\.5"),
        (lambda: NoiseScheduler(make_model(), SCHEDULES[0]).set_step(-1), ValueError, "step=-1"),
        (lambda: NoiseScheduler(make_model(), SCHEDULES[0]).load_state_dict({"step": 3}), KeyError, r"\['step'\]"),
        (
            lambda: NoiseScheduler(make_model(), SCHEDULES[0]).load_state_dict({"last_step": "3"}),
            ValueError,
            "step='3'",
        ),
        (lambda: set_noise_scale(nn.Linear(2, 2), 0.5), ValueError, "Linear has no noisy part"),
        (lambda: set_noise_scale("model", 0.5), TypeError, "'model'"),
        (lambda: set_noise_scale(make_model(), True), TypeError, "True"),
        (lambda: set_noise_scale(make_model(), math.inf), ValueError, "inf"),
    ],
)
def test_wrong_arguments_are_named(call, error, named):
    with pytest.raises(error, match=named):
        call()


def test_set_noise_scale_counts_a_shared_part_once():
    act = NoisyHardTanh()
    assert set_noise_scale(nn.Sequential(act, nn.Linear(2, 2), act, NoisyReLU()), 0.25) == 2
    assert act.scale.item() == 0.25
