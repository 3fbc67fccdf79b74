"""Deferred gradients: weights used at every step get autograd's gradient, from one product."""

import contextlib

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import noisyact as na
from noisyact.deferral import deferred_gradients

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CELLS = {
    "noisy LSTM": lambda: na.NoisyLSTMCell(5, 7, noise="nah"),
    "noisy GRU": lambda: na.NoisyGRUCell(5, 7, noise="nan"),
    "noisy RNN without bias": lambda: na.NoisyRNNCell(5, 7, bias=False),
    "torch's LSTM": lambda: nn.LSTMCell(5, 7),
    "torch's GRU": lambda: nn.GRUCell(5, 7),
    "torch's GRU without bias": lambda: nn.GRUCell(5, 7, bias=False),
}


class Products(TorchDispatchMode):
    """Counts the matrices of a shape that products give."""

    def __init__(self, shape, products=(torch.ops.aten.mm.default,)):
        super().__init__()
        self.shape, self.products, self.count = shape, products, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        # A gradient is computed as its transpose where that is what autograd has at hand.
        if func in self.products and result.shape in (self.shape, self.shape[::-1]):
            self.count += 1
        return result


def unrolled(cell, x, deferred, rows=True):
    """The output of a loop over steps and all gradients, from the same noise."""
    torch.manual_seed(3)
    state, out = None, []
    with deferred_gradients() if deferred else contextlib.nullcontext():
        for step in x:
            state = cell(step if rows else step.clone(), state)
            out.append(state[0] if isinstance(state, tuple) else state)
    y = torch.stack(out)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *cell.parameters()])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", CELLS.values(), ids=CELLS.keys())
@pytest.mark.parametrize("rows", [True, False], ids=["rows of one tensor", "each by itself"])
def test_the_gradients_of_a_loop_are_autograds(make, device, rows):
    cell = make().to(device, torch.float64)
    x = torch.randn(6, 3, 5, dtype=torch.float64, device=device, requires_grad=True)
    for ours, theirs in zip(unrolled(cell, x, True, rows), unrolled(cell, x, False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        # On a CPU torch's cells are left as they are.
        *((name, "cpu") for name in CELLS if name.startswith("noisy")),
        *(pytest.param(name, "cuda", marks=pytest.mark.gpu) for name in CELLS),
    ],
)
@pytest.mark.parametrize("weight", ["weight_ih", "weight_hh"])
@pytest.mark.parametrize("rows", [True, False], ids=["rows of one tensor", "each by itself"])
def test_a_weight_has_one_product(name, device, weight, rows):
    cell, x = CELLS[name]().to(device), torch.randn(6, 3, 5, device=device, requires_grad=True)
    counts = []
    for deferred in (True, False):
        with Products(getattr(cell, weight).shape) as products:
            unrolled(cell, x, deferred, rows)
        counts.append(products.count)
    assert counts == [1, 6]


@pytest.mark.parametrize("rows", [True, False], ids=["rows of one tensor", "each by itself"])
def test_rows_of_one_tensor_have_one_product_forward_and_one_for_the_gradient(rows):
    cell, x = na.NoisyGRUCell(5, 7), torch.randn(6, 3, 5, requires_grad=True)
    counts = []
    for shape in ((18, 21) if rows else (3, 21), (18, 5) if rows else (3, 5)):
        with Products(shape, (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)) as products:
            unrolled(cell, x, True, rows)
        counts.append(products.count)
    # (3, 21): the products with the state, of all six steps, have that shape too.
    assert counts == ([1, 1] if rows else [12, 6])


