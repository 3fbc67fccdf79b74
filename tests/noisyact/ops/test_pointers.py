"""What is given to a C kernel is checked before its address is taken, with python -O too."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import noisyact as na
from noisyact import functional as F
from noisyact.ops.activation import native, noisy_activation, reference
from noisyact.ops.matmul import matmul
from noisyact.ops.native.unit import address, contiguous
from noisyact.ops.recurrent.gpu.call import packed_rows

SEED, PAIR = torch.tensor(7), [1.0, 0.0, -1.0, 1.0]
OURS = Path(na.__file__).parent


def right():
    """Valid arguments of `noisyact::activation`."""
    return {"x": torch.randn(6, 5) * 3, "p": torch.ones(5), "scale": torch.tensor(0.5), "seed": SEED}


def freed(*shape):
    tensor = torch.ones(shape)
    tensor.untyped_storage().resize_(0)
    return tensor


WRONG = {
    "p of another size": {"p": torch.ones(4)},
    "p of a multiple of the size": {"p": torch.ones(30)},
    "p of no elements": {"p": torch.ones(0)},
    "p as a column": {"p": torch.ones(5, 1)},
    "p of integers": {"p": torch.ones(5, dtype=torch.int64)},
    "p of complex numbers": {"p": torch.ones(5, dtype=torch.complex64)},
    "p on the meta device": {"p": torch.ones(5, device="meta")},
    "p without memory": {"p": freed(5)},
    "scale of two": {"scale": torch.ones(2)},
    "scale of none": {"scale": torch.ones(0)},
    "scale of integers": {"scale": torch.tensor(1)},
    "scale on the meta device": {"scale": torch.ones((), device="meta")},
    "seed of two": {"seed": torch.tensor([1, 2])},
    "seed of none": {"seed": torch.zeros(0, dtype=torch.int64)},
    "seed of floats": {"seed": torch.tensor(1.0)},
    "seed of int32": {"seed": torch.tensor(1, dtype=torch.int32)},
    "seed on the meta device": {"seed": torch.zeros((), dtype=torch.int64, device="meta")},
    "x of integers": {"x": torch.ones(6, 5, dtype=torch.int64)},
    "x of booleans": {"x": torch.ones(6, 5, dtype=torch.bool)},
    "x of complex numbers": {"x": torch.ones(6, 5, dtype=torch.complex64)},
    "x of no dimensions": {"x": torch.tensor(3.0)},
    "x of another width": {"x": torch.ones(6, 4)},
    "x without memory": {"x": freed(6, 5)},
    "x of no rows and another width": {"x": torch.ones(0, 4)},
}


def by_function(x, p, scale, seed):
    return F.noisy(x, na.HARD_TANH, "nah", p, seed=seed, scale=scale)


def by_operation(x, p, scale, seed):
    return torch.ops.noisyact.activation(x, p, scale, seed, "nah", PAIR)


def by_backward(x, p, scale, seed):
    return torch.ops.noisyact.activation_backward(torch.ones_like(x), x, p, scale, seed, "nah", PAIR)


def without_dispatcher(x, p, scale, seed):
    return noisy_activation(x, p, scale, seed, na.NAH(), na.HARD_TANH)


CALLS = [by_function, by_operation, by_backward, without_dispatcher]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_one_wrong_argument_is_named(wrong, call):
    call(**right())
    (name,) = wrong
    with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
        call(**right() | wrong)
    if "freed" not in str(caught.value):
        assert str(caught.value).startswith((f"{name} ", "p of shape"))


@pytest.mark.parametrize(
    "g", [torch.ones(6, 4), torch.ones(30), torch.ones(1, 5).int(), torch.ones(6, 5, device="meta"), torch.ones(5)]
)
def test_a_gradient_of_another_kind_is_refused(g):
    x, p, scale, seed = right().values()
    with pytest.raises((ValueError, TypeError), match="the gradient"):
        torch.ops.noisyact.activation_backward(g, x, p, scale, seed, "nah", PAIR)
    with pytest.raises(ValueError, match="C kernel"):
        native.backward(g[:5] if g.dim() == 1 else g, x, p, scale, seed, na.NAH(), na.HARD_TANH)


def test_settings_of_another_kind_are_refused():
    arguments = right().values()
    for scheme, pair in (("nonsense", PAIR), ("nah", PAIR[:3]), ("nah", [0.0, 0.0, 1.0, -1.0])):
        with pytest.raises((ValueError, TypeError)):
            torch.ops.noisyact.activation(*arguments, scheme, pair)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (0, 0)])
@pytest.mark.parametrize("scheme", ["nah", "nani"])
def test_tensors_of_no_elements(shape, scheme):
    x, p = torch.ones(shape, requires_grad=True), torch.ones(shape[-1], requires_grad=True)
    y = F.noisy_hard_tanh(x, scheme, p)
    assert y.shape == shape
    gradients = torch.autograd.grad(y.sum(), (x, p), allow_unused=True, materialize_grads=True)
    assert [g.shape for g in gradients] == [x.shape, p.shape]
    assert not any(g.any() for g in gradients)


def test_every_layout_is_read_as_it_is():
    """Transposed, strided and expanded tensors, and tensors with torch's negative bit."""
    base, p = torch.randn(10, 8) * 3, torch.randn(16)[::2]
    imaginary = torch.complex(base, base.flip(0)).conj().imag
    views = [
        base.t()[:, :8],
        base[::2],
        base[:, :1].expand(10, 8),
        base[:1].expand(4, 8),
        torch._neg_view(base),
        imaginary,
    ]
    for x in views:
        for one in (p[: x.shape[1]], torch._neg_view(p[: x.shape[1]]), p[:1].expand(x.shape[1])):
            for leaf in (x, x.to(torch.bfloat16)):
                mine = noisy_activation(leaf, one, torch.tensor(0.5), SEED, na.NAH(), na.HARD_TANH)
                expected = reference.forward(leaf, one, torch.tensor(0.5), SEED, na.NAH(), na.HARD_TANH)
                torch.testing.assert_close(
                    mine, expected, rtol=1e-2 if leaf.dtype == torch.bfloat16 else 1e-5, atol=1e-5
                )


