"""The C kernel with bfloat16 and float16: exactly the float32 kernel's results, rounded once as torch rounds."""

import ctypes
import os
from pathlib import Path

import pytest
import torch
from cases import ALL, PAIRS, all_ids, allowed
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import noisyact as na
from noisyact import functional as F
from noisyact.ops import native as native_library
from noisyact.ops.activation import native, reference
from noisyact.ops.activation.op import _activation_backward
from noisyact.ops.native import build
from noisyact.ops.native.build import library_path

pytestmark = pytest.mark.usefixtures("one_thread")
SEED = torch.tensor(2**61 + 987654321)
DTYPES = [torch.bfloat16, torch.float16]
LIBRARIES = Path(os.environ.get("NOISYACT_LIBRARIES", build.LIBRARIES))
LEVELS = [level for level in build.levels() if native_library.runs(level) and library_path(level, LIBRARIES).exists()]
CASES = [((1,), "tanh"), ((7,), "relu"), ((300,), "tanh"), ((3, 5), "sigmoid"), ((170, 99), "tanh")]


@pytest.fixture(params=LEVELS)
def level(request, monkeypatch):
    """Let the kernels be those of one instruction set."""
    library = ctypes.CDLL(str(library_path(request.param, LIBRARIES)))

    def function(name, addresses):
        found = getattr(library, name)
        found.argtypes = [ctypes.c_void_p] * addresses + [ctypes.c_int]
        return found

    monkeypatch.setattr(native_library, "function", function)


def same(mine, right):
    """Whether two tensors are equal, the sign of zero included; NaN equals NaN."""
    assert mine.dtype == right.dtype
    assert mine.shape == right.shape
    both_nan = mine.isnan() & right.isnan()
    assert torch.equal(mine[~both_nan].view(torch.int16), right[~both_nan].view(torch.int16))


def check(g, x, p, seed, scheme, pair):
    """Compare forward and backward with the float32 kernel."""
    arguments = (p, torch.tensor(scheme.scale), seed, scheme, pair)
    same(native.forward(x, *arguments), native.forward(x.float(), *arguments).to(x.dtype))
    gx, gp = native.backward(g, x, *arguments)
    wide_gx, wide_gp = native.backward(g.float(), x.float(), *arguments)
    same(gx, wide_gx.to(x.dtype))
    assert torch.equal(gp.isnan(), wide_gp.isnan())
    assert torch.equal(gp.nan_to_num(), wide_gp.nan_to_num())


@pytest.mark.usefixtures("level", "poisoned_memory")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("slope", [1.0, 1 + 2**-8, 1 + 2**-11, 0.5, 3.0])
def test_every_value_and_every_tie(dtype, slope):
    """All 65,536 values, NaN and infinities included. Slopes of 1 + 2^-8 and 1 + 2^-11 make ties, 1/2 denormal ones."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    for scheme in (na.NAN(alpha=1.0), na.NANI(sigma=0.0)):
        check(x.flip(0), x, None, SEED, scheme, na.HardPair(slope, 0.0, -3e38, float("inf")))


@pytest.mark.usefixtures("level", "poisoned_memory")
@pytest.mark.parametrize("scheme", ALL, ids=all_ids)
def test_every_scheme(scheme):
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-7, -0.0])
    for dtype in DTYPES:
        for shape, pair in CASES:
            if pair not in allowed(scheme):
                continue
            for spread in (0.3, 3.0):
                for size in {1, shape[-1]} if scheme.learns_p else {0}:
                    x, g = (spread * torch.randn(shape)).to(dtype), torch.randn(shape).to(dtype)
                    if x.numel() > 7:
                        x.view(-1)[-7:] = special.to(dtype)
                    p = torch.empty(size).uniform_(-2, 2) if size else None
                    for seed in (SEED, None):
                        check(g, x, p, seed, scheme, PAIRS[pair])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_drawn_layouts_against_the_reference(data):
    """Non-contiguous input and gradients; the reference computes in float32 and rounds once."""
    dtype, scheme = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(ALL))
    rows, columns = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 70))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**40)))
    wide = (3 * torch.randn(2 * rows, columns, 2, generator=generator)).to(dtype)
    views = [wide[::2, :, 0], wide.transpose(0, 1)[:, :, 1].t()[rows:], wide[:1, :, 1].expand(rows, columns)]
    x, g = data.draw(st.sampled_from(views)), data.draw(st.sampled_from(views)).flip(1)
    size = data.draw(st.sampled_from([1, columns]))
    p = torch.randn(size, generator=generator).to(data.draw(st.sampled_from([dtype, torch.float32])))
    leaf, leaf_p = x.detach().requires_grad_(), p.requires_grad_()
    y = F.noisy(leaf, na.HARD_TANH, scheme, leaf_p if scheme.learns_p else None, seed=SEED)
    gx, gp = torch.autograd.grad(y, (leaf, leaf_p), g, allow_unused=True, materialize_grads=True)
    check(g, x, p.detach() if scheme.learns_p else None, SEED, scheme, na.HARD_TANH)
    arguments = (x, p.detach() if scheme.learns_p else None, torch.tensor(scheme.scale), SEED, scheme, na.HARD_TANH)
    right_gx, right_gp = reference.backward(g, *arguments)
    step = 2**-7 if dtype == torch.bfloat16 else 2**-10  # where float32 differs in its last bit, rounding may too
    torch.testing.assert_close(y.detach(), reference.forward(*arguments), rtol=step, atol=1e-5)
    close = torch.isclose(gx, right_gx, rtol=step, atol=1e-4)
    assert (~close).sum() <= 2  # float32 and the kernel may be on different sides of a kink
    if scheme.learns_p and close.all():
        size = right_gp.abs().max().clamp(min=1).item()
        torch.testing.assert_close(gp, right_gp, rtol=2 * step, atol=1e-3 * size)


class _Seen(TorchDispatchMode):
    """Records the operations of torch that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_float32_copy_is_made(dtype):
    x, p = torch.randn(4, 33).to(dtype), torch.ones(33)
    with _Seen() as seen:
        native.forward(x, p, 0.5, None, na.NAH(), na.HARD_TANH)
        native.backward(x, x, p, 0.5, None, na.NAH(), na.HARD_TANH)
    assert seen.names
    assert not [name for name in seen.names if "copy" in name or "to." in name]


@pytest.mark.parametrize(("x_dtype", "g_dtype"), [(torch.bfloat16, torch.float32), (torch.float32, torch.float16)])
def test_a_gradient_of_another_dtype_is_not_rounded(x_dtype, g_dtype):
    x, g, p = (3 * torch.randn(5, 40)).to(x_dtype), torch.randn(5, 40).to(g_dtype), torch.rand(40)
    settings = (p, torch.tensor(0.5), SEED, "nah", [1.0, 0.0, -1.0, 1.0])
    gx, gp = _activation_backward(g, x, *settings)
    wide_gx, wide_gp = _activation_backward(g.float(), x.float(), *settings)
    assert torch.equal(gx, wide_gx.to(x_dtype))
    assert torch.equal(gp, wide_gp)


def test_threads_do_not_change_a_bit():
    x, g, p = (torch.randn(1000, 257).to(torch.bfloat16) for _ in range(3))
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        arguments = (x, p[0].float(), 0.5, SEED, na.NAH(), na.HARD_TANH)
        results.append((native.forward(*arguments), *native.backward(g, *arguments)))
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))
