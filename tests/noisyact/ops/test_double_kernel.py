"""The C kernels in float64 equal the reference to the precision of float64, noise included."""

import pytest
import torch
from cases import ESTIMATORS, SCHEMES

import noisyact as na
from noisyact.ops.matmul import matmul

LAYERS = {"lstm": na.NoisyLSTM, "gru": na.NoisyGRU, "rnn": na.NoisyRNN}
CELLS = {"lstm": na.NoisyLSTMCell, "gru": na.NoisyGRUCell, "rnn": na.NoisyRNNCell}


def results(module, x, backend):
    """The outputs and all gradients, with the same noise for every backend."""
    module.backend = backend
    torch.manual_seed(3)
    x = x.detach().clone().requires_grad_()
    out = module(x)
    flat = [
        t
        for part in (out if isinstance(out, tuple) else (out,))
        for t in (part if isinstance(part, tuple) else (part,))
    ]
    total = sum((t * torch.linspace(-1, 2, t.numel(), dtype=t.dtype).view_as(t)).sum() for t in flat)
    gradients = torch.autograd.grad(total, [x, *module.parameters()], allow_unused=True, materialize_grads=True)
    return [*flat, *gradients]


def strong(module):
    """Weights large enough that many units saturate."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(4)
    return module


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("scheme", [None, *SCHEMES, "nan:c=2", *ESTIMATORS[1::2]])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_equals_the_reference(kind, scheme, hard):
    for hidden, options in ((19, {}), (5, {"num_layers": 2, "bidirectional": True})):
        torch.manual_seed(1)
        layer = strong(LAYERS[kind](4, hidden, noise=scheme, hard=hard, dtype=torch.float64, **options))
        x = torch.randn(6, 7, 4, dtype=torch.float64)
        for found, expected in zip(results(layer, x, "cpu"), results(layer, x, "reference"), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("scheme", ["nani:sigma=0.4,draw=mean", "nanil:c=3,draw=mean", "nanis:draw=mean"])
def test_smoothed_functions_equal_the_reference(scheme):
    layer, x = strong(na.NoisyLSTM(4, 19, noise=scheme, dtype=torch.float64)), torch.randn(6, 7, 4, dtype=torch.float64)
    for found, expected in zip(results(layer, x, "cpu"), results(layer, x, "reference"), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("scheme", [None, "nah"])
def test_a_projection_equals_the_reference(scheme):
    layer = strong(na.NoisyLSTM(4, 19, proj_size=3, noise=scheme, dtype=torch.float64))
    x = torch.randn(6, 7, 4, dtype=torch.float64)
    for found, expected in zip(results(layer, x, "cpu"), results(layer, x, "reference"), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("kind", CELLS)
def test_a_cell_equals_the_reference(kind):
    cell, x = strong(CELLS[kind](4, 19, noise="nah", dtype=torch.float64)), torch.randn(7, 4, dtype=torch.float64)
    for found, expected in zip(results(cell, x, "cpu"), results(cell, x, "reference"), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_the_noise_is_that_of_float32_to_its_precision():
    layer = strong(na.NoisyGRU(4, 19, noise="nan"))
    x = torch.randn(6, 7, 4)
    narrow, wide = results(layer, x, "cpu")[0], results(layer.double(), x.double(), "cpu")[0]
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-3, atol=1e-4)
    assert not torch.equal(narrow.double(), wide)


@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 1, 1), (7, 33, 19), (3, 0, 4), (64, 256, 65)])
def test_products(rows, depth, columns):
    a, b = torch.randn(depth, rows, dtype=torch.float64).t(), torch.randn(depth, columns, dtype=torch.float64)
    torch.testing.assert_close(matmul(a, b), a @ b, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="one dtype, float32 or float64"):
        matmul(a, b.float())


def test_gradcheck_through_the_kernel():
    layer = na.NoisyLSTM(3, 4, noise="nah", dtype=torch.float64, backend="cpu")

    def run(x, weight):
        torch.manual_seed(0)
        return torch.func.functional_call(layer, {"weight_hh_l0": weight}, (x,))[0]

    x = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (x, (3 * layer.weight_hh_l0).detach().requires_grad_()))
