"""The kernels of the Neural Turing Machine's heads by Triton's interpreter; test_interpreted_kernels.py starts them."""

import pytest
import torch

from noisyact_lab.models import ntm, ntm_kernels


def case(batch, heads, rows, width):
    told = 3 * torch.randn(batch, heads * (4 * width + 12))
    told[0, :: 3 * width] = 25.0  # beyond the limit on either side, where no gradient passes
    told[0, 1 :: 3 * width] = -25.0
    memory = torch.randn(batch, rows, width)
    before = torch.softmax(torch.randn(batch, 2 * heads, rows), dim=2)
    return [told, memory, before]


def results_and_gradients(turn, inputs, given):
    inputs = [tensor.clone().requires_grad_() for tensor in inputs]
    results = turn(*inputs)
    return *results, *torch.autograd.grad(results, inputs, given)


def compare(inputs):
    with torch.no_grad():
        given = [torch.randn_like(result) for result in ntm.turn(*inputs)]
    found = results_and_gradients(ntm_kernels.turn, inputs, given)
    for ours, right in zip(found, results_and_gradients(ntm.turn, inputs, given), strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=2e-6 * max(1.0, right.abs().max().item()))


@pytest.mark.parametrize("sizes", [(3, 4, 16, 20), (2, 1, 8, 8), (2, 3, 7, 5), (1, 2, 32, 16)], ids=str)
def test_kernels_equal_the_reference(sizes):
    torch.manual_seed(0)
    compare(case(*sizes))


def test_heads_that_erase_all():
    """A row becomes zero. The gradient needs the product over the other heads, which no division can give."""
    told, memory, before = case(2, 2, 4, 3)
    told[:, :6] = 20.0  # erase
    scalars = told[:, -24:].unflatten(1, (4, 6))
    scalars[:, :, 1:] = torch.tensor([20.0, -20.0, -20.0, 20.0, -20.0])  # as sharp as can be, where they were
    before = torch.eye(4)[[0, 1, 0, 0]].expand(2, 4, 4).contiguous()
    compare([told, memory, before])


def test_a_memory_of_other_strides():
    told, memory, before = case(2, 2, 8, 4)
    compare([told, memory.transpose(1, 2).contiguous().transpose(1, 2), before])


def test_tensors_that_do_not_fit_are_refused():
    told, memory, before = case(2, 2, 8, 4)
    wrong = [
        (told[:, 1:], memory, before), (told, memory[:, :7], before), (told, memory, before[:, :3]),
        (told[:1], memory, before), (told.double(), memory, before), (told, memory.to("meta"), before),
        (told, memory[:0], before[:0]), (told, memory, before[0]),
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(ValueError, match=r"must be of shape|are wanted"):
            ntm_kernels.turn(*given)
