"""The GPU kernels of the activation, run by Triton's interpreter: test_interpreted_kernels.py starts these."""

import math

import pytest
import torch
from cases import ALL, MEANS, PAIRS, all_ids, allowed

import noisyact as na
from noisyact.functional import standard_normal
from noisyact.ops.activation import reference, triton

SEED = torch.tensor(2**61 + 987654321)
SIZES = [1, 63, 64, 65, 1000, 4096 + 17]
WIDE = na.HardPair(slope=1.0, offset=0.0, low=-100.0, high=100.0)


def case(shape, scheme, per_feature, dtype=torch.float32):
    x, g = (torch.randn(shape) * 4).to(dtype), torch.randn(shape).to(dtype)
    p = torch.empty(shape[-1] if per_feature else 1).uniform_(-2, 2) if scheme.learns_p else None
    return g, x, p, torch.tensor(scheme.scale)


def compare(g, *arguments, tolerance=1e-5):
    torch.testing.assert_close(
        triton.forward(*arguments), reference.forward(*arguments), rtol=tolerance, atol=tolerance
    )
    (gx, gp), (right_gx, right_gp) = triton.backward(g, *arguments), reference.backward(g, *arguments)
    torch.testing.assert_close(gx, right_gx, rtol=tolerance, atol=2 * tolerance)
    scale = right_gp.abs().max().clamp(min=1).item() if gp.numel() else 1.0
    torch.testing.assert_close(gp, right_gp, rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("scheme", ALL, ids=all_ids)
def test_kernels_equal_the_reference(scheme):
    """Three pairs for each scheme, in turn: the interpreter is slow."""
    pairs = [*allowed(scheme).values()] * 2
    pairs = pairs[ALL.index(scheme) % 3 :]
    for pair, (seed, per_feature) in zip(pairs, [(SEED, True), (SEED, False), (None, True)], strict=False):
        g, *arguments = case((3, 5, 7), scheme, per_feature)
        compare(g, *arguments, seed, scheme, pair)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("scheme", MEANS, ids=str)
def test_the_mean_of_noise_at_the_input(scheme):
    for pair, per_feature in zip(PAIRS.values(), (True, False, True, False, True), strict=True):
        g, x, *arguments = case((3, 5, 7), scheme, per_feature)
        x.view(-1)[:4] = torch.tensor([-1.0, 1.0, 1e30, 0.0])
        compare(g, x, *arguments, None, scheme, pair)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("size", SIZES)
def test_every_size(size):
    cases = ((na.NAH(), False), (na.NANIL(c=2.0), True), (na.NANI(), False))
    for scheme, per_feature in cases if size < 4096 else cases[1:2]:  # the interpreter is slow
        g, *arguments = case((size,), scheme, per_feature)
        compare(g, *arguments, SEED, scheme, na.HARD_TANH)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scheme", ALL[::3], ids=all_ids[::3])
def test_short_floats(scheme, dtype):
    """Both compute in float32 and round once: float16 differs where a last bit of float32 decides.

    The interpreter cuts bfloat16 off where a GPU rounds it.
    """
    g, x, p, scale = case((40, 33), scheme, True, dtype)
    arguments = (x, p, scale, SEED, scheme, na.HARD_SIGMOID)
    y, gx = triton.forward(*arguments), triton.backward(g, *arguments)[0]
    assert y.dtype == gx.dtype == dtype
    for mine, right in ((y, reference.forward(*arguments)), (gx, reference.backward(g, *arguments)[0])):
        assert dtype == torch.bfloat16 or (mine == right).float().mean() > 0.99
        torch.testing.assert_close(mine, right, rtol=2**-7, atol=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_noise_is_that_of_the_seed(size):
    for seed in (SEED, torch.tensor(0), torch.tensor(2**63 - 1)):
        xi = triton.forward(torch.zeros(size), None, torch.tensor(1.0), seed, na.NANI(sigma=1.0), WIDE)
        torch.testing.assert_close(xi, standard_normal(seed, (size,)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("features", [1, 24, 64, 200])
def test_tiles_and_programs_do_not_matter(features, monkeypatch):
    g, *arguments = case((500 // features + 1, features), na.NAH(), features > 1)
    arguments = (*arguments, SEED, na.NAH(), na.HARD_TANH)
    results = []
    for tile, programs in ((128, 2), (256, 1), (2048, 1)):
        monkeypatch.setattr(triton, "TILE", tile)
        monkeypatch.setattr(triton, "PROGRAMS", programs)
        results.append((triton.forward(*arguments), *triton.backward(g, *arguments)))
        if tile == 128:
            gx, parts = triton.backward(g, *arguments, summed=False)
            assert torch.equal(gx, results[-1][1])
            assert torch.equal(parts.sum(0), results[-1][2])
    for y, gx, gp in results:
        assert torch.equal(y, results[0][0])
        assert torch.equal(gx, results[0][1])
        torch.testing.assert_close(gp, results[0][2], rtol=1e-4, atol=1e-4)
    compare(g, *arguments)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # a GPU gives infinity
@pytest.mark.parametrize("pair", ["tanh", "relu"])
def test_infinities_and_nan(pair):
    x = torch.tensor([math.nan, math.inf, -math.inf, 1e38, -1e38, 1e-40])
    for scheme in ALL:
        if pair not in allowed(scheme):
            continue
        p = torch.zeros(1) if scheme.learns_p else None
        arguments = (x, p, torch.tensor(scheme.scale), SEED, scheme, PAIRS[pair])
        torch.testing.assert_close(
            triton.forward(*arguments), reference.forward(*arguments), rtol=1e-5, atol=1e-5, equal_nan=True
        )
        gx, _ = triton.backward(torch.ones(6), *arguments)
        assert not gx[1:].isnan().any()


def test_layouts_and_emptiness():
    x = torch.randn(6, 8).t()
    arguments = (torch.ones(1), torch.tensor(0.5), SEED, na.NAH(), na.HARD_TANH)
    assert torch.equal(triton.forward(x, *arguments), triton.forward(x.contiguous(), *arguments))
    empty = torch.empty(0, 5)
    assert triton.forward(empty, *arguments).shape == (0, 5)
    gx, gp = triton.backward(empty, empty, *arguments)
    assert gx.shape == (0, 5)
    assert gp.tolist() == [0.0]


@pytest.mark.parametrize("size", [5, 5000])
def test_forward_leaves_the_scale_it_used(size):
    """Backward reads this copy, because a schedule may have changed the tensor by then."""
    _, x, p, scale = case((size,), na.NAH(), False)
    used = torch.zeros(())
    expected = triton.forward(x, p, scale, SEED, na.NAH(), na.HARD_TANH)
    assert torch.equal(triton.forward(x, p, scale, SEED, na.NAH(), na.HARD_TANH, used), expected)
    assert used.item() == scale.item()


def test_what_a_kernel_cannot_read_is_refused():
    g, x, p, scale = case((6, 5), na.NAH(), True)
    rest = (SEED, na.NAH(), na.HARD_TANH)
    freed = torch.ones(5)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="freed"):
        triton.forward(x, freed, scale, *rest)
    with pytest.raises(ValueError, match="one device, not on cpu and meta"):
        triton.forward(x, p.to("meta"), scale, *rest)
    with pytest.raises(ValueError, match=r"one number here.*\(2,\)"):
        triton.forward(x, p, torch.ones(2), *rest)
    with pytest.raises(ValueError, match=r"gradient must have the shape .* not \(2,\)"):
        triton.backward(g[0, :2], x, p, scale, *rest)
    negated = torch._neg_view(-x)
    assert torch.equal(triton.forward(negated, p, scale, *rest), triton.forward(x, p, scale, *rest))
