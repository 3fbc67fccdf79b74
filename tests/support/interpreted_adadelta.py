"""Adadelta's kernel by Triton's interpreter; test_interpreted_kernels.py starts it."""

import pytest
import torch

from noisyact_lab.loops import adadelta, adadelta_kernel


def parameters():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in ((3, 5), (2049,), (), (0,), (4,))]


def test_the_kernel_is_torchs(monkeypatch):
    updated, update = [], adadelta_kernel.update
    monkeypatch.setattr(adadelta.triton, "obstacle", lambda device: None)
    monkeypatch.setattr(adadelta_kernel, "update", lambda *given: updated.append(given[0].shape) or update(*given))
    ours, theirs = parameters(), parameters()
    mine, right = (
        make(weights, lr=0.7, rho=0.9, eps=1e-5)
        for make, weights in ((adadelta.Adadelta, ours), (torch.optim.Adadelta, theirs))
    )
    for step in range(4):
        for one, other in zip(ours[:-1], theirs[:-1], strict=True):  # the last one never gets a gradient
            one.grad = 10.0 ** (step - 2) * torch.randn(one.shape)
            other.grad = one.grad.clone()
        mine.step()
        right.step()
    assert updated == 4 * [weight.shape for weight in ours[:-1]]
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    found, wanted = mine.state_dict()["state"], right.state_dict()["state"]
    assert found.keys() == wanted.keys() == {0, 1, 2, 3}
    for index, state in wanted.items():
        torch.testing.assert_close(found[index], state, rtol=1e-5, atol=1e-9)


def test_a_state_that_does_not_fit_is_refused():
    """An optimizer loads the state of another model without a look at its shapes."""
    weight, gradient = torch.zeros(5), torch.ones(5)
    for state in (torch.zeros(4), torch.zeros(5).double(), torch.zeros(10)[::2], torch.zeros(5, device="meta")):
        for states in ((state, torch.zeros(5)), (torch.zeros(5), state)):
            with pytest.raises(ValueError, match=r"must be"):
                adadelta_kernel.update(weight, gradient, *states, 1.0, 0.9, 1e-6)
    assert not weight.any()
