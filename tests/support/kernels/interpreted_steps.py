"""The GPU layers step by step, by Triton's interpreter: test_interpreted_kernels.py starts these."""

import pytest
import torch
from recurrent_cases import Case

from noisyact.noise import recurrent_normal
from noisyact.ops.recurrent import reference
from noisyact.ops.recurrent.gpu import layers as gpu
from noisyact.ops.recurrent.gpu.steps import cell, copies, padding, stack, wavefront
from noisyact.ops.recurrent.gpu.steps.cublas import ProductsAsCudnn
from noisyact.ops.recurrent.gpu.steps.padding import padding_for
from noisyact.ops.recurrent.gpu.steps.timeline import timeline
from noisyact.ops.recurrent.types import LayerWeights

# Triton 3.6 asks NumPy for numbers in a way that NumPy 2.4 no longer answers and earlier ones warn about.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array")
ALL = {"share": 0.3, "zoneout": (0.3, 0.2), "dropout": 0.4, "first_step": 7, "places": True}
DOUBLE = {"dtype": torch.float64}
CASES = [
    Case("lstm", 2, 9, 37),
    Case("lstm", 2, 3, 5, **DOUBLE, hard=False, reverse=True),
    Case("lstm", 3, 5, 7, **DOUBLE, packed=True, noise="nan:alpha=1.0"),
    Case("lstm", 3, 5, 7, **DOUBLE, packed=True, reverse=True, state=False, noise="nanil"),
    Case("lstm", 2, 3, 5, **DOUBLE, draw=False, bias=False, has_p=False),
    Case("lstm", 2, 3, 5, noise=None, hard=False),
    Case("lstm", 2, 3, 5, **DOUBLE, projection=3, state=False),
    Case("lstm", 3, 5, 7, projection=3, packed=True, reverse=True),
    Case("lstm", 2, 3, 5, **DOUBLE, noise="nanil:c=3,draw=mean", gate_noise="nah:draw=centred"),
    Case("lstm", 2, 3, 5, **DOUBLE, noise="slope:slope=2", gate_noise="hard-concrete"),
    Case("lstm", 2, 3, 5, **DOUBLE, noise="straight-through", gate_noise="gumbel:binary=True", hard=False),
    Case("gru", 2, 9, 37),
    Case("gru", 3, 5, 7, **DOUBLE, packed=True, reverse=True),
    Case("gru", 3, 5, 7, **DOUBLE, packed=True, state=False),
    Case("gru", 2, 3, 5, **DOUBLE, draw=False, bias=False, has_p=False, hard=False, state=False),
    Case("rnn_tanh", 2, 9, 5, **DOUBLE),
    Case("rnn_relu", 3, 5, 7, packed=True, reverse=True, state=False),
    Case("lstm", 3, 3, 5, **DOUBLE, share=0.4, reverse=True, state=False),
    Case("lstm", 2, 5, 7, **DOUBLE, zoneout=(0.3, 0.2), dropout=0.4, packed=True, reverse=True, first_step=2),
    Case("lstm", 2, 3, 5, **DOUBLE, zoneout=(0.3, 0.4), masked=False),
    Case("lstm", 3, 3, 9, **DOUBLE, **ALL, projection=4),
    Case("lstm", 2, 5, 7, zoneout=(0.3, 0.0), dropout=0.4, projection=4, packed=True),
    Case("gru", 3, 3, 5, **DOUBLE, **ALL),
    Case("gru", 3, 3, 5, share=0.4, learned=False, reverse=True),
    Case("rnn_tanh", 3, 3, 5, **DOUBLE, **ALL, state=False),
]


def close(mine, right, name, bound):
    scale = max(right.abs().max().item(), 1e-2)
    torch.testing.assert_close(mine.double() / scale, right / scale, rtol=0, atol=bound, msg=lambda m: f"{name}: {m}")


