"""The Neural Turing Machine: addressing by hand, the complete machine against a plain version, finite numbers."""

import math

import pytest
import torch

import noisyact as na
from noisyact_lab.models import ntm


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


# Addressing, by hand


def test_content_by_hand():
    """Cosines 1, 0, -1, 0.6; strength ln 2: weights 2, 1, 1/2 and 2^0.6, a row of zeros 1."""
    memory = tensor([[2.0, 0.0], [0.0, 5.0], [-1.0, 0.0], [3.0, 4.0], [0.0, 0.0]])
    weights = tensor(2.0, 1.0, 0.5, 2**0.6, 1.0)
    found = ntm.content(tensor([[10.0, 0.0]]), tensor([[math.log(2)]]), memory)
    torch.testing.assert_close(found[0, 0], weights / weights.sum(), rtol=1e-6, atol=1e-6)


def test_every_head_has_a_key_of_its_own():
    memory = tensor([[1.0, 0.0], [0.0, 1.0]])
    found = ntm.content(tensor([[1.0, 0.0], [0.0, 1.0]]), tensor([[9.0], [0.0]]), memory)
    torch.testing.assert_close(found[0, 0, 0].item(), 1 / (1 + math.exp(-9)), rtol=1e-5, atol=0)
    assert found[0, 1].tolist() == [0.5, 0.5]


def test_interpolation_shift_and_sharpening_by_hand():
    before, found = tensor([[1.0, 0.0, 0.0, 0.0]]), tensor([[0.0, 0.0, 0.4, 0.6]])
    mixed = ntm.interpolate(tensor([[0.5]]), found, before)
    torch.testing.assert_close(mixed, tensor([[0.5, 0.0, 0.2, 0.3]]))
    # Half goes back a row and row 0 to the end, a quarter stays, a quarter goes on and row 3 to the start:
    # row 0 has 1/2 * 0 + 1/4 * 0.5 + 1/4 * 0.3, row 3 has 1/2 * 0.5 + 1/4 * 0.3 + 1/4 * 0.2.
    shifted = ntm.shift(mixed, tensor([[0.5, 0.25, 0.25]]))
    torch.testing.assert_close(shifted, tensor([[0.2, 0.225, 0.2, 0.375]]))
    sharp = ntm.sharpen(tensor([[0.5, 0.25, 0.25, 0.0]]), tensor([[2.0]]))
    torch.testing.assert_close(sharp, tensor([[4 / 6, 1 / 6, 1 / 6, 0.0]]))
    torch.testing.assert_close(ntm.sharpen(shifted, tensor([[1.0]])), shifted)


def test_all_heads_erase_before_any_adds():
    """In column 0 of row 0, 8 (1 - 1/2) for the first head and (1 - 1/4) for the second, then 1 is added."""
    memory = torch.full((1, 2, 2), 8.0, dtype=torch.float64)
    weighting = tensor([[0.5, 0.0], [0.5, 1.0]])
    erase, add = tensor([[1.0, 0.0], [0.5, 0.0]]), tensor([[2.0, 0.0], [0.0, 6.0]])
    after = ntm.write(memory, weighting, erase, add)
    torch.testing.assert_close(after, tensor([[8 * 0.5 * 0.75 + 1.0, 8 + 3.0], [8 * 0.5, 8 + 6.0]]))