def test_what_is_a_row_and_what_is_not():
    """Slices, other strides, other shapes and modified rows are multiplied separately or again."""
    layer, whole = nn.Linear(4, 4), torch.randn(6, 2, 4)
    with deferred_gradients():
        views = (
            whole[1:3], whole[:, 0], whole.transpose(0, 1)[1], whole[2, 1], whole.view(12, 4)[3], whole[5],
            whole.view(-1)[4:12].view(2, 4), torch.randn(6, 4, 4)[1].T, torch.randn(6, 4).view(-1)[2:6],
        )  # fmt: skip
        for x in views:
            torch.testing.assert_close(layer(x), nn.functional.linear(x.clone(), layer.weight, layer.bias))
        first = layer(whole[0])
        whole.mul_(2)
        torch.testing.assert_close(layer(whole[0]), nn.functional.linear(whole[0].clone(), layer.weight, layer.bias))
        assert not torch.equal(first, layer(whole[0]))
        with torch.no_grad():
            layer.bias.add_(1)
        torch.testing.assert_close(layer(whole[0]), nn.functional.linear(whole[0].clone(), layer.weight, layer.bias))


def looked(queries, places, deferred):
    """A loop of attention over computed annotations, and the gradients of queries and places."""
    annotations, out = places.tanh(), []
    with deferred_gradients() if deferred else contextlib.nullcontext():
        h = queries[0]
        for query in queries:
            weights = torch.bmm(query + h, annotations.transpose(1, 2)).softmax(dim=2)
            h = torch.bmm(weights, annotations)
            out.append(h)
    y = torch.cat(out, dim=1) + annotations.mean()  # it is used in other ways too
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [queries, places])]


@pytest.mark.parametrize("device", DEVICES)
def test_what_attention_looks_at_has_one_batched_product(device):
    queries = torch.randn(6, 3, 2, 5, dtype=torch.float64, device=device, requires_grad=True)
    places = torch.randn(3, 4, 5, dtype=torch.float64, device=device, requires_grad=True)
    counts, found = [], []
    for deferred in (True, False):
        with Products((3, 4, 5), (torch.ops.aten.bmm.default,)) as products:
            found.append(looked(queries, places, deferred))
        counts.append(products.count)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    assert counts == [1, 6]


def test_of_batched_products_a_small_second_factor_is_left_to_autograd():
    x, factor = torch.randn(3, 9, 4), torch.randn(3, 4, 5, requires_grad=True)
    with Products((3, 4, 5), (torch.ops.aten.bmm.default,)) as products:
        with deferred_gradients():
            y = torch.bmm(x, factor) + torch.bmm(x, factor)
        y.sum().backward()
    assert products.count == 2


def looped(layer, x, times=4):
    with deferred_gradients():
        for _ in range(times):
            x = layer(x).tanh()
    return x.sum()


def test_inputs_of_any_number_of_dimensions():
    layer = nn.Linear(4, 4)
    for shape in [(4,), (3, 4), (2, 1, 4)]:
        x = torch.randn(shape)
        ours = torch.autograd.grad(looped(layer, x), list(layer.parameters()))
        y = x
        for _ in range(4):
            y = layer(y).tanh()
        theirs = torch.autograd.grad(y.sum(), list(layer.parameters()))
        torch.testing.assert_close(ours, theirs)


def test_a_pass_takes_what_it_has_left_and_nothing_else():
    """Several backward passes through one graph, one of which does not need the weight's gradient."""
    layer, x = nn.Linear(4, 4), torch.randn(2, 4, requires_grad=True)
    loss = looped(layer, x)
    first = torch.autograd.grad(loss, layer.weight, retain_graph=True)
    torch.autograd.grad(loss, x, retain_graph=True)
    again = torch.autograd.grad(loss, [layer.weight, layer.bias], retain_graph=True)
    assert torch.equal(first[0], again[0])
    loss.backward()
    assert torch.equal(layer.weight.grad, first[0])
    assert torch.equal(layer.bias.grad, again[1])


