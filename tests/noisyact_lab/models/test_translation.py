"""The translation model: padding changes nothing, search equals training, initial weights, and noise in all units."""

import pytest
import torch

import noisyact as na
from noisyact_lab.models.beam_search import BEGIN, beam
from noisyact_lab.models.translation import Translation


@pytest.fixture(name="model")
def small_model():
    torch.manual_seed(0)
    return Translation(20, 15, word_size=6, hidden=8)


def batch(seed=1):
    generator = torch.Generator().manual_seed(seed)
    source, target = (torch.randint(2, n, (length, 3), generator=generator) for n, length in ((20, 7), (15, 6)))
    return source, torch.tensor([7, 3, 1]), target, torch.tensor([2, 6, 4])


def test_what_padding_holds_changes_nothing(model):
    source, lengths, target, target_lengths = batch()
    right = model.nll(source, lengths, target, target_lengths)
    gradients = torch.autograd.grad(right.sum(), list(model.parameters()))
    for side, sizes in ((source, lengths), (target, target_lengths)):
        places = torch.arange(len(side))[:, None]
        side[places >= sizes] = 5
    changed = model.nll(source, lengths, target, target_lengths)
    assert torch.equal(changed, right)  # to the bit
    for mine, theirs in zip(torch.autograd.grad(changed.sum(), list(model.parameters())), gradients, strict=True):
        assert torch.equal(mine, theirs)


def test_a_sentence_alone_and_among_others(model):
    source, lengths, target, target_lengths = batch()
    together = model.nll(source, lengths, target, target_lengths)
    for row in range(3):
        s, t = source[: lengths[row], row : row + 1], target[: target_lengths[row], row : row + 1]
        alone = model.nll(s, lengths[row : row + 1], t, target_lengths[row : row + 1])
        torch.testing.assert_close(alone[0], together[row])


def test_the_model_looks_at_words_alone(model):
    source, lengths, target, _ = batch()
    _, weights = model(source, lengths, target)
    torch.testing.assert_close(weights.sum(dim=2), torch.ones(6, 3))
    assert (weights[:, 1, 3:] == 0).all()
    assert (weights[:, 1, :3] > 0).all()
    assert (weights[:, 2, 0] == 1).all()


def test_nll_is_the_sum_over_words(model):
    source, lengths, target, target_lengths = batch()
    logits, _ = model(source, lengths, target)
    log_p = logits.log_softmax(dim=2)
    for row, length in enumerate(target_lengths.tolist()):
        expected = -sum(log_p[place, row, target[place, row]] for place in range(length))
        torch.testing.assert_close(model.nll(source, lengths, target, target_lengths)[row], expected)


def test_a_search_sees_what_training_saw(model):
    """The steps of a search, given the target's words one by one, have the probabilities of a full pass."""
    source, lengths, target, _ = batch()
    logits, _ = model(source, lengths, target)
    state, constants = model.start(source, lengths)
    last = torch.full((3, 1), BEGIN)
    for place in range(6):
        log_p, state = model.step(last, state, constants)
        torch.testing.assert_close(log_p[:, 0], logits[place].log_softmax(dim=1))
        last = target[place][:, None]


def test_hypotheses_of_a_beam_are_rows_of_their_own(model):
    source, lengths, target, _ = batch()
    state, constants = model.start(source, lengths)
    words = target[:2].t().contiguous()
    wide, _ = model.step(words, [state[0].expand(3, 2, 8).contiguous()], constants)
    for place in range(2):
        torch.testing.assert_close(
            wide[:, place : place + 1], model.step(words[:, place : place + 1], state, constants)[0]
        )
    found = beam(model.step, state, constants, width=1, end=0, longest=5)
    assert len(found) == 3


def test_beginning(model):
    noisy = na.noisify(model, "nah", inplace=True, strict=True)
    p = [parameter.detach().clone() for parameter in na.noise_parameters(noisy)]
    noisy.initialise(torch.Generator().manual_seed(0), orthogonal_scale=0.01)
    for before, after in zip(p, na.noise_parameters(noisy), strict=True):
        assert torch.equal(before, after)  # p stays as the paper has it
    for matrix in [*model.asking.weight_hh.chunk(3), *model.encoder.leftward.weight_hh_l0.chunk(3)]:
        torch.testing.assert_close(matrix @ matrix.t(), 1e-4 * torch.eye(8))
    torch.testing.assert_close(model.attention.keys.weight @ model.attention.keys.weight.t(), 1e-4 * torch.eye(16))
    assert 0.005 < model.embedding.weight.std() < 0.02
    assert (model.output.bias == 0).all()
    assert (model.answering.bias_hh == 0).all()


def test_noise_is_everywhere(model):
    noisy = na.noisify(model, "nah:c=0.5", strict=True)
    kinds = sorted(type(module).__name__ for module in noisy.modules() if type(module).__name__.startswith("Noisy"))
    assert kinds == ["NoisyGRU"] * 2 + ["NoisyGRUCell"] * 2 + ["NoisyHardTanh"] * 3
    source, lengths, target, target_lengths = batch()
    with torch.no_grad():
        for parameter in noisy.parameters():
            parameter.mul_(3)
    first, second = (noisy.nll(source, lengths, target, target_lengths) for _ in range(2))
    assert first.isfinite().all()
    assert not torch.equal(first, second)
    noisy.eval()
    first, second = (noisy.nll(source, lengths, target, target_lengths) for _ in range(2))
    assert torch.equal(first, second)