def by_the_book(machine, x, answer):
    """The machine for one sequence, in loops, as Graves et al. write it."""
    rows, width, heads = machine.rows, machine.width, machine.heads
    memory = torch.full((rows, width), ntm.FIRST_MEMORY, dtype=torch.float64)
    weightings = [[float(i == 0) for i in range(rows)] for _ in range(2 * heads)]
    reads = torch.zeros(heads * width, dtype=torch.float64)
    outputs = []
    for now in x:
        h = torch.tanh(machine.controller.linear(torch.cat([now, reads])))
        told = machine.to_heads(h)
        vectors, scalars = told[: 4 * heads * width].reshape(4 * heads, width), told[4 * heads * width :]
        scalars = scalars.reshape(2 * heads, 6)
        for k in range(2 * heads):
            key = torch.tanh(vectors[2 * heads + k])
            strength, power = (math.log1p(math.exp(scalars[k, j])) for j in (0, 1))
            gate = 1 / (1 + math.exp(-scalars[k, 2]))
            moves = [math.exp(s) for s in scalars[k, 3:]]
            cosines = [float(key @ row / (key.norm() ** 2 + 1e-6) ** 0.5 / (row.norm() ** 2 + 1e-6) ** 0.5)
                       for row in memory]  # fmt: skip
            content = [math.exp(strength * cosine) for cosine in cosines]
            mixed = [gate * content[i] / sum(content) + (1 - gate) * weightings[k][i] for i in range(rows)]
            moved = [0.0] * rows
            for i in range(rows):
                for by, share in zip((-1, 0, 1), moves, strict=True):
                    moved[(i + by) % rows] += mixed[i] * share / sum(moves)
            sharp = [w ** (1 + power) for w in moved]
            weightings[k] = [w / sum(sharp) for w in sharp]
        reads = torch.cat([sum(weightings[k][i] * memory[i] for i in range(rows)) for k in range(heads)])
        erased = memory.clone()
        for i in range(rows):
            for k in range(heads):
                erased[i] *= 1 - weightings[heads + k][i] * torch.sigmoid(vectors[k])
            for k in range(heads):
                erased[i] += weightings[heads + k][i] * torch.tanh(vectors[heads + k])
        memory = erased
        outputs.append(machine.output(torch.cat([h, reads])))
    return torch.stack(outputs[-answer:])


def test_the_machine_is_that_of_the_book():
    machine = ntm.NTM(4, 3, hidden=7, heads=2, rows=5, width=4, hard=False).double()
    with torch.no_grad():
        for weights in machine.parameters():
            weights.normal_(std=0.8)
    x = torch.randn(9, 3, 4, dtype=torch.float64)
    with torch.no_grad():
        found = machine(x, answer=2)
        for one, right in zip(x.unbind(1), found.unbind(1), strict=True):
            torch.testing.assert_close(by_the_book(machine, one, 2), right, rtol=1e-6, atol=1e-6)


def answers_and_gradients(machine, x):
    torch.manual_seed(5)
    logits = machine(x, answer=2)
    return [
        logits,
        *torch.autograd.grad((logits * torch.linspace(-1, 1, 3, device=x.device)).sum(), list(machine.parameters())),
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(2, 5, 4), (4, 128, 20), (1, 8, 8), (3, 33, 7), (3, 32, 7), (2, 64, 16)], ids=str)
def test_the_fused_machine_is_the_same(sizes):
    """Heads, rows and width; tests of the kernels without a GPU are in interpreted_ntm.py."""
    heads, rows, width = sizes
    sizes = {"hidden": 7, "heads": heads, "rows": rows, "width": width}
    machine = ntm.NTM(4, 3, noise=na.NAN(c=3.0), **sizes).cuda()
    for weights in machine.parameters():
        torch.nn.init.normal_(weights, std=0.5)
    x = torch.randn(6, 5, 4, device="cuda")
    fused = answers_and_gradients(machine, x)
    assert all(map(torch.equal, fused, answers_and_gradients(machine, x)))
    machine.fused = False
    for ours, right in zip(fused, answers_and_gradients(machine, x), strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-3, atol=1e-3 * max(1.0, right.abs().max().item()))


# Numbers that stay finite


def finite_gradients(function, *inputs):
    leaves = [value.float().requires_grad_() for value in inputs]
    result = function(*leaves)
    assert result.isfinite().all()
    for gradient in torch.autograd.grad((result * torch.rand_like(result)).sum(), leaves):
        assert gradient.isfinite().all()


def test_stages_are_finite_at_the_ends():
    zeros, one_hot = torch.zeros(1, 1, 4), torch.eye(4)[None, :1]
    memory = torch.stack([torch.zeros(4), torch.ones(4), torch.full((4,), 1e15), torch.full((4,), 1e-30)])[None]
    for key in (zeros, torch.ones(1, 1, 4), torch.full((1, 1, 4), -1e15)):
        for strength in (0.0, ntm.LIMIT):
            finite_gradients(ntm.content, key, torch.full((1, 1, 1), strength), memory)
    for power in (1.0, 1 + ntm.LIMIT):
        for weighting in (one_hot, torch.full((1, 1, 4), 0.25), zeros):
            finite_gradients(ntm.sharpen, weighting, torch.full((1, 1, 1), power))
