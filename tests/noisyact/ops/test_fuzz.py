"""Some cases of both fuzzers, and sizes that exceed 32 bits. `make sanitize` runs more cases, under sanitizers."""

import ctypes

import fuzz_invalid
import fuzz_kernels
import pytest
import torch

import noisyact as na
from noisyact.ops import native
from noisyact.ops.activation import native as activation
from noisyact.ops.matmul import matmul
from noisyact.ops.native.build import LIBRARIES


@pytest.mark.parametrize("part", range(4))
def test_random_calls_agree_with_the_reference(part):
    at_kinks = sum(not fuzz_kernels.run_case(1, index) for index in range(part, 120, 4))
    assert at_kinks <= 3


@pytest.mark.parametrize("fuzzer", fuzz_invalid.FUZZERS, ids=lambda fuzzer: fuzzer.__name__)
def test_random_invalid_calls_raise(fuzzer, monkeypatch):
    monkeypatch.setattr(fuzz_invalid, "FUZZERS", [fuzzer])
    for index in range(40):
        fuzz_invalid.run_case(1, index)


def test_products_of_many_columns():
    """The index of a vector times the number of a group exceeds 32 bits."""
    right = torch.arange(6_000_000, dtype=torch.float32)[None]
    assert torch.equal(matmul(torch.full((1, 1), 2.0), right), 2 * right)


def test_a_layer_of_many_inputs():
    """The gradient of this layer's input is a product with many columns."""
    rnn = na.NoisyRNN(1_600_000, 1, noise=None, bias=False, backend="cpu")
    x = torch.full((1, 1, 1_600_000), 1e-3, requires_grad=True)
    rnn(x)[0].sum().backward()
    torch.testing.assert_close(x.grad[0], rnn.weight_ih_l0.detach())


def test_chunks_are_counted_in_64_bits():
    library = native.library()
    features = 2**25  # chunks of 64 rows: 2^31 elements
    x, p = torch.zeros(1, features), torch.ones(features)
    scale, seed = torch.tensor(0.5), torch.tensor(7)
    gx, gp = activation.backward(torch.ones(1, features), x, p, scale, seed, na.NAH(), na.HARD_TANH)
    assert library.noisyact_activation_chunk(ctypes.c_int64(features)) == 2**31
    assert gx.eq(1).all()
    assert gp.eq(0).all()


def test_memory_that_the_kernels_cannot_have_is_an_error(monkeypatch):
    """No machine has the scratch memory for this many threads, and no thread is started without it."""
    layer = na.NoisyLSTM(300, 300, backend="cpu")
    x = torch.randn(2, 2, 300)
    monkeypatch.setattr(native, "threads", lambda: 2**31 - 1)
    with pytest.raises(MemoryError, match="product"):
        matmul(torch.ones(2, 2), torch.ones(2, 2))
    with pytest.raises(MemoryError, match="noisyact_recurrent_forward: no memory for 4 rows of 300 units"):
        layer(x)


def test_kernels_from_another_folder(tmp_path, monkeypatch):
    """The variable NOISYACT_LIBRARIES, which `make sanitize` uses."""
    monkeypatch.setenv("NOISYACT_LIBRARIES", str(tmp_path))
    load = native._load.__wrapped__  # without what it remembers
    assert load() == (None, f"no library in NOISYACT_LIBRARIES={tmp_path}; torch operations are used")
    for library in LIBRARIES.glob("*.so"):
        (tmp_path / library.name).symlink_to(library)
    library, status = load()
    assert str(tmp_path) in library._name
    assert status.startswith("compiled C kernels")