def test_tensors_without_plain_memory_raise():
    for x in (torch.randn(3, 3).to_sparse(), torch.randn(3).to_mkldnn()):
        with pytest.raises((RuntimeError, NotImplementedError, ValueError)):
            F.noisy_hard_tanh(x, "nah")


def test_subclasses_of_tensor():
    class Mine(torch.Tensor):
        pass

    x, p = right()["x"], torch.ones(5)
    expected = F.noisy_hard_tanh(x, "nah", p, seed=SEED)
    found = F.noisy_hard_tanh(x.as_subclass(Mine), "nah", p.as_subclass(Mine), seed=SEED)
    assert torch.equal(found.as_subclass(torch.Tensor), expected)


def test_addresses():
    assert address(None) is None
    assert address(torch.ones(3), 3)
    assert address(torch.ones(0)) == 0
    for tensor in (
        torch.ones(3).double(), torch.ones(6)[::2], torch.ones(3, device="meta"), freed(3), torch.ones(4),
        torch._neg_view(torch.ones(3)), torch._efficientzerotensor(3), torch.ones(3, dtype=torch.int32),
    ):  # fmt: skip
        with pytest.raises((ValueError, RuntimeError)):
            address(tensor, 3)
    assert contiguous(torch._neg_view(torch.ones(3))).tolist() == [-1.0] * 3


def test_products_of_what_is_no_pair_of_matrices():
    a, b = torch.randn(3, 4), torch.randn(4, 2)
    torch.testing.assert_close(matmul(a, b), a @ b)
    for given in (
        (a, b.t()), (a[0], b), (a[None], b), (a.double(), b), (a, b.half()), (a, b.to("meta")), (freed(3, 4), b),
        (a, freed(4, 2)), (torch._neg_view(a), b),
    ):  # fmt: skip
        with pytest.raises((ValueError, RuntimeError)):
            matmul(*given)


def test_nothing_depends_on_assertions():
    """All of the above with python -O, which removes them."""
    command = [
        sys.executable,
        "-O",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        __file__,
    ]
    if os.environ.get("NOISYACT_TESTED_WITH_O") == "1":
        pytest.skip("this is that run")
    environment = os.environ | {"NOISYACT_TESTED_WITH_O": "1"}
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3], env=environment)
    assert run.returncode == 0, run.stdout + run.stderr


GUARDS = {
    "triton.py", "native.py", "__init__.py", "unit.py", "launch.py", "arguments.py", "op.py", "cell.py", "layer.py"
}  # fmt: skip


def test_no_assertion_stands_before_an_address():
    """Assertions may only inform the type checker, because python -O removes them."""
    for file in (OURS / "ops").rglob("*.py"):
        found = [node.lineno for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Assert)]
        assert not found or file.name not in GUARDS, f"{file}: assert in lines {found}"


@pytest.mark.parametrize("kind", [na.NoisyLSTM, na.NoisyGRU, na.NoisyRNN])
@pytest.mark.parametrize("packed", [False, True])
def test_a_kernel_allocates_on_the_cpu_whatever_the_default_device(kind, packed):
    """Where the default device is a GPU, its memory was given to the C kernel."""
    state = {} if packed else {"reset": torch.rand(5, 3) < 0.3}
    layer = kind(4, 6, 2, dropout=0.2, zoneout=0.2, recurrent_dropout=0.3)
    soft, activation = kind(4, 6, noise=None, hard=False), na.NoisyHardTanh(num_parameters=6)
    x = torch.randn(5, 3, 4)
    given = pack_padded_sequence(x, torch.tensor([5, 3, 2])) if packed else x

    def gradients():
        y, _ = layer(given, seed=3, **state)
        z, _ = soft(given, seed=3, **state)
        y, z = (y.data, z.data) if packed else (y, z)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            y = activation(y)
        return torch.autograd.grad((y * z).sum(), [*layer.parameters(), *soft.parameters(), *activation.parameters()])

    wanted = gradients()
    with torch.device("meta"):
        found = gradients()
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_what_the_launches_keep_on_the_cpu_is_there_whatever_the_default_device():
    """torch.set_default_device("cuda") is usual. Only memory of the CPU can be pinned."""
    launches = pytest.importorskip("noisyact.ops.recurrent.gpu.launches")
    packed_rows.cache_clear()
    wanted = packed_rows((3, 2, 2), True, torch.device("cpu"))
    packed_rows.cache_clear()
    launches._alarm.cache_clear()
    with torch.device("meta"):
        assert launches._alarm().device.type == "cpu"
        found = packed_rows((3, 2, 2), True, torch.device("cpu"))
    assert all(torch.equal(mine, right) for mine, right in zip(found, wanted, strict=True))
