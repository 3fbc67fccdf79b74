"""The GPU kernels of additive attention, run by Triton's interpreter: test_interpreted_kernels.py starts these."""

import pytest
import torch
from attention_cases import equal, looked, parts
from cases import ESTIMATORS, SCHEMES, allowed

import noisyact as na
from noisyact.attention import additive_scores
from noisyact.deferral import deferred_gradients
from noisyact.ops.activation import reference
from noisyact.ops.attention import triton

SEED = torch.tensor(2**61 + 987654321)
SHAPES = {
    "one query": (2, 1, 5, 64),
    "a beam": (1, 2, 2, 192),
    "several tiles": (1, 1, 2, 2048),
    "shares of places": (1, 1, 18, 128),
}


def case(batch, width, places, size, scheme):
    keys, query = torch.randn(batch, places, size) * 2, torch.randn(batch, width, size) * 2
    v, g = torch.randn(size), torch.randn(batch, width, places)
    p = torch.empty(1).uniform_(-2, 2) if scheme is not None and scheme.learns_p else None
    return g, keys, query, v, p, None if scheme is None else torch.tensor(scheme.scale)


def plain(g, keys, query, v, p, scale, seed, function):
    """Scores and gradients with the reference activation, which stores the complete tensor."""
    x = keys[:, None] + query[:, :, None]
    gy = g[..., None] * v
    if function.scheme is None:
        y = torch.tanh(x)
        gx, gp = gy * (1 - y * y), None
    else:
        y = reference.forward(x, p, scale, seed, function.scheme, function.pair)
        gx, gp = reference.backward(gy, x, p, scale, seed, function.scheme, function.pair)
    return y @ v, gx.sum(2), gx.sum(1), torch.einsum("bws,bwsa->a", g, y), None if p is None else gp


def compare(arguments, seed, function, times=1):
    """Each time the gradients are added to what is there."""
    g, *rest = arguments
    e = triton.scores(*rest, seed, function)
    sums = triton.sums_for(rest[0], rest[3])
    gq, *again = (triton.add_gradients(g, *rest, seed, function, sums) for _ in range(times))
    assert all(torch.equal(gq, other) for other in again)
    right = plain(g, *rest, seed, function)
    gp = None if sums.p is None else sums.p.sum(0, keepdim=True) / times
    mine = e, gq, sums.keys / times, sums.v.sum(0) / times, gp
    for one, other in zip(mine, right, strict=True):
        if other is not None:
            bound = other.abs().max().clamp(min=1).item()
            torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5 * bound)
    assert (mine[-1] is None) == (right[-1] is None)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("scheme", [*SCHEMES, *ESTIMATORS[2::3]], ids=str)
def test_kernels_equal_the_reference(scheme):
    for pair, seed in zip(allowed(scheme).values(), [SEED, None], strict=False):
        compare(case(1, 1, 2, 64, scheme), seed, triton.Function(scheme, pair, seed is not None))


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_every_shape(shape):
    compare(case(*shape, na.NAH()), SEED, triton.Function(na.NAH(), na.HARD_TANH, True), times=2)
    compare(case(*shape, None), None, triton.Function())


@pytest.mark.parametrize("noise", ["nah", "nanil"])
def test_deferred_gradients_are_autograds(noise, monkeypatch):
    function, leaves = parts((1, 1, 3, 64), lambda: na.NoisyHardTanh(noise), "cpu")
    _, theirs = looked(function, leaves, False)
    monkeypatch.setattr(triton, "serves", lambda keys: True)
    _, ours = looked(function, leaves, True)
    assert not all(torch.equal(*both) for both in zip(ours, theirs, strict=True))  # the kernel has another order
    equal(ours, theirs)


def test_a_pass_that_does_not_ask_for_the_keys_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(triton, "serves", lambda keys: True)
    function, (keys, queries, weight, _) = parts((1, 1, 2, 64), lambda: na.NoisyHardTanh("nah"), "cpu")
    with deferred_gradients():
        e = sum(additive_scores(keys, query, function, weight).square().sum() for query in queries[:2].unbind())
    first = torch.autograd.grad(e, keys, retain_graph=True)[0]
    torch.autograd.grad(e, queries, retain_graph=True)
    assert torch.equal(torch.autograd.grad(e, keys)[0], first)


def test_tensors_that_do_not_fit_are_refused():
    g, *right = case(2, 1, 3, 64, na.NAH())
    keys, query, v, p, scale = right
    function = triton.Function(na.NAH(), na.HARD_TANH, True)
    wrong = [
        (keys[..., :60], query[..., :60], v[:60], p, scale), (keys, query[:1], v, p, scale),
        (keys, query, v[1:], p, scale), (keys, query, v, torch.ones(2), scale), (keys, query, v.double(), p, scale),
        (keys, query, v, p, torch.ones(2)), (keys, query, v, p, None), (keys, query.to("meta"), v, p, scale),
        (keys[:, :0], query, v, p, scale), (keys[0], query, v, p, scale),
    ]  # fmt: skip
    sums = triton.sums_for(keys, p)
    for given in wrong:
        with pytest.raises(ValueError, match=r"must be of shape|keys must be|one number|a scheme needs a scale"):
            triton.scores(*given, SEED, function)
        with pytest.raises(ValueError, match=r"must be of shape|keys must be|one number|a scheme needs a scale"):
            triton.add_gradients(g, *given, SEED, function, sums)
    with pytest.raises(ValueError, match="drawn noise needs a seed"):
        triton.scores(*right, None, function)
    with pytest.raises(ValueError, match="g must be of shape"):
        triton.add_gradients(g[:, :, 1:], *right, SEED, function, sums)
    with pytest.raises(ValueError, match="sums must be of shape"):
        triton.add_gradients(g, *right, SEED, function, sums._replace(keys=sums.keys[:, 1:]))
    with pytest.raises(ValueError, match="None if and only if p is None"):
        triton.add_gradients(g, *right, SEED, function, sums._replace(p=None))


def test_scales_of_two_dtypes():
    """A kernel compiled for one must not read the other."""
    _, *right, scale = case(1, 1, 2, 64, na.NAH())
    function = triton.Function(na.NAH(), na.HARD_TANH, True)
    found = [triton.scores(*right, scale.to(dtype), SEED, function) for dtype in (torch.float32, torch.float64)]
    assert torch.equal(*found)
    assert len({triton._kind(scale.to(dtype)) for dtype in (torch.float32, torch.float64)}) == 2