@pytest.fixture(autouse=True)
def poisoned(monkeypatch, poisoned_memory):
    """Memory from new_empty too."""
    empty = torch.Tensor.new_empty

    def new_empty(*args, **kwargs):
        tensor = empty(*args, **kwargs)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.kind}-{case.noise}-{case.dtype}-{case.projection}-{case.features()}"
)
def test_layers_step_by_step_equal_the_reference(case):
    bound = 1e-10 if case.dtype is torch.float64 else 2e-5
    right, wide = case.reference()
    mine = case.by_kernels()
    for one, other in zip(mine, right, strict=True):
        assert one.dtype is case.dtype
        close(one, other, "output", bound)
    right_gradients = case.gradients(right, wide)
    for name, gradient in case.gradients(mine, case.leaves()).items():
        close(gradient, right_gradients[name], name, bound)
    with torch.no_grad():
        for again, one in zip(case.by_kernels(), mine, strict=True):
            assert torch.equal(again, one)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_sixteen_bits(kind):
    case = Case(kind, 2, 3, 5, dtype=torch.float16)
    right, _ = case.reference()
    mine = case.by_kernels()
    for one, other in zip(mine, right, strict=True):
        close(one, other, "output", 1e-2)
    for gradient in case.gradients(mine, case.leaves()).values():
        assert gradient.dtype is torch.float16
        assert gradient.isfinite().all()


@pytest.mark.parametrize("projection", [0, 3])
def test_layers_above_each_other_equal_one_after_the_other(projection):
    width = projection or 5
    """Each layer is one part of the steps behind the layer below."""
    assert len(wavefront.parts_of(9, 2, 3 * width)) > 1
    below = Case("lstm", 9, 3, 5, packed=True, projection=projection, dtype=torch.float64)
    above = Case("lstm", 9, 3, 5, inputs=width, projection=projection, dtype=torch.float64)
    weights = [LayerWeights(*(getattr(case, name) for name in LayerWeights._fields)) for case in (below, above)]
    h, c = torch.stack((below.h0, above.h0)), torch.stack((below.c0, above.c0))
    seeds, noise = [below.seed, below.seed + 1], below.cell_noise
    leaves = {f"{name} {i}": leaf for i, case in enumerate((below, above)) for name, leaf in case.leaves().items()}
    del leaves["x 1"]
    together = list(gpu.layers("lstm", below.sizes, below.x, h, c, weights, seeds, noise, False))
    x, states = below.x, []
    for index in range(2):
        own = h[index : index + 1], c[index : index + 1]
        x, *last = gpu.layers("lstm", below.sizes, x, *own, [weights[index]], [seeds[index]], noise, False)
        states.append(last)
    apart = [x, *(torch.cat(parts) for parts in zip(*states, strict=True))]
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-13)  # products of other numbers of rows round otherwise
    torch.testing.assert_close(below.gradients(together, leaves), below.gradients(apart, leaves))


def test_a_cell_of_float64():
    case = Case("lstm", 1, 3, 7, dtype=torch.float64)
    a, (c, p) = case._leaf(3, 28), (case.c0, case.p)
    xi = recurrent_normal(case.seed, torch.zeros(3), torch.arange(3), 5, 7, torch.float64)
    right = reference.cell("lstm", a, None, case.h0, c, p.reshape(5, 7), xi, case.cell_noise)
    gradients = torch.autograd.grad(right[0].sum() + right[1].sum(), [a, c, p])
    with torch.no_grad():
        *mine, kept = cell.cell_forward("lstm", a, None, None, c, p, case.seed, case.cell_noise)
        ones = torch.ones_like(c)
        da, _, dp, dc = cell.cell_backward(
            "lstm", ones, ones, kept, mine[1], None, c, p, case.seed, case.cell_noise
        )  # fmt: skip
    for one, other in zip((*mine, da, dc, dp.sum(0)), (*right, *gradients), strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=0, atol=1e-12)


