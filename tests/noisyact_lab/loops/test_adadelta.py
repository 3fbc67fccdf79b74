"""Adadelta: by hand, and as torch's on every device, in checkpoints too."""

import math

import pytest
import torch

from noisyact_lab.loops.adadelta import Adadelta

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_two_steps_by_hand(device):
    weight = torch.nn.Parameter(torch.tensor([1.0], device=device))
    optimizer = Adadelta([weight], lr=0.5, rho=0.9, eps=1e-4)
    w, s, a = 1.0, 0.0, 0.0
    for g in (2.0, -3.0):
        weight.grad = torch.tensor([g], device=device)
        optimizer.step()
        s = 0.9 * s + 0.1 * g * g
        delta = g * math.sqrt(a + 1e-4) / math.sqrt(s + 1e-4)
        a = 0.9 * a + 0.1 * delta * delta
        w -= 0.5 * delta
    assert weight.item() == pytest.approx(w, rel=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_it_goes_on_from_torchs_checkpoint(device):
    """And torch's from its own."""
    results = []
    for first, then in ((Adadelta, torch.optim.Adadelta), (torch.optim.Adadelta, Adadelta)):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(300, 7, device=device))
        optimizer = first([weight], eps=1e-6, rho=0.95)
        for step in range(6):
            if step == 3:
                state = optimizer.state_dict()
                optimizer = then([weight])
                optimizer.load_state_dict(state)
            weight.grad = torch.randn(300, 7).to(device)
            optimizer.step()
        results.append(weight.detach())
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_other_numbers_are_left_to_torch(device):
    weight = torch.nn.Parameter(torch.ones(4, dtype=torch.float64, device=device))
    weight.grad = torch.ones_like(weight)
    Adadelta([weight]).step()
    assert (weight < 1).all()
