"""The C kernel of the recurrent layers against the plain torch reference: values, every gradient, every setting."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import noisyact as na
from noisyact.ops.matmul import matmul
from noisyact.ops.recurrent import cell as cell_op
from noisyact.ops.recurrent.cpu import registration
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES

KINDS = {
    "lstm": (na.NoisyLSTM, na.NoisyLSTMCell, {}),
    "gru": (na.NoisyGRU, na.NoisyGRUCell, {}),
    "rnn_tanh": (na.NoisyRNN, na.NoisyRNNCell, {"nonlinearity": "tanh"}),
    "rnn_relu": (na.NoisyRNN, na.NoisyRNNCell, {"nonlinearity": "relu"}),
}
SCHEMES = ["nan", "nah", "nani", "nanil", "nanis", "nah:clip=True", "nan:alpha=0.9", None]
# (steps, batch, hidden): every value occurs at least once, large ones in cases for which the reference is fast.
SIZES = [
    (1, 1, 1), (35, 20, 200), (2, 3, 650), (63, 3, 17), (200, 1, 64), (1, 64, 1024), (2, 20, 1024), (35, 3, 64),
    (200, 3, 17), (63, 64, 1), (35, 64, 17), (2, 1, 200), (63, 20, 64),
]  # fmt: skip


def weighted(tensors):
    """A sum in which every element has a weight of its own, so that no two errors cancel."""
    return sum((t * torch.linspace(-1, 1, t.numel()).reshape(t.shape).cos()).sum() for t in tensors)


def outputs_and_gradients(module, x, states, seed=3, packed=None):
    torch.manual_seed(seed)
    leaves = [t.clone().requires_grad_() for t in (*x, *states)]
    inputs, hx = leaves[: len(x)], leaves[len(x) :]
    given = None if not hx else tuple(hx) if len(hx) == 2 else hx[0]
    result = module(inputs[0] if packed is None else pack_sequence(inputs, enforce_sorted=packed == "sorted"), given)
    y, state = result if isinstance(result, tuple) else (result, ())
    y = y.data if packed is not None else y
    outputs = [y, *(state if isinstance(state, tuple) else (state,))]
    parameters = dict(module.named_parameters())
    # In evaluation p may be no part of the result: the reference then has no gradient for it, the kernel zeros.
    gradients = torch.autograd.grad(
        weighted(outputs), [*leaves, *parameters.values()], allow_unused=True, materialize_grads=True
    )
    names = [*(f"x{i}" for i in range(len(x))), *(f"state{i}" for i in range(len(hx))), *parameters]
    return [t.detach() for t in outputs], dict(zip(names, gradients, strict=True))


def assert_close(one, other, steps_in_derivative=False):
    """Within float32's rounding, by the size of each tensor.

    Where noise enters before the kink, or the result is clipped, a rounding error may put a value on the other side
    of it and change single elements a lot. Then 99% of the elements must be close, and the norm nearly so.
    """
    (outputs, gradients), (expected, expected_gradients) = one, other
    assert gradients.keys() == expected_gradients.keys()
    pairs = [(f"output {i}", a, b) for i, (a, b) in enumerate(zip(outputs, expected, strict=True))]
    pairs += [(name, gradients[name], expected_gradients[name]) for name in gradients]
    for name, a, b in pairs:
        assert a.shape == b.shape, name
        assert a.isfinite().all(), name
        size = b.abs().max().item() if b.numel() else 0.0
        close = (a - b).abs() <= 1e-3 * b.abs() + 1e-4 * max(size, 1e-3)
        share = close.double().mean().item()
        if steps_in_derivative:
            assert share >= 0.99 or (~close).sum() <= 1, f"{name}: {share:.4f} of the elements are close"
            assert (a - b).norm() <= 0.02 * b.norm() + 1e-6, name
        else:
            assert share == 1, f"{name}: off by {(a - b).abs().max():.3g} of {size:.3g}"


def twins(make):
    """The same layer for the kernel and for the reference."""
    torch.manual_seed(1)
    kernel, reference = make(backend="cpu"), make(backend="reference")
    reference.load_state_dict(kernel.state_dict())
    return kernel, reference


def steps_in(scheme):
    return scheme is not None and ("clip" in scheme or scheme.startswith("nani"))


def first_states(kind, count, batch, hidden):
    return [0.5 * torch.randn(count, batch, hidden) for _ in range(1 + (kind == "lstm"))]


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize(
    ("kind", "scheme", "size"),
    [(kind, s, SIZES[i % len(SIZES)]) for i, (kind, s) in enumerate(itertools.product(KINDS, SCHEMES))]
    + [(kind, "nah", size) for kind, size in zip(itertools.cycle(["gru", "lstm", "rnn_tanh"]), SIZES, strict=False)],
)
def test_kernel_equals_reference(kind, scheme, size):
    assert_equals_reference(kind, scheme, size, hard=True)


SOFT_SIZES = [(1, 1, 1), (5, 3, 17), (2, 20, 65), (9, 7, 16), (3, 1, 200)]


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("scheme", [*SCHEMES, "nan:alpha=1.0", "nah:c=3,alpha=0.9,clip=True"])
@pytest.mark.parametrize("kind", KINDS)
def test_soft_functions_equal_the_reference(kind, scheme):
    for size in SOFT_SIZES:
        assert_equals_reference(kind, scheme, size, hard=False)


def assert_equals_reference(kind, scheme, size, hard):
    steps, batch, hidden = size
    layer, _, extra = KINDS[kind]
    kernel, reference = twins(lambda **b: layer(7, hidden, noise=scheme, hard=hard, **extra, **b))
    # Weights shrink with the size of the layer; inputs that grow with it keep about half its units saturated and noisy.
    x, states = [hidden**0.5 * torch.randn(steps, batch, 7)], first_states(kind, 1, batch, hidden)
    found, expected = (outputs_and_gradients(module, x, states) for module in (kernel, reference))
    assert_close(found, expected, steps_in(scheme))
    if found[0][0].numel() > 200 and scheme != "nanil" and hard:  # its noise rarely carries a unit out of saturation
        torch.manual_seed(4)
        other = kernel(x[0], tuple(states) if kind == "lstm" else states[0])[0]
        assert torch.allclose(other, found[0][0], atol=1e-4) == (scheme is None)


GRID = list(itertools.product([1, 2, 35, 63, 200], [1, 3, 20, 64], [1, 17, 64, 200]))


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("index", range(len(GRID)), ids=lambda i: "T{}-B{}-H{}".format(*GRID[i]))
def test_every_size_equals_the_reference(index):
    """Every size that the reference is quick for, kinds and schemes in turn; SIZES above has the large ones."""
    steps, batch, hidden = GRID[index]
    kind, scheme = list(KINDS)[(index + index // 4) % 3], SCHEMES[(index + index // 8) % 8]
    layer, _, extra = KINDS[kind]
    kernel, reference = twins(lambda **b: layer(7, hidden, noise=scheme, **extra, **b))
    x, states = [hidden**0.5 * torch.randn(steps, batch, 7)], first_states(kind, 1, batch, hidden)
    found, expected = (outputs_and_gradients(module, x, states) for module in (kernel, reference))
    if steps * batch * hidden < 1_000_000:
        assert_close(found, expected, steps_in(scheme))
        return
    # Of millions of values some lie where rounding decides on which side of a kink they are: close as a whole.
    pairs = list(zip(found[0], expected[0], strict=True)) + [(found[1][n], expected[1][n]) for n in expected[1]]
    for a, b in pairs:
        assert (a - b).norm() <= 2e-3 * b.norm() + 1e-6


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("packed", [None, "sorted", "unsorted"])
@pytest.mark.parametrize("kind", KINDS)
def test_layers_directions_dropout_packing(kind, packed, hard):
    """Two layers, two directions, dropout between them, with and without biases and a first state."""
    layer, _, extra = KINDS[kind]
    lengths = [9, 7, 7, 2, 1] if packed == "sorted" else [2, 9, 1, 7, 7]
    x = [2 * torch.randn(n, 6) for n in lengths] if packed else [2 * torch.randn(8, 5, 6)]
    for bias, given in ((True, True), (False, False)):
        settings = {"num_layers": 2, "bias": bias, "dropout": 0.4, "bidirectional": True, "hard": hard, **extra}
        kernel, reference = twins(lambda s=settings, **b: layer(6, 19, **s, **b))
        states = first_states(kind, 4, 5, 19) if given else []
        found, expected = (outputs_and_gradients(m, x, states, packed=packed) for m in (kernel, reference))
        assert_close(found, expected)
        other = outputs_and_gradients(kernel, x, states, seed=4, packed=packed)
        assert not torch.equal(found[0][0], other[0][0])  # the noise is on


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("eval_noise", ["expectation", "hard", "sample"])
@pytest.mark.parametrize("kind", KINDS)
def test_evaluation(kind, eval_noise, hard):
    layer, _, extra = KINDS[kind]
    x, states = [3 * torch.randn(6, 3, 5)], first_states(kind, 1, 3, 17)
    for scheme in SCHEMES:
        settings = {"noise": scheme, "eval_noise": eval_noise, "hard": hard, **extra}
        kernel, reference = twins(lambda s=settings, **b: layer(5, 17, **s, **b))
        found, expected = (outputs_and_gradients(m.eval(), x, states) for m in (kernel, reference))
        assert_close(found, expected, steps_in(scheme))


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize(("noise", "gate_noise"), [("nah:c=2", "nan:c=0.7,alpha=0.9"), (None, "nah"), ("nanil", "nah")])
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_gates_with_noise_of_their_own(kind, hard, noise, gate_noise):
    layer, _, _ = KINDS[kind]
    kernel, reference = twins(lambda **b: layer(5, 33, noise=noise, gate_noise=gate_noise, hard=hard, **b))
    x = [4 * torch.randn(11, 4, 5)]
    found, expected = (outputs_and_gradients(m, x, first_states(kind, 1, 4, 33)[:0]) for m in (kernel, reference))
    assert_close(found, expected, steps_in(noise))
    same = twins(lambda **b: layer(5, 33, noise=gate_noise, hard=hard, **b))[0]
    assert not torch.allclose(outputs_and_gradients(same, x, [])[0][0], found[0][0], atol=1e-4)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", KINDS)
def test_cells(kind, scheme, hard):
    _, cell, extra = KINDS[kind]
    for batch, hidden in ((1, 1), (3, 17), (20, 200)):
        kernel, reference = twins(lambda h=hidden, **b: cell(5, h, noise=scheme, hard=hard, **extra, **b))
        states = [s[0] for s in first_states(kind, 1, batch, hidden)]
        x = [4 * torch.randn(batch, 5)]
        found, expected = (outputs_and_gradients(module, x, states) for module in (kernel, reference))
        assert_close(found, expected, steps_in(scheme))


@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_again_and_with_any_number_of_threads(kind, hard):
    layer, _, extra = KINDS[kind]
    threads = torch.get_num_threads()
    try:
        for steps, batch, hidden in ((5, 20, 200), (9, 3, 17), (3, 64, 130)) if hard else ((9, 3, 17), (3, 64, 130)):
            module = layer(40, hidden, bidirectional=True, hard=hard, **extra, backend="cpu")
            x, states = [2 * torch.randn(steps, batch, 40)], first_states(kind, 2, batch, hidden)
            results = []
            for n in (1, 1, 2, 3, 2):
                torch.set_num_threads(n)
                outputs, gradients = outputs_and_gradients(module, x, states)
                results.append([*outputs, *gradients.values()])
            for other in results[1:]:
                assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("part", ["x", "h", "c", "weights", "p", "only the last state", "nothing"])
def test_gradients_of_a_part_are_those_of_the_whole(part):
    """The kernel skips gradients that are not needed, which must not change the others."""
    module = na.NoisyLSTM(6, 18, backend="cpu")
    x, h, c = 2 * torch.randn(7, 3, 6), torch.randn(1, 3, 18), torch.randn(1, 3, 18)
    leaves = {"x": x, "h": h, "c": c, "weights": module.weight_hh_l0, "p": module.noise.p_l0}

    def gradients(wanted, loss):
        for name, leaf in leaves.items():
            leaf.requires_grad_(name in wanted)
        torch.manual_seed(5)
        y, (h_n, c_n) = module(x, (h, c))
        return torch.autograd.grad(loss(y, h_n, c_n), [leaves[name] for name in wanted])

    if part == "nothing":
        with torch.no_grad():
            assert not module(x, (h, c))[0].requires_grad
    elif part == "only the last state":
        pieces = [gradients(list(leaves), lambda y, h_n, c_n, i=i: weighted([(y, h_n, c_n)[i]])) for i in range(3)]
        whole = gradients(list(leaves), lambda *outputs: weighted(outputs))
        for together, *each in zip(whole, *pieces, strict=True):
            torch.testing.assert_close(sum(each), together, rtol=1e-4, atol=1e-4)
    else:
        (alone,) = gradients([part], lambda *outputs: weighted(outputs))
        whole = gradients(list(leaves), lambda *outputs: weighted(outputs))
        assert torch.equal(alone, whole[list(leaves).index(part)])


def test_inputs_of_any_strides():
    module = na.NoisyGRU(6, 18, backend="cpu", batch_first=True)
    x, h = 2 * torch.randn(6, 7, 3).permute(2, 1, 0), torch.randn(18, 3, 1).permute(2, 1, 0)
    twin = na.NoisyGRU(6, 18, backend="cpu", batch_first=True)
    twin.load_state_dict({k: v.t().contiguous().t() if v.dim() == 2 else v for k, v in module.state_dict().items()})
    twin.weight_hh_l0 = nn.Parameter(module.weight_hh_l0.detach().t().contiguous().t())
    found = outputs_and_gradients(module, [x], [h])
    assert_close(outputs_and_gradients(twin, [x.contiguous()], [h.contiguous()]), found)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(1, 1, 1), (3, 5, 7), (17, 64, 33), (65, 129, 95), (200, 1, 3), (1, 700, 1), (2, 3, 650), (0, 4, 3), (4, 0, 3)],
)
def test_products(rows, depth, columns):
    left, right = torch.randn(rows, depth), torch.randn(depth, columns)
    wide = torch.randn(rows + 2, 2 * depth + 1)[1 : rows + 1, 1 : 2 * depth + 1 : 2]  # gaps between rows and elements
    for a in (left, left.t().contiguous().t(), wide):
        for b in (right, right.t().contiguous().t(), torch.cat([right, right], 1)[:, columns:]):
            bound = 1e-6 * (a.double().abs() @ b.double().abs() + 1)
            found = matmul(a, b)
            assert found.shape == (rows, columns)
            assert ((found - a.double() @ b.double()).abs() <= bound).all()


@pytest.mark.parametrize(("scheme", "hard"), [("nah:c=0.5,alpha=1.15,clip=False", True), ("", False)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_operators_keep_torchs_rules(kind, scheme, hard):
    batch, hidden, size, scale = 2, 3, 4, torch.tensor(0.5)
    gates, count = GATES[kind] * hidden, NONLINEARITIES[kind] * hidden

    def leaf(*shape):
        return torch.randn(*shape).requires_grad_()

    c = leaf(batch, hidden) if kind == "lstm" else None
    tail = (torch.tensor(7), kind, scheme, scheme, hard, scale, scale)
    weights = (leaf(gates, size), leaf(gates, hidden), leaf(gates), leaf(gates))
    for reverse, sizes in ((False, [2, 2, 2]), (True, [2, 1])):
        x = leaf(sum(sizes), size)
        arguments = (x, torch.tensor(sizes), leaf(batch, hidden), c, *weights, leaf(count), None, *tail, reverse)
        torch.library.opcheck(registration._layer, arguments)
    recurrent, h = (leaf(batch, gates), leaf(batch, hidden)) if kind == "gru" else (None, None)
    settings = (torch.tensor(7), scale, scale, kind, scheme, scheme, hard)
    torch.library.opcheck(cell_op._cell, (leaf(batch, gates), recurrent, h, c, leaf(count), *settings))
