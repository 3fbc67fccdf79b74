"""Batches: by length, each sentence once, and by epoch."""

import itertools

import pytest
import torch

from noisyact_lab.tasks.batches import EpochBatches
from noisyact_lab.tasks.length_batches import random_batches


@pytest.mark.parametrize("drop_longest", [False, True])
def test_random_batches_have_every_sentence_once(drop_longest):
    lengths = torch.randint(1, 50, (400,), generator=torch.Generator().manual_seed(5))
    rows, other = (
        random_batches(lengths, 32, torch.Generator().manual_seed(seed), drop_longest=drop_longest) for seed in (0, 1)
    )
    assert rows.shape == (12, 32)  # of 400 sentences 16 are left over
    assert len(set(rows.flatten().tolist())) == 12 * 32
    assert not torch.equal(rows, other)
    left = lengths[[row not in set(rows.flatten().tolist()) for row in range(400)]]
    assert (left.min() >= lengths[rows].max()) == drop_longest
    ends = sorted((int(lengths[batch].min()), int(lengths[batch].max())) for batch in rows)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ends))


def test_an_epoch_is_drawn_once_and_again_the_same():
    drawn = []

    def draw(generator):
        drawn.append(generator.initial_seed())
        return torch.randperm(6, generator=generator).view(3, 2)

    batches = EpochBatches(draw, 3, seed=70)
    seen = [batches.at(index) for index in range(6)]
    assert drawn == [70, 71]
    assert torch.cat(seen[:3]).sort().values.tolist() == list(range(6))
    assert torch.equal(EpochBatches(draw, 3, seed=70).at(4), seen[4])
