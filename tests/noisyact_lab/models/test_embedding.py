"""Embeddings: equal to nn.Embedding, and deterministic."""

import pytest
import torch
from torch import nn

from noisyact_lab.models.embedding import Embedding, one_hot_product

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def vectors_and_gradient(function, x, weight, given):
    leaf = weight.clone().requires_grad_()
    vectors = function(x, leaf)
    vectors.backward(given)
    return vectors.detach(), leaf.grad


@pytest.mark.parametrize("device", DEVICES)
def test_the_product_is_the_embedding(device):
    x = torch.randint(11, (26, 128), device=device)
    weight, given = torch.randn(11, 32, device=device), torch.randn(26, 128, 32, device=device)
    vectors, gradient = vectors_and_gradient(one_hot_product, x, weight, given)
    right, right_gradient = vectors_and_gradient(nn.functional.embedding, x, weight, given)
    assert torch.equal(vectors, right)
    torch.testing.assert_close(gradient, right_gradient, rtol=1e-5, atol=1e-4)
    for _ in range(20):
        assert torch.equal(vectors_and_gradient(one_hot_product, x, weight, given)[1], gradient)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("symbols", [3, 300])
def test_the_module_is_the_embedding(device, symbols):
    """Also for many symbols, which are looked up."""
    x = torch.randint(symbols, (5, 7), device=device)
    ours, theirs = Embedding(symbols, 4, device=device), nn.Embedding(symbols, 4, device=device)
    theirs.load_state_dict(ours.state_dict())
    assert torch.equal(ours(x), theirs(x))
