"""Seeds drawn many at a time."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import noisyact as na
from noisyact import deferred_gradients, noise, seeds_in_blocks

BLOCK = noise._Blocks._SIZE
CPU = torch.device("cpu")


@pytest.fixture
def draws(monkeypatch):
    """The shapes in which torch's generator is asked for seeds."""
    shapes, random_seed = [], noise._random_seed

    def counted(device, generator, shape):
        shapes.append(shape)
        return random_seed(device, generator, shape)

    monkeypatch.setattr(noise, "_random_seed", counted)
    return shapes


@pytest.mark.parametrize("deferred", [True, False])
def test_a_block_serves_so_many_calls_and_every_seed_once(draws, deferred):
    with deferred_gradients(deferred), seeds_in_blocks():
        seeds = [int(noise.draw_seed(CPU)) for _ in range(BLOCK + 1)]
    assert len(set(seeds)) == BLOCK + 1
    assert len(draws) == 2
    assert all(0 <= seed < 2**63 - 1 for seed in seeds)


def test_all_seeds_of_a_loop_come_from_blocks(draws):
    """Including seeds that are drawn while a TorchFunctionMode handles a call."""
    cell, tanh, gate = na.NoisyGRUCell(4, 4), na.NoisyHardTanh("nah"), na.NoisyHardSigmoid("nah")
    keys, weight, h = torch.randn(2, 5, 4), torch.randn(1, 4), torch.zeros(2, 4)
    with deferred_gradients(), seeds_in_blocks():
        for _ in range(3):
            alpha = na.additive_scores(keys, h[:, None], tanh, weight).softmax(dim=2)
            h = gate(cell(torch.bmm(alpha, keys)[:, 0], h))
    assert draws == [(BLOCK, 2)]


def test_another_thread_is_not_in_the_region(draws):
    with seeds_in_blocks(), ThreadPoolExecutor() as pool:
        pool.submit(noise.draw_seed, CPU).result()
    assert draws == [()]


def test_seeds_lie_where_a_kernel_needs_no_other_compilation():
    with seeds_in_blocks():
        places = [noise.draw_seed(CPU).data_ptr() for _ in range(3)]
    assert {place % 16 for place in places} == {places[0] % 16}


def test_the_end_of_the_region_is_the_end_of_its_blocks(draws):
    for _ in range(2):
        with seeds_in_blocks():
            noise.draw_seed(CPU)
    noise.draw_seed(CPU)
    assert len(draws) == 3
    assert draws[-1] == ()


def test_off_is_off(draws):
    with seeds_in_blocks(False):
        noise.draw_seed(CPU)
        noise.draw_seed(CPU)
    assert draws == [(), ()]


def test_a_generator_of_the_callers_is_asked_itself():
    x = torch.full((4,), 3.0)
    found = []
    for on in (True, False):
        with seeds_in_blocks(on):
            found.append(na.functional.noisy_hard_tanh(x, "nah", generator=torch.Generator().manual_seed(4)))
    assert torch.equal(*found)


@pytest.mark.parametrize("preserve", [True, False])
def test_a_checkpointed_region_draws_as_ever(preserve):
    """It uses no blocks, because the recomputation could not find its position in a block."""
    function, x = na.NoisyHardTanh("nah:c=2.0"), (3 * torch.randn(64)).requires_grad_()
    found = []
    for on in (True, False):
        with seeds_in_blocks(on):
            noise.draw_seed(CPU)
            torch.manual_seed(3)
            y = checkpoint(function, x, use_reentrant=False, preserve_rng_state=preserve) if on else function(x)
        found.append([y, *torch.autograd.grad(y.sum(), [x, function.p])])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)