def test_what_is_frozen_has_no_gradient():
    layer, x = nn.Linear(4, 4), torch.randn(2, 4, requires_grad=True)
    layer.bias.requires_grad_(False)
    looped(layer, x).backward()
    assert layer.bias.grad is None
    layer.weight.requires_grad_(False)
    layer.weight.grad = None
    looped(layer, x).backward()
    assert layer.weight.grad is None


def test_a_weight_smaller_than_its_input_is_left_to_autograd():
    """The weight's products are cheap, and deferring them would copy all inputs."""
    layer = nn.Linear(4, 4)
    with Products(layer.weight.shape) as products:
        looped(layer, torch.randn(5, 4)).backward()
    assert products.count == 4


def test_nothing_is_deferred_where_types_change():
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        loss = looped(layer, x)
    loss.backward()
    assert layer.weight.grad.dtype == torch.float32
    x = torch.randn(2, 4)
    gradient = torch.func.grad(lambda w: torch.func.functional_call(layer, {"weight": w}, x).sum())
    with deferred_gradients():
        ours = gradient(layer.weight)
    assert torch.equal(ours, gradient(layer.weight))


def test_a_second_derivative_is_refused():
    layer = nn.Linear(4, 4)
    x = torch.randn(2, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(looped(layer, x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_off_is_off():
    layer = nn.Linear(4, 4)
    with deferred_gradients(False), Products(layer.weight.shape) as products:
        y = layer(layer(torch.randn(2, 4)))
        y.sum().backward()
    assert products.count == 2


def uses(y, parameter):
    """How many nodes of y's graph send a gradient to the parameter."""
    to, seen, open_nodes = parameter.view_as(parameter).grad_fn.next_functions[0][0], set(), [y.grad_fn]
    count = 0
    while open_nodes:
        node = open_nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        following = [child for child, _ in node.next_functions if child is not None]
        count += sum(child is to for child in following)
        open_nodes += following
    return count


class Looped(nn.Module):
    """A recurrence with noisy functions of all kinds in it."""

    def __init__(self, kind, p):
        super().__init__()
        self.cell = getattr(na, f"Noisy{kind}Cell")(5, 5, noise="nah")
        self.gate = na.NoisyHardSigmoid("nah:c=1.5", p)

    def forward(self, x, deferred):
        torch.manual_seed(5)
        state, out = None, []
        with deferred_gradients() if deferred else contextlib.nullcontext():
            for step in x:
                state = self.cell(step, state)
                h = 4 * (state[0] if isinstance(state, tuple) else state)
                out.append(self.gate(h))
        return torch.stack(out)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("p", [1, 5], ids=["one p", "a p for each feature"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_the_gradient_of_p_is_autograds_and_comes_once(kind, p, device):
    model = Looped(kind, p).to(device)
    x = 3 * torch.randn(6, 3, 5, device=device, requires_grad=True)
    x.retain_grad()
    found = []
    for deferred in (True, False):
        y = model(x, deferred)
        noisy = [model.cell.noise.p, model.gate.p]
        assert [uses(y, parameter) for parameter in noisy] == ([1, 1] if deferred else [6, 6])
        found.append([y.detach(), *torch.autograd.grad(y.square().sum(), [x, *model.parameters()])])
    assert all(gradient.abs().sum() > 0 for gradient in found[0])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_pass_that_does_not_ask_for_p_leaves_nothing_behind():
    model, x = Looped("LSTM", 1), torch.randn(6, 3, 5, requires_grad=True)
    y, parameters = model(x, True).sum(), [model.cell.noise.p, model.gate.p]
    first = torch.autograd.grad(y, parameters, retain_graph=True)
    torch.autograd.grad(y, x, retain_graph=True)
    again = torch.autograd.grad(y, parameters)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_a_frozen_p_has_no_gradient():
    model, x = Looped("GRU", 5), torch.randn(6, 3, 5)
    model.cell.noise.p.requires_grad_(False)
    model(x, True).sum().backward()
    assert model.cell.noise.p.grad is None
    assert model.gate.p.grad.abs().sum() > 0
