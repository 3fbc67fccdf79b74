"""Exactly at a kink every path has the slope of the linear part, whatever slope torch.clamp has there."""

from __future__ import annotations

import pytest
import torch
from cases import ALL, PAIRS, all_ids, allowed, kinks
from torch import Tensor

import noisyact as na
from noisyact import equations, functional
from noisyact.ops.activation import noisy_activation
from noisyact.pairs import HardPair
from noisyact.schemes import Scheme

DTYPES = [torch.float32, torch.float64]
ORDINARY = [-torch.inf, -7.0, -0.3, 0.0, 0.3, 7.0, torch.inf]


def points(pair: HardPair, dtype: torch.dtype) -> Tensor:
    """The kinks of a pair, their neighbours, and ordinary points."""
    exact = torch.tensor(kinks(pair), dtype=dtype)
    around = [torch.nextafter(exact, torch.tensor(to, dtype=dtype)) for to in (-torch.inf, torch.inf)]
    return torch.cat([exact, *around, torch.tensor(ORDINARY, dtype=dtype)])


def slopes(function, x: Tensor) -> dict[str, Tensor]:
    """The derivative of an elementwise function by every way that torch has."""
    leaf = x.clone().requires_grad_()
    (backward,) = torch.autograd.grad(function(leaf).sum(), leaf)
    return {
        "backward": backward,
        "grad": torch.func.grad(lambda x: function(x).sum())(x),
        "each": torch.func.vmap(torch.func.grad(lambda x: function(x).sum()))(x),
        "forward": torch.func.jvp(function, (x,), (torch.ones_like(x),))[1],
        "jacobian": torch.func.jacfwd(function)(x).diagonal(),
    }


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_hard_functions(pair: HardPair, dtype: torch.dtype) -> None:
    x = points(pair, dtype)
    u = pair.u(x)
    expected = torch.where((u >= pair.low) & (u <= pair.high), pair.slope, 0.0).to(dtype)
    for way, slope in slopes(lambda x: functional.hard(x, pair), x).items():
        torch.testing.assert_close(slope, expected, rtol=0, atol=0, msg=way)
    assert torch.equal(functional.hard(x, pair), u.clamp(pair.low, pair.high))
    assert torch.equal(functional.hard(x.requires_grad_(), pair), u.clamp(pair.low, pair.high))


@pytest.mark.parametrize("dtype", DTYPES)
def test_not_a_number_stays_one(dtype: torch.dtype) -> None:
    x = torch.tensor([torch.nan, 0.5], dtype=dtype)
    for given in (x, x.clone().requires_grad_()):
        assert functional.hard_tanh(given).isnan().tolist() == [True, False]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("scheme", ALL, ids=all_ids)
def test_kernel_formula_and_closed_form(scheme: Scheme, pair: HardPair, dtype: torch.dtype) -> None:
    if pair not in allowed(scheme).values():
        return
    x = points(pair, dtype)[: -len(ORDINARY)]  # at the kinks and beside them sigma is 0, or nearly
    p, scale = torch.ones(1, dtype=dtype), torch.tensor(scheme.scale, dtype=dtype)
    paths = equations.path_derivatives(x, pair, scheme, scale, p, None)
    expected = paths.linear + paths.nonlinear + paths.stochastic
    by_formula = slopes(lambda x: equations.phi(x, pair, scheme, scale, p, None), x)
    leaf = x.clone().requires_grad_()
    (by_kernel,) = torch.autograd.grad(noisy_activation(leaf, p, scale, None, scheme, pair).sum(), leaf)
    for way, slope in {**by_formula, "kernel": by_kernel}.items():
        torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-7, msg=way)


def test_a_pair_of_functions_clips_as_four_numbers_do() -> None:
    pair = na.Pair(h=na.HARD_TANH.h, u=na.HARD_TANH.u, x_t=(-1.0, 1.0), limits=(-1.0, 1.0))
    x = torch.tensor([-1.0, 1.0, 0.5], requires_grad=True)
    functional.noisy(x, pair, "nah:clip=True", xi=torch.ones(3)).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0]


def test_compiled() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(functional.hard_tanh, fullgraph=True, backend="aot_eager")
    x = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0], requires_grad=True)
    (slope,) = torch.autograd.grad(compiled(x).sum(), x)
    assert slope.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]


# Weights of 0 and these biases put every nonlinearity on its upper kink: gates at 2, candidates, and with them the
# LSTM's first state, at 1; the rectifier at 0.
GATES = {
    "lstm": (na.NoisyLSTM, {}, [2.0, 2.0, 1.0, 2.0]),
    "gru": (na.NoisyGRU, {}, [2.0, 2.0, 1.0]),
    "rnn_tanh": (na.NoisyRNN, {}, [1.0]),
    "rnn_relu": (na.NoisyRNN, {"nonlinearity": "relu"}, [0.0]),
}


@pytest.mark.parametrize("noise", [None, "nan", "nah", "nah:clip=True", "nani", "nanil"])
@pytest.mark.parametrize("kind", GATES)
def test_recurrent_layers(kind: str, noise: str | None) -> None:
    layer, options, biases = GATES[kind]
    gradients = []
    for backend, dtype in (("cpu", torch.float32), ("reference", torch.float32), ("reference", torch.float64)):
        module = layer(1, 1, noise=noise, backend=backend, dtype=dtype, **options).eval()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if "noise" not in name:
                    parameter.zero_()
            module.bias_ih_l0.copy_(torch.tensor(biases))
        output, _ = module(torch.ones(1, 1, 1, dtype=dtype))
        output.sum().backward()
        gradients.append(module.bias_ih_l0.grad.float())
    kernel, reference, wide = gradients
    torch.testing.assert_close(kernel, wide)
    torch.testing.assert_close(reference, wide)
    assert (wide != 0).any()
