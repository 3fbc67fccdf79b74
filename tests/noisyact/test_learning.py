"""The paper's claim as tests: noise frees saturated units, and every scheme learns."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import noisyact as na


def train(hidden: nn.Module, start: float, seed: int, steps: int = 600) -> tuple[float, torch.Tensor]:
    """Learn the sign of x1 x2 from hidden units whose biases start at +-start; error, and the first layer's move."""
    torch.manual_seed(seed)
    first, last = nn.Linear(2, 32), nn.Linear(32, 1)
    with torch.no_grad():
        first.weight.uniform_(-1, 1)
        first.bias.copy_(start * torch.randn(32).sign())
    before = first.weight.detach().clone()
    model = nn.Sequential(first, hidden, last)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    x = torch.rand(512, 2) * 2 - 1
    y = (x[:, 0] * x[:, 1] > 0).float()
    for _ in range(steps):
        loss = F.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        wrong = (model(x).squeeze(1) > 0) != y.bool()
    return wrong.double().mean().item(), (first.weight.detach() - before).abs().max()


@pytest.mark.parametrize("seed", [0, 1])
def test_saturated_units_are_stuck_without_noise(seed):
    error, moved = train(nn.Hardtanh(), start=3.0, seed=seed)
    assert error > 0.3
    assert moved == 0  # not small: the gradient of the hard function is exactly zero


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("noise", ["nah:alpha=1.0", "nanis:sigma=0.5"])
def test_saturated_units_escape_by_noise_alone(noise, seed):
    error, moved = train(na.NoisyHardTanh(noise, num_parameters=32), start=3.0, seed=seed)
    assert moved > 0.1
    assert error < 0.1


@pytest.mark.parametrize("noise", ["nan", "nah", "nani", "nanil", "nanis"])
def test_every_scheme_learns_from_an_ordinary_start(noise):
    error, _ = train(na.NoisyHardTanh(noise, num_parameters=32), start=0.3, seed=0)
    assert error < 0.05


def test_annealing_ends_at_the_noise_free_network():
    model = nn.Sequential(nn.Linear(2, 8), na.NoisyHardTanh("nan:c=30,alpha=1.0"))
    scheduler = na.NoiseScheduler(model, na.anneal.linear(30.0, 0.0, steps=20))
    x = torch.randn(64, 2) * 9
    spread = []
    for _ in range(21):
        spread.append((model(x) - na.functional.hard_tanh(model[0](x))).abs().mean().item())
        scheduler.step()
    assert spread[0] > 0.05
    assert spread[-1] == 0.0
