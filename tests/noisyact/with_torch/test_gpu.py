"""On a GPU: the same noise and the same numbers as on a CPU."""

import pytest
import torch
from cases import ALL, all_ids

import noisyact as na
from noisyact import functional as F

pytestmark = pytest.mark.gpu


def test_a_seed_stands_for_the_same_noise():
    seed = torch.tensor(2**61 + 5)
    torch.testing.assert_close(
        F.standard_normal(seed.cuda(), (3, 1000)).cpu(), F.standard_normal(seed, (3, 1000)), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("scheme", ALL, ids=all_ids)
def test_activations_agree_with_the_cpu(scheme):
    x, p = torch.randn(50, 33, dtype=torch.float64) * 3, torch.rand(33, dtype=torch.float64)
    results = []
    for device in ("cpu", "cuda"):
        leaf, leaf_p = x.to(device).requires_grad_(), p.to(device).requires_grad_()
        y = F.noisy_hard_tanh(leaf, scheme, leaf_p, seed=torch.tensor(7, device=device))
        gx, gp = torch.autograd.grad(y.sum(), (leaf, leaf_p), allow_unused=True, materialize_grads=True)
        results.append([t.detach().cpu() for t in (y, gx, gp)])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [na.NoisyLSTM, na.NoisyGRU, na.NoisyRNN])
def test_recurrent_layers_agree_with_the_cpu(make):
    layer = make(9, 12, num_layers=2, bidirectional=True, backend="reference", dtype=torch.float64).eval()
    x = torch.randn(5, 3, 9, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], layer.cuda()(x.cuda())[0].cpu())


def test_generators_are_followed_and_evaluation_moves_none():
    layer = na.NoisyHardTanh("nah").cuda()
    x = torch.full((1000,), 3.0, device="cuda")
    torch.manual_seed(1)
    first = layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first)
    assert not torch.equal(layer(x), first)
    state = torch.cuda.get_rng_state()
    layer.eval()(x)
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_a_graph_draws_new_noise_at_every_replay():
    layer = na.NoisyHardTanh("nah").cuda()
    x = torch.full((1000,), 3.0, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            layer(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
    graph.replay()
    first = y.clone()
    graph.replay()
    assert not torch.equal(y, first)
