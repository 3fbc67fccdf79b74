"""On a GPU: how the programs of a launch wait for each other, and how many there are, changes no bit of the results."""

import pytest
import torch

import noisyact as na
from noisyact.ops.recurrent.gpu import plan as plans

pytestmark = pytest.mark.gpu

CASES = [
    (na.NoisyLSTM, (128, 16, 128), torch.float32),
    (na.NoisyGRU, (50, 40, 100), torch.float32),
    (na.NoisyGRU, (20, 20, 120), torch.bfloat16),
    (na.NoisyLSTM, (30, 64, 128), torch.float16),
]


def results(make, shape, dtype):
    """The outputs and gradients of two layers, with noise and a first state."""
    torch.manual_seed(0)
    steps, batch, hidden = shape
    layer = make(hidden, hidden, 2, noise="nah", device="cuda", dtype=dtype)
    x = torch.randn(steps, batch, hidden, device="cuda", dtype=dtype, requires_grad=True)
    state = torch.randn(2, batch, hidden, device="cuda", dtype=dtype)
    y, last = layer(x, (state, state) if make is na.NoisyLSTM else state, seed=7)
    total = y.float().square().sum() + sum(part.float().sum() for part in (last if type(last) is tuple else [last]))
    return [y, *torch.autograd.grad(total, [x, *layer.parameters()])]


@pytest.fixture
def planned(monkeypatch):
    """A function that sets a limit of the plans."""

    def set_limit(name, value):
        monkeypatch.setattr(plans, name, value)
        for cached in (plans.forward_sizes, plans.backward_sizes, plans.forward_plan, plans.backward_plan):
            cached.cache_clear()

    yield set_limit
    monkeypatch.undo()
    set_limit("_MOST_SLOTS", plans._MOST_SLOTS)


@pytest.mark.parametrize(("make", "shape", "dtype"), CASES)
def test_waiting_for_values_is_waiting_for_a_counter(make, shape, dtype, planned):
    by_value = results(make, shape, dtype)
    planned("_MOST_SLOTS", 0)
    counted = results(make, shape, dtype)
    assert all(torch.equal(*pair) for pair in zip(by_value, counted, strict=True))


@pytest.mark.parametrize(("make", "shape", "dtype"), CASES[:2])
def test_values_arrive_whatever_else_runs(make, shape, dtype):
    """The programs of a layer wait for values while products on another stream take processors and memory."""
    first, other = results(make, shape, dtype), torch.cuda.Stream()
    a = torch.randn(2048, 2048, device="cuda")
    for _ in range(50):
        with torch.cuda.stream(other):
            for _ in range(4):
                a @ a
        assert all(torch.equal(*pair) for pair in zip(results(make, shape, dtype), first, strict=True))


@pytest.mark.parametrize(
    ("make", "shape", "dtype"),
    [
        (na.NoisyLSTM, (9, 30, 50), torch.float32),
        (na.NoisyRNN, (65, 7, 70), torch.float32),
        (na.NoisyGRU, (4, 1, 62), torch.bfloat16),
    ],
)
def test_programs_that_only_compute_products_change_no_bits(make, shape, dtype, monkeypatch):
    helped = results(make, shape, dtype)
    monkeypatch.setattr(plans.Plan, "with_helpers", lambda self, programs, *_: programs)
    alone = results(make, shape, dtype)
    assert all(torch.equal(*pair) for pair in zip(helped, alone, strict=True))
