"""The GPU kernels of the activation on a GPU: against the reference there, and torch's rules for operations."""

import itertools
import math
import os
import subprocess
import sys

import pytest
import torch
from cases import ALL, PAIRS, SCHEMES, allowed, away_from_kinks, scheme_ids
from torch.utils.checkpoint import checkpoint

import noisyact as na
from noisyact import functional as F
from noisyact.noise import _four_normals
from noisyact.ops.activation import has_kernel, reference, triton
from noisyact.ops.activation.op import _activation, _activation_backward

pytestmark = pytest.mark.gpu

SEED = 2**61 + 987654321
WIDE = na.HardPair(slope=1.0, offset=0.0, low=-100.0, high=100.0)
SHAPES = [(1,), (63,), (64,), (65,), (1000,), (4113,), (17, 200), (333, 650), (3, 5, 1500), (4097, 1024), (5, 65537)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def seed():
    return torch.tensor(SEED, device="cuda")


def case(shape, scheme, per_feature, dtype=torch.float32):
    x = (torch.randn(shape, device="cuda") * 4).to(dtype)
    g = torch.randn(shape, device="cuda").to(dtype)
    p = torch.empty(shape[-1] if per_feature else 1, device="cuda").uniform_(-2, 2) if scheme.learns_p else None
    return g, x, p, torch.tensor(scheme.scale, device="cuda")


def normals(n, of=None):
    return triton.forward(
        torch.zeros(n, device="cuda"), None, torch.tensor(1.0, device="cuda"), seed() if of is None else of,
        na.NANI(sigma=1.0), WIDE,
    )  # fmt: skip


STEADY = [scheme for scheme in ALL if not (scheme.draws and getattr(scheme, "binary", False))]
"""Without the draws that are rounded: where the GPU's noise differs in its last bits, they may round otherwise."""


def test_the_kernels_are_taken():
    """Without this the comparisons below would compare nothing."""
    for dtype in DTYPES:
        assert has_kernel(torch.ones(3, device="cuda", dtype=dtype))
    assert not has_kernel(torch.ones(3, device="cuda", dtype=torch.float64))
    y = F.noisy_hard_tanh(torch.ones(3, device="cuda", requires_grad=True), "nah")
    assert "EagerActivation" in y.grad_fn.name()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", STEADY, ids=str)
@pytest.mark.usefixtures("poisoned_memory")
def test_kernels_equal_the_reference(scheme, dtype):
    """Where noise decides the side of a step in the derivative, rounding may decide otherwise: rarely."""
    tolerance = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    shapes = iter(SHAPES * 2)
    for pair in allowed(scheme).values():
        for per_feature in (False, True):
            for draw in (seed(), None):
                g, x, p, scale = case(next(shapes, (129,)), scheme, per_feature, dtype)
                arguments = (x, p, scale, draw, scheme, pair)
                y, (gx, gp) = triton.forward(*arguments), triton.backward(g, *arguments)
                assert y.dtype == gx.dtype == dtype
                torch.testing.assert_close(y, reference.forward(*arguments), rtol=tolerance, atol=tolerance)
                right_gx, right_gp = reference.backward(g, *arguments)
                close = torch.isclose(gx, right_gx, rtol=tolerance, atol=tolerance)
                assert (~close).sum() <= (1 + 1e-4 * x.numel() if scheme.at_input or scheme.clips else 0)
                if close.all() and gp.numel():
                    spread = right_gp.abs().max().clamp(min=1).item()
                    torch.testing.assert_close(gp, right_gp, rtol=1e-3, atol=1e-4 * spread)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("per_feature", [False, True])
def test_every_shape(shape, per_feature):
    g, x, p, scale = case(shape, na.NAH(), per_feature)
    arguments = (x, p, scale, seed(), na.NAH(), na.HARD_TANH)
    y, (gx, gp) = triton.forward(*arguments), triton.backward(g, *arguments)
    torch.testing.assert_close(y, reference.forward(*arguments), rtol=1e-5, atol=1e-5)
    right_gx, right_gp = reference.backward(g, *arguments)
    torch.testing.assert_close(gx, right_gx, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(gp, right_gp, rtol=1e-4, atol=1e-4 * right_gp.abs().max().clamp(min=1).item())
    again = triton.forward(*arguments), *triton.backward(g, *arguments)
    assert all(torch.equal(a, b) for a, b in zip(again, (y, gx, gp), strict=True))


@pytest.mark.parametrize("tile", [64, 512, 4096])
def test_tiles_do_not_matter(tile, monkeypatch):
    g, *rest = case((300, 200), na.NAH(), True)
    arguments = (*rest, seed(), na.NAH(), na.HARD_TANH)
    y, (gx, gp) = triton.forward(*arguments), triton.backward(g, *arguments)
    monkeypatch.setattr(triton, "TILE", tile)
    monkeypatch.setattr(triton, "PROGRAMS", 7)
    assert torch.equal(triton.forward(*arguments), y)
    other_gx, other_gp = triton.backward(g, *arguments)
    assert torch.equal(other_gx, gx)
    torch.testing.assert_close(other_gp, gp, rtol=1e-4, atol=1e-4)


def test_noise_is_that_of_the_seed():
    for value in (0, SEED, 2**63 - 1):
        of = torch.tensor(value, device="cuda")
        torch.testing.assert_close(normals(2**22 + 17, of), F.standard_normal(of, (2**22 + 17,)), rtol=0, atol=1e-5)


def test_noise_is_standard_normal():
    n = 2**24
    xi = normals(n).double()
    assert abs(xi.mean().item()) < 4 / math.sqrt(n)
    assert abs(xi.square().mean().item() - 1) < 4 * math.sqrt(2 / n)
    assert abs(xi.pow(3).mean().item()) < 4 * math.sqrt(15 / n)
    assert abs(xi.pow(4).mean().item() - 3) < 4 * math.sqrt(96 / n)
    below = torch.special.ndtr(xi.sort().values)
    steps = torch.arange(n, device="cuda", dtype=torch.float64) / n
    assert torch.maximum((below - steps).abs(), (below - steps - 1 / n).abs()).max().item() < 1.95 / math.sqrt(n)
    for threshold in (4.0, 5.0):
        expected = n * math.erfc(threshold / math.sqrt(2))
        assert abs((xi.abs() > threshold).sum().item() - expected) < 4 * math.sqrt(expected) + 1
    for lag in (1, 2, 16, 32, 48, 64, 1024):
        assert abs((xi[lag:] * xi[:-lag]).mean().item()) < 5 / math.sqrt(n)


@pytest.mark.parametrize("exponent", [31, 34])
def test_more_elements_than_32_bits_count(exponent):
    """Beyond 2^31 elements, and beyond 2^32 counters."""
    n = 2**exponent + 100
    if torch.cuda.mem_get_info()[0] < 5 * n:
        pytest.skip(f"needs {5 * n / 2**30:.0f} GiB of GPU memory")
    y = triton.forward(
        torch.zeros(n, device="cuda", dtype=torch.bfloat16), None, torch.tensor(1.0, device="cuda"), seed(),
        na.NANI(sigma=1.0), WIDE,
    )  # fmt: skip
    for group in (0, 2**24, n // 64 - 1):
        counter = torch.arange(16, device="cuda") + 16 * group
        zero = torch.zeros_like(counter)
        xi = torch.cat(_four_normals(seed(), counter & 0xFFFFFFFF, counter >> 32, zero, zero))
        torch.testing.assert_close(y[64 * group : 64 * group + 64].float(), xi, rtol=2**-7, atol=1e-4)
    assert y[-36:].float().std().item() == pytest.approx(1, abs=0.5)


def test_the_linear_part_is_exact():
    x = torch.linspace(-1, 1, 100_001, device="cuda", requires_grad=True)
    y = F.noisy_hard_tanh(x, "nah:c=30")
    assert torch.equal(y, x)
    y.backward(x.detach())
    assert torch.equal(x.grad, x.detach())


def test_infinities_and_nan():
    x = torch.tensor([math.nan, math.inf, -math.inf, 1e38, -1e38, 1e-40], device="cuda")
    for scheme in STEADY:
        for pair in {"tanh", "sigmoid", "relu"} & allowed(scheme).keys():
            for p in (torch.zeros(1, device="cuda"), torch.ones(1, device="cuda")):
                arguments = (
                    x, p if scheme.learns_p else None, torch.tensor(scheme.scale, device="cuda"), seed(), scheme,
                    PAIRS[pair],
                )  # fmt: skip
                y, right = triton.forward(*arguments), reference.forward(*arguments)
                torch.testing.assert_close(y, right, rtol=1e-5, atol=1e-5, equal_nan=True)
                assert not triton.backward(torch.ones_like(x), *arguments)[0][1:].isnan().any()


def test_layouts_and_emptiness():
    x = torch.randn(6, 8, 10, device="cuda") * 3
    for view in (x.transpose(0, 2), x[::2, :, 1::3], x.flatten()[1:], x[:1].expand(5, 8, 10), x[:0]):
        leaf, copy = view.detach().requires_grad_(), view.detach().clone().contiguous().requires_grad_()
        p = torch.ones(1, device="cuda", requires_grad=True)
        y, z = (F.noisy_hard_tanh(t, "nah", p, seed=seed()) for t in (leaf, copy))
        assert torch.equal(y, z)
        y.sum().backward()
        z.sum().backward()
        assert torch.equal(leaf.grad, copy.grad)


@pytest.mark.parametrize("scheme", ["nan:c=20,alpha=1.0", "nah:c=20", "nanil:c=2"])
def test_backward_sees_the_noise_of_forward(scheme):
    x = away_from_kinks(torch.linspace(1.5, 6, 1280, device="cuda"), na.HARD_TANH).requires_grad_()
    p, step = torch.tensor([1.0], device="cuda"), 1e-2
    (gx,) = torch.autograd.grad(F.noisy_hard_tanh(x, scheme, p, seed=seed()).sum(), x)
    with torch.no_grad():
        above, below = (F.noisy_hard_tanh(x + s, scheme, p, seed=seed()) for s in (step, -step))
    close = torch.isclose((above - below) / (2 * step), gx, rtol=1e-2, atol=2e-3)
    assert close.double().mean() > (0.98 if scheme.startswith("nanil") else 0.9999)


def test_second_derivatives():
    x, p = (torch.randn(50, 33, dtype=torch.float64) * 3), torch.rand(33, dtype=torch.float64)
    results = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        leaf, leaf_p = x.to(device, dtype).requires_grad_(), p.to(device, dtype).requires_grad_()
        y = F.noisy_hard_tanh(leaf, "nah:c=3", leaf_p, seed=torch.tensor(SEED, device=device))
        gx, gp = torch.autograd.grad(y.square().sum(), (leaf, leaf_p), create_graph=True)
        second = torch.autograd.grad(gx.square().sum() + gp.square().sum(), (leaf, leaf_p))
        results.append([t.detach().cpu().double() for t in (y, gx, gp, *second)])
    for mine, right in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-3, atol=1e-3 * right.abs().max().clamp(min=1).item())


@pytest.mark.parametrize("scheme", SCHEMES[::2], ids=scheme_ids[::2])
@pytest.mark.parametrize("draws", [True, False])
def test_opcheck(scheme, draws):
    g, x, p, scale = case((4, 6), scheme, True)
    p = None if p is None else p.requires_grad_()
    settings = (seed() if draws else None, str(scheme), [1.0, 0.0, -1.0, 1.0])
    torch.library.opcheck(_activation, (x.requires_grad_(), p, scale, *settings))
    torch.library.opcheck(_activation_backward, (g, x.detach(), p, scale, *settings))


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_whole(dtype):
    x = (torch.randn(64, 100, device="cuda") * 3).to(dtype)
    p, fixed = torch.rand(100, device="cuda"), seed()

    def both(function):
        leaf, leaf_p = x.detach().requires_grad_(), p.detach().requires_grad_()
        y = function(leaf, leaf_p)
        y.sum().backward()
        return y.detach(), leaf.grad, leaf_p.grad

    def eager(x, p):
        return F.noisy_hard_tanh(x, "nah", p, seed=fixed) * 2

    torch.testing.assert_close(both(torch.compile(eager, fullgraph=True)), both(eager))
    layer = torch.compile(na.NoisyHardTanh("nah", 100).cuda(), fullgraph=True)
    assert not torch.equal(layer(x), layer(x))


def test_a_graph_of_a_training_step_draws_anew_and_follows_the_scale():
    layer = na.NoisyHardTanh("nah:alpha=1.0", 100).cuda()
    x = torch.full((50, 100), 3.0, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.autograd.grad(layer(x).sum(), (x, layer.p))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
        gx, gp = torch.autograd.grad(y.sum(), (x, layer.p))
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append([t.clone() for t in (y.detach(), gx, gp)])
    for a, b in itertools.pairwise(seen):
        assert not any(torch.equal(*pair) for pair in zip(a, b, strict=True))
    layer.set_scale(0.0)
    graph.replay()
    assert torch.equal(y, torch.ones_like(y))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_for_the_gpu():
    layer = na.NoisyHardTanh("nah", 100).cuda()
    x = torch.randn(50, 100, device="cuda", requires_grad=True)
    layer(x).sum().backward()
    try:
        torch.cuda.set_sync_debug_mode("error")
        layer(x).sum().backward()
        F.noisy_hard_tanh(x, "nan").sum().backward()
        layer.eval()(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_autocast_and_checkpoints():
    layer = torch.nn.Sequential(torch.nn.Linear(20, 30), na.NoisyHardTanh("nah:c=5")).cuda()
    x = torch.randn(10, 20, device="cuda") * 5
    with torch.autocast("cuda", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    gradients = []
    for run in (layer, lambda x: checkpoint(layer, x, use_reentrant=False)):
        layer.zero_grad()
        torch.manual_seed(1)
        run(x).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in layer.parameters()])
    torch.testing.assert_close(*gradients)


def test_the_kernels_can_be_switched_off():
    code = (
        "import torch, noisyact as na; from noisyact.ops.activation import has_kernel;"
        "x = torch.full((9,), 3.0, device='cuda'); assert not has_kernel(x);"
        "print(*na.functional.noisy_hard_tanh(x, 'nah', seed=torch.tensor(5, device='cuda')).tolist())"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=os.environ | {"NOISYACT_TRITON": "0"},
    ).stdout  # fmt: skip
    y = F.noisy_hard_tanh(torch.full((9,), 3.0, device="cuda"), "nah", seed=torch.tensor(5, device="cuda"))
    torch.testing.assert_close(torch.tensor([float(v) for v in out.split()]), y.cpu(), rtol=1e-5, atol=1e-5)
