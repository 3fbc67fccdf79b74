"""Scores of additive attention in a loop, with their gradients."""

import contextlib

import torch

from noisyact.attention import additive_scores
from noisyact.deferral import deferred_gradients


def parts(shape, make, device, dtype=torch.float32):
    torch.manual_seed(5)
    batch, width, places, size = shape
    function = make().to(device, dtype)
    leaves = [
        torch.randn(batch, places, size), torch.randn(4, batch, width, size), torch.randn(1, size) / size**0.5,
        torch.randn(1),
    ]  # fmt: skip
    return function, [(2 * leaf if leaf.dim() > 2 else leaf).to(device, dtype).requires_grad_() for leaf in leaves]


def looked(function, leaves, deferred):
    """Scores and gradients of a loop of four queries, each of which is made of the scores before it."""
    torch.manual_seed(7)
    keys, queries, weight, bias = leaves
    found, before = [], 0.0
    with deferred_gradients() if deferred else contextlib.nullcontext():
        for query in queries.unbind():
            e = additive_scores(keys, query + before, function, weight, bias)
            before = e.mean(dim=2, keepdim=True)
            found.append(e)
    every = torch.stack(found)
    wanted = [*leaves, *function.parameters()]
    gradients = torch.autograd.grad(every.square().sum(), wanted, allow_unused=True)
    return every.grad_fn.next_functions[0][0], [every.detach(), *gradients]


def equal(ours, theirs):
    for mine, right in zip(ours, theirs, strict=True):
        assert (mine is None) == (right is None)
        if mine is not None:
            bound = right.abs().max().clamp(min=1e-3).item()
            torch.testing.assert_close(mine, right, rtol=1e-3, atol=1e-4 * bound)
