"""Mixed precision: autocast changes no dtype of the activation, and training under it stays finite."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import noisyact as na
from noisyact import functional

SCHEMES = ["nan", "nah", "nani", "nanil", "nanis"]
DTYPES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_output_has_the_dtype_of_the_input(scheme: str, dtype: torch.dtype, given: torch.dtype) -> None:
    layer = na.NoisyHardTanh(scheme, num_parameters=8)
    x = (3 * torch.randn(4, 8)).to(given).requires_grad_()
    for training in (True, False):
        layer.train(training)
        torch.manual_seed(1)
        plain = layer(x)
        torch.manual_seed(1)
        with torch.autocast("cpu", dtype=dtype):
            y = layer(x)
        assert y.dtype == given
        assert torch.equal(y, plain)  # computed in full precision either way
        x.grad = None
        layer.zero_grad()
        y.float().sum().backward()
        assert x.grad.dtype == given
        if layer.p is not None and layer.p.grad is not None:
            assert layer.p.dtype == layer.p.grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", DTYPES)
def test_noise_by_argument_may_have_any_dtype(dtype: torch.dtype) -> None:
    x, p, xi = 3 * torch.randn(4, 8), torch.rand(8), torch.randn(4, 8)
    with torch.autocast("cpu", dtype=dtype):
        short = functional.noisy_hard_tanh(x.to(dtype), "nan", p, xi)
        assert short.dtype == dtype
        torch.testing.assert_close(short, functional.noisy_hard_tanh(x, "nan", p, xi).to(dtype), rtol=2e-2, atol=2e-2)
        assert functional.noisy_hard_tanh(x, "nan", p.to(dtype), xi.to(dtype)).dtype == torch.float32
        with pytest.raises(TypeError, match="xi must be a floating-point tensor"):
            functional.noisy_hard_tanh(x, "nan", p, xi.to(torch.int64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", [*SCHEMES, "nah:c=30.0"])
def test_training_under_autocast_stays_finite(scheme: str, dtype: torch.dtype) -> None:
    model = nn.Sequential(
        nn.Linear(16, 32), na.NoisyHardTanh(scheme, num_parameters=32), nn.Linear(32, 32),
        na.NoisyHardSigmoid(scheme), nn.Linear(32, 1),
    )  # fmt: skip
    x = torch.randn(64, 16)
    target = x[:, :1].sign()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen, losses = [], []
    model[1].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    for _ in range(50):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = (model(x) - target).square().mean()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert set(seen) == {dtype}  # autocast was on: the linear layers give the short dtype
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert losses[-1] < losses[0]