def test_the_order_of_the_steps():
    found = timeline((3, 2, 2), reverse=True)
    first, then, last = found.steps
    assert [(step.t, step.size, step.known) for step in found.steps] == [(2, 2, 0), (1, 2, 2), (0, 3, 2)]
    assert then.position == (1, 3, 2, 5, 2, 0, 2)
    assert last.position == (0, 0, 3, 3, 2, 0, 0)
    assert list(found.positions(slice(1, 3), False)) == [*then.position, *last.position]
    assert list(found.positions(slice(0, 2), True)) == [*then.position, *first.position]
    assert [step.t for step in timeline((2, 1, 0), reverse=False, first_step=4).steps] == [0, 1]


@pytest.mark.parametrize(
    "case",
    [
        Case("lstm", 3, 3, 7, inputs=5, dtype=torch.float16),
        Case("lstm", 3, 5, 8, inputs=3, packed=True, reverse=True, dtype=torch.float16),
        Case("gru", 3, 3, 5, inputs=16, dtype=torch.float16, **ALL),
        Case("gru", 3, 3, 5, noise="nani:sigma=0.5", bias=False, dtype=torch.float16),
        Case("rnn_tanh", 3, 3, 9, dtype=torch.float16, state=False),
        Case("lstm", 3, 3, 5, dtype=torch.float16, share=0.4, reverse=True),
    ],
    ids=lambda case: f"{case.kind}-{case.hidden}-{case.features()}",
)
@pytest.mark.parametrize("keeps", [False, True])
def test_padded_units_change_nothing(case, keeps, monkeypatch):
    """A layer of 16 bits with rows of 16 bytes equals the same layer without them, but for the order of sums."""
    monkeypatch.setattr(padding, "_LEAST_WORK", 0)
    monkeypatch.setattr(padding.Padding, "keeps_weights", lambda self, rows: keeps)
    padded = case.by_kernels()
    gradients = case.gradients(padded, case.leaves())
    monkeypatch.setattr(stack, "padding_for", lambda *_: None)
    plain = case.by_kernels()
    for one, other in zip(padded, plain, strict=True):
        assert one.shape == other.shape
        assert one.is_contiguous()
        close(one, other.double(), "output", 2e-3)
    for name, gradient in case.gradients(plain, case.leaves()).items():
        assert gradients[name].shape == gradient.shape
        close(gradients[name], gradient.double(), name, 2e-2)


def test_copies_of_each_dtype_have_a_launcher():
    """A launcher finds its compiled kernel without looking at the dtype."""
    for dtype in (torch.float16, torch.float32):
        to, source = torch.empty(2, 6, dtype=dtype), torch.randn(2, 5).to(dtype)
        copies.copy_all([copies.Copy(source, to, 1, 2, 5, 2, 6)])
        assert torch.equal(to, torch.nn.functional.pad(source, (0, 1)))
    dtypes = [copies._launcher(1, dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float16)]
    assert len(set(dtypes)) == 3


def test_a_mask_changed_before_backward_raises():
    """The kernels of both passes read it, but it is no argument of the autograd function."""
    case = Case("gru", 3, 3, 5, share=0.4)
    y, _ = case.by_kernels()
    case.reset.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_only_rows_that_need_it_are_padded(monkeypatch):
    monkeypatch.setattr(padding, "_LEAST_WORK", 0)

    def widths(dtype, inputs, hidden, **more):
        x, weights = torch.empty(1, inputs, dtype=dtype), LayerWeights(None, torch.empty(4 * hidden, hidden), **more)
        found = padding_for("lstm", x, [weights])
        return found if found is None else (found.wide_inputs, found.wide_hidden)

    assert widths(torch.bfloat16, 16, 24) is None
    assert widths(torch.bfloat16, 17, 25) == (24, 32)
    assert widths(torch.float16, 8, 25) == (8, 32)
    assert widths(torch.float64, 17, 25) is None
    assert widths(torch.bfloat16, 17, 25, w_hr=torch.empty(3, 25)) is None
    with ProductsAsCudnn():
        assert torch.backends.cudnn.allow_tf32
        assert widths(torch.float32, 17, 25) == (20, 28)
    assert widths(torch.float32, 17, 25) is None
    monkeypatch.setattr(padding, "_LEAST_WORK", 2 * 100 * (17 + 25) + 1)
    assert widths(torch.bfloat16, 17, 25) is None  # little work
