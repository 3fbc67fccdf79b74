"""Adadelta: one step by hand, and equality with torch's on every device, including checkpoints."""

import math

import pytest
import torch

from noisyact_lab.gpu.adadelta import adadelta
from noisyact_lab.gpu.cuda_graph import captured

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_two_steps_by_hand(device):
    weight = torch.nn.Parameter(torch.tensor([1.0], device=device))
    optimizer = adadelta([weight], 0.5, weight.device)
    w, s, a = 1.0, 0.0, 0.0
    for g in (2.0, -3.0):
        weight.grad = torch.tensor([g], device=device)
        optimizer.step()
        s = 0.95 * s + 0.05 * g * g
        delta = g * math.sqrt(a + 1e-6) / math.sqrt(s + 1e-6)
        a = 0.95 * a + 0.05 * delta * delta
        w -= 0.5 * delta
    assert weight.item() == pytest.approx(w, rel=1e-5)


def torchs(parameters, learning_rate, device):
    return torch.optim.Adadelta(parameters, learning_rate, 0.95, 1e-6, capturable=device.type == "cuda")


@pytest.mark.parametrize("device", DEVICES)
def test_it_resumes_from_torchs_checkpoint_and_torch_from_its(device):
    results = []
    for first, then in ((adadelta, torchs), (torchs, adadelta)):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(300, 7, device=device))
        optimizer = first([weight], 1.0, weight.device)
        for step in range(6):
            if step == 3:
                state = optimizer.state_dict()
                optimizer = then([weight], 1.0, weight.device)
                optimizer.load_state_dict(state)
            weight.grad = torch.randn(300, 7).to(device)
            optimizer.step()
        results.append(weight.detach())
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
def test_a_recorded_step_is_torchs():
    """The gradients are new tensors at every call, and nothing is compiled during the recording."""
    results = []
    for make in (adadelta, torchs):
        torch.manual_seed(0)
        layer = torch.nn.Linear(64, 64, device="cuda")
        optimizer = make(layer.parameters(), 1.0, layer.weight.device)

        def step(x, layer=layer, optimizer=optimizer):
            optimizer.zero_grad()
            layer(x).square().mean().backward()
            optimizer.step()

        run = captured(step, [layer.weight])
        for x in torch.randn(5, 32, 64).cuda():
            run(x)
        results.append(layer.weight.detach())
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)
