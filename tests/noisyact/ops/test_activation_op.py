"""The C kernel against the reference, and the operation against torch's rules for operations."""

import math
import os
import subprocess
import sys

import pytest
import torch
from cases import ALL, PAIRS, SCHEMES, SHAPES, all_ids, allowed, scheme_ids

import noisyact as na
from noisyact import functional as F
from noisyact.ops import native as native_library
from noisyact.ops.activation import native, noisy_activation, reference
from noisyact.ops.activation.op import _activation, _activation_backward

SEED = torch.tensor(2**61 + 987654321)


def case(shape, scheme, per_feature, dtype=torch.float32, spread=4.0):
    x = (torch.randn(shape) * spread).to(dtype)
    g = torch.randn(shape).to(dtype)
    size = shape[-1] if per_feature and shape else 1
    p = torch.empty(size).uniform_(-2, 2) if scheme.learns_p else None
    return g, x, p, torch.tensor(scheme.scale)


def test_the_kernel_is_there():
    """Wherever these tests run there is a C compiler; without this the comparisons below would compare nothing."""
    assert native_library.library() is not None, native_library.status()


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("scheme", ALL, ids=all_ids)
@pytest.mark.parametrize("pair", PAIRS)
def test_kernel_equals_reference(scheme, pair):
    if pair not in allowed(scheme):
        return
    pair = PAIRS[pair]
    for shape in SHAPES:
        for per_feature in (False, True):
            g, x, p, scale = case(shape, scheme, per_feature)
            if p is not None and p.numel() == 0:
                continue
            for seed in (SEED, None):
                arguments = (x, p, scale, seed, scheme, pair)
                torch.testing.assert_close(
                    native.forward(*arguments), reference.forward(*arguments), rtol=1e-5, atol=1e-5
                )
                mine, right = native.backward(g, *arguments), reference.backward(g, *arguments)
                torch.testing.assert_close(mine[0], right[0], rtol=1e-5, atol=2e-5)
                torch.testing.assert_close(mine[1], right[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scheme", ALL, ids=all_ids)
@pytest.mark.parametrize(
    ("dtype", "forward", "backward"),
    [
        (torch.float64, 1e-7, 1e-6),
        (torch.float32, 1e-5, 2e-5),
        (torch.float16, 2e-3, 1e-2),
        (torch.bfloat16, 1.6e-2, 2e-2),
    ],
)
def test_every_dtype_against_float64(scheme, dtype, forward, backward):
    """Computed in float32 inside whatever the dtype: only the rounding of input and output is left."""
    x = (torch.randn(40, 33) * 3).to(dtype)
    p = torch.empty(33).uniform_(-2, 2)
    g = torch.randn(40, 33).to(dtype)
    results = []
    for kind in (dtype, torch.float64):
        leaf, leaf_p = x.detach().to(kind).requires_grad_(), p.detach().to(torch.float64).requires_grad_()
        y = F.noisy(leaf, na.HARD_TANH, scheme, leaf_p if kind == torch.float64 else leaf_p.float(), seed=SEED)
        assert y.dtype == kind
        gx, gp = torch.autograd.grad(y, (leaf, leaf_p), g.to(kind), allow_unused=True, materialize_grads=True)
        assert gx.dtype == kind
        results.append((y.detach().double(), gx.double(), gp.double()))
    # An input-noise scheme has a step in its derivative: where rounding decides the side, the gradients may differ.
    (y, gx, gp), (y64, gx64, gp64) = results
    torch.testing.assert_close(y, y64, rtol=forward, atol=forward)
    close = torch.isclose(gx, gx64, rtol=backward, atol=backward)
    assert close.double().mean() > (0.995 if scheme.at_input or scheme.clips else 0.9999)
    if not (scheme.at_input or scheme.clips):
        torch.testing.assert_close(gp, gp64, rtol=backward, atol=backward * gp64.abs().max().clamp(min=1).item())


@pytest.mark.parametrize("pair", ["tanh", "sigmoid", "relu"])
@pytest.mark.parametrize("path", [native, reference])
def test_infinities_and_nan(path, pair):
    """NaN stays NaN; infinities make none, with p = 0 too; alpha = 1 gives the limit of h."""
    pair = PAIRS[pair]
    x = torch.tensor([math.nan, math.inf, -math.inf, 1e38, -1e38, 1e-40])
    for scheme in ALL:
        if pair not in allowed(scheme).values():
            continue
        for p in (torch.zeros(1), torch.ones(1)):
            for seed in (SEED, None):
                arguments = (x, p if scheme.learns_p else None, torch.tensor(scheme.scale), seed, scheme, pair)
                y = path.forward(*arguments)
                assert y.isnan().tolist() == [True] + [False] * 5, (scheme, y)
                gx, _ = path.backward(torch.ones(6), *arguments)
                assert not gx[1:].isnan().any()
                if scheme.leak == 0 and seed is None and pair is not na.RELU:
                    expected = pair.h(x[1:5])
                    bound = scheme.scale / 4 * math.sqrt(2 / math.pi) + 1e-6 if isinstance(scheme, na.NAH) else 1e-6
                    assert (y[1:5] - expected).abs().max() <= bound


def test_layouts_do_not_matter():
    x = torch.randn(6, 8, 10) * 3
    for view in (x.transpose(0, 2), x[::2, :, 1::3], x.permute(1, 2, 0), x[:1].expand(5, 8, 10)):
        for noise in ("nah", "nanil"):
            leaf, copy = view.detach().requires_grad_(), view.detach().contiguous().requires_grad_()
            y, z = (F.noisy_hard_tanh(t, noise, torch.ones(1), seed=SEED) for t in (leaf, copy))
            assert torch.equal(y, z)
            y.sum().backward()
            z.sum().backward()
            assert torch.equal(leaf.grad, copy.grad)


def test_threads_do_not_change_a_bit():
    g, x, p, scale = case((1000, 257), na.NAH(), True)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            results.append((native.forward(x, p, scale, SEED, na.NAH(), na.HARD_TANH),
                            *native.backward(g, x, p, scale, SEED, na.NAH(), na.HARD_TANH)))  # fmt: skip
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_backward_sees_the_noise_of_forward():
    """d phi / dx by differences along x at fixed seed equals the gradient: the same xi on both ways."""
    x = torch.linspace(1.5, 6, 128, dtype=torch.float32).requires_grad_()
    p, step = torch.tensor([1.0]), 1e-2
    y = F.noisy_hard_tanh(x, "nan:c=20,alpha=1.0", p, seed=SEED)
    (gx,) = torch.autograd.grad(y.sum(), x)
    with torch.no_grad():
        above, below = (F.noisy_hard_tanh(x + s, "nan:c=20,alpha=1.0", p, seed=SEED) for s in (step, -step))
    torch.testing.assert_close((above - below) / (2 * step), gx, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("scheme", SCHEMES[::2], ids=scheme_ids[::2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_opcheck(scheme, dtype):
    """With a seed for every other pair of scheme and dtype: the check compiles the operation, and is slow."""
    seed = SEED if SCHEMES.index(scheme) % 4 == (0 if dtype == torch.float32 else 2) else None
    g, x, p, scale = case((4, 6), scheme, True, dtype)
    p = None if p is None else p.to(dtype).requires_grad_()
    settings = (str(scheme), [1.0, 0.0, -1.0, 1.0])
    torch.library.opcheck(_activation, (x.requires_grad_(), p, scale, seed, *settings))
    torch.library.opcheck(_activation_backward, (g, x.detach(), p, scale, seed, *settings))


def test_functional_and_operation_agree_without_the_kernel():
    """The formula in torch operations, taken where there is no kernel, gives what the kernel gives."""
    code = (
        "import torch, noisyact as na;"
        "from noisyact.ops import native; assert native.library() is None;"
        "x = torch.linspace(-4, 4, 33).requires_grad_(); p = torch.ones(1, requires_grad=True);"
        "y = na.functional.noisy_hard_tanh(x, 'nah', p, seed=torch.tensor(5)); y.sum().backward();"
        "print(*y.tolist(), *x.grad.tolist(), p.grad.item())"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"NOISYACT_NATIVE": "0"},
        check=True,
    ).stdout
    x, p = torch.linspace(-4, 4, 33).requires_grad_(), torch.ones(1, requires_grad=True)
    y = F.noisy_hard_tanh(x, "nah", p, seed=torch.tensor(5))
    assert y.grad_fn.name().startswith("_EagerActivation")
    y.sum().backward()
    torch.testing.assert_close(
        torch.tensor([float(v) for v in out.split()]), torch.cat([y.detach(), x.grad, p.grad]), rtol=1e-5, atol=1e-5
    )


def test_operation_with_no_elements():
    x = torch.empty(0, 5, requires_grad=True)
    p = torch.ones(5, requires_grad=True)
    noisy_activation(x, p, torch.tensor(0.5), SEED, na.NAH(), na.HARD_TANH).sum().backward()
    assert x.grad.shape == (0, 5)
    assert p.grad.tolist() == [0.0] * 5
