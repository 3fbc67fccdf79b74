"""The three values of ``draw``: fresh noise, its mean, and fresh noise without its mean."""

import math

import pytest
import torch
from torch import nn

import noisyact as na
from noisyact import functional as F

X = torch.tensor([-3.0, -0.5, 0.5, 3.0], dtype=torch.float64)
P = torch.tensor([0.7], dtype=torch.float64)
SIGMA = 0.25 * 0.5 * math.tanh(0.7) ** 2  # at |x| = 3, where |Delta| = 2


def value(noise: str, xi: float, training: bool = True) -> list[float]:
    return F.noisy_hard_tanh(X, noise, P, torch.full_like(X, xi), training=training).tolist()


def test_values_by_hand():
    mean = math.sqrt(2 / math.pi)
    inside = [-0.5, 0.5]
    for draw, epsilon, expected in (("sample", 2.0, mean), ("mean", mean, mean), ("centred", 2.0 - mean, 0.0)):
        for alpha, h, sign in ((1.0, 1.0, -1.0), (1.15, 0.7, 1.0)):  # alpha > 1 turns the direction of the noise
            noise = f"nah:alpha={alpha},draw={draw}"
            for training, number in ((True, epsilon), (False, expected)):
                right = h + sign * SIGMA * number
                assert value(noise, -2.0, training) == pytest.approx([-right, *inside, right], rel=1e-12)
    for draw, epsilon in (("sample", -2.0), ("mean", 0.0), ("centred", -2.0)):
        right = 1.0 - SIGMA * epsilon
        assert value(f"nan:alpha=1.0,draw={draw}", -2.0) == pytest.approx([-right, *inside, right], rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_centred_noise_has_mean_zero_and_the_spread_of_the_sample(dtype):
    x = torch.full((200_000,), 4.0, dtype=dtype)
    sample, centred = (
        F.noisy_hard_tanh(x, f"nah:c=2,alpha=1.0,draw={draw}", seed=torch.tensor(5)).double() - 1.0
        for draw in ("sample", "centred")
    )
    sigma = 0.5 * math.tanh(1.5) ** 2
    assert abs(centred.mean().item()) < 5 * sigma / math.sqrt(200_000)
    torch.testing.assert_close(sample - centred, torch.full_like(sample, -sigma * math.sqrt(2 / math.pi)))


MODULES = {
    "activation": lambda noise: (na.NoisyHardTanh(noise, num_parameters=5), torch.randn(9, 5) * 3),
    "float64": lambda noise: (na.NoisyHardTanh(noise, dtype=torch.float64), torch.randn(9, 5).double() * 3),
    "lstm": lambda noise: (na.NoisyLSTM(5, 7, noise=noise), torch.randn(4, 3, 5) * 5),
    "lstm reference": lambda noise: (na.NoisyLSTM(5, 7, noise=noise, backend="reference"), torch.randn(4, 3, 5) * 5),
    "gru cell": lambda noise: (na.NoisyGRUCell(5, 7, noise=noise), torch.randn(3, 5) * 5),
}


def first(result):
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("made", MODULES)
def test_mean_draws_nothing_and_trains_with_the_expectation(made):
    module, x = MODULES[made]("nah:c=2,draw=mean")
    state = torch.get_rng_state()
    y = first(module(x))
    y.square().sum().backward()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in na.noise_parameters(module))
    torch.testing.assert_close(first(module.eval()(x)), y)


@pytest.mark.parametrize("made", MODULES)
def test_centred_draws_and_its_expectation_is_the_leak_alone(made):
    module, x = MODULES[made]("nah:c=2,draw=centred")
    assert not torch.equal(first(module(x)), first(module(x)))
    expected = first(module.eval()(x))
    na.set_noise_scale(module, 0.0)
    torch.testing.assert_close(expected, first(module(x)))


def test_mean_of_normal_noise_is_no_noise_and_leaves_p_without_a_gradient():
    module = na.NoisyHardTanh("nan:draw=mean")
    y = module(torch.tensor([3.0], requires_grad=True))
    assert y.item() == pytest.approx(0.7)
    y.backward()
    assert module.p is not None
    assert module.p.grad is None


def test_noisify_and_the_tables_take_it():
    model = na.noisify(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), "nah:draw=mean")
    assert "draw='mean'" in repr(model)
    assert model.state_dict().keys() == na.noisify(nn.Sequential(nn.Linear(4, 4), nn.Tanh())).state_dict().keys()
    report = na.saturation(model, torch.randn(64, 4) * 9, loss=lambda y: y.square().mean())
    assert report["1"].stochastic > 0  # the mean has a gradient through sigma


def test_compiled_code_keeps_it():
    module = na.NoisyHardTanh("nah:alpha=1.0,draw=mean", num_parameters=4)
    x = torch.randn(6, 4) * 3
    torch.testing.assert_close(torch.compile(module, backend="aot_eager", fullgraph=True)(x), module(x))
