"""The model of captions by the book, its attention and penalty by hand, and what a search finds."""

import math

import pytest
import torch

import noisyact as na
from noisyact_lab.experiments.caption.photos import END
from noisyact_lab.models.beam_search import BEGIN, beam
from noisyact_lab.models.caption import CaptionModel, doubly_stochastic, mask_of


def model_of(**changed):
    torch.manual_seed(0)
    model = CaptionModel(7, **{"features": 3, "embedding": 4, "hidden": 5, "attention": 6, **changed}).double()
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(std=0.7)
        model.embedding.weight[7].zero_()
    return model.eval()


def by_the_book(model, annotations, caption):
    """One caption, one place and one step at a time, as Xu et al. write it; logits and alphas."""
    sigmoid = lambda x: 1 / (1 + torch.exp(-x))  # noqa: E731
    summary = torch.relu(model.summary[0](sum(annotations) / len(annotations)))
    h, c = torch.tanh(model.first_h[0](summary)), torch.tanh(model.first_c[0](summary))
    word = torch.zeros(4, dtype=torch.float64)
    logits, alphas = [], []
    for token in caption:
        scores = [float(model.score[1](torch.tanh(model.key(place) + model.query.weight @ h))) for place in annotations]
        weights = [math.exp(score) for score in scores]
        alpha = [weight / sum(weights) for weight in weights]
        beta = sigmoid(model.beta[0](h))
        z = beta * sum(a * place for a, place in zip(alpha, annotations, strict=True))
        cell = model.cell
        gates = cell.weight_ih @ torch.cat([word, z]) + cell.bias_ih + cell.weight_hh @ h + cell.bias_hh
        i, f, g, o = gates.chunk(4)
        c = sigmoid(f) * c + sigmoid(i) * torch.tanh(g)
        h = sigmoid(o) * torch.tanh(c)
        hidden = torch.tanh(word + model.from_h[1](h) + model.from_z.weight @ z)
        logits.append(model.output[2](hidden))
        alphas.append(torch.tensor(alpha, dtype=torch.float64))
        word = model.embedding.weight[token]
    return torch.stack(logits), torch.stack(alphas)


def test_the_model_is_that_of_the_book():
    model = model_of()
    annotations, captions = torch.randn(2, 9, 3, dtype=torch.float64), torch.tensor([[3, 6, 1, 0], [2, 0, 5, 5]])
    with torch.no_grad():
        logits, alpha = model(annotations, captions)
        for row in range(2):
            right, where = by_the_book(model, annotations[row], captions[row])
            torch.testing.assert_close(logits[row], right)
            torch.testing.assert_close(alpha[row], where)


def test_steps_of_a_search_are_those_of_training():
    """For every hypothesis of a beam: the log-probabilities are those of its words read at once."""
    model = model_of()
    annotations = torch.randn(2, 9, 3, dtype=torch.float64)
    words = torch.tensor([[[3, 6, 1], [2, 2, 5]], [[0, 1, 4], [5, 5, 6]]])  # batch, width, steps
    with torch.no_grad():
        state, constants = model.begin(annotations)
        state = tuple(part.expand(2, 2, -1) for part in state)
        before = torch.full((2, 2), BEGIN)
        for step in range(3):
            log_p, state = model.step(before, state, constants)
            for width in range(2):
                logits, _ = model(annotations, words[:, width])
                torch.testing.assert_close(log_p[:, width], logits[:, step].log_softmax(dim=1))
            before = words[:, :, step]


def test_a_beam_finds_what_is_no_less_likely_than_greed():
    model = model_of()
    with torch.no_grad():
        state, constants = model.begin(torch.randn(4, 9, 3, dtype=torch.float64))
        wide = beam(model.step, state, constants, width=30, end=END, longest=4, length_power=0)
        narrow = beam(model.step, state, constants, width=1, end=END, longest=4)
    for many, (one,) in zip(wide, narrow, strict=True):
        assert many[0].log_probability >= one.log_probability - 1e-9


def test_what_follows_a_caption_has_no_part_in_it():
    model = model_of()
    annotations = torch.randn(1, 9, 3, dtype=torch.float64)
    first, second = (model(annotations, torch.tensor([[3, 0, rest, rest]]))[0][:, :2] for rest in (0, 6))
    assert torch.equal(first, second)


def test_the_penalty_by_hand():
    """Places looked at 1.5 and 0.5 times in the first caption, whose third step does not count, 0.2 and 0.8 in the
    second: (0.25 + 0.25 + 0.64 + 0.04) / 2."""
    alpha = torch.tensor([[[1.0, 0.0], [0.5, 0.5], [0.9, 0.1]], [[0.2, 0.8], [0.6, 0.4], [0.6, 0.4]]])
    mask = mask_of(torch.tensor([2, 1]), 3)
    assert mask.tolist() == [[True, True, False], [True, False, False]]
    assert doubly_stochastic(alpha, mask).item() == pytest.approx((0.25 + 0.25 + 0.64 + 0.04) / 2)


def test_initial_weights():
    torch.manual_seed(1)
    model = CaptionModel(50, features=12, embedding=20, hidden=16, attention=12, orthogonal=0.01)
    for square in (model.key.weight, model.summary[0].weight, *model.cell.weight_hh.chunk(4)):
        torch.testing.assert_close(square @ square.T, 1e-4 * torch.eye(len(square)), rtol=0, atol=1e-9)
    for other in (model.output[2].weight, model.cell.weight_ih, model.query.weight):
        assert other.std().item() == pytest.approx(0.01, rel=0.15)
    assert not any(p.any() for name, p in model.named_parameters() if "bias" in name)
    assert not model.embedding.weight[50].any()


def test_every_function_becomes_noisy_and_none_by_itself():
    plain = CaptionModel(7, features=3, embedding=4, hidden=5, attention=6)
    assert not any(isinstance(module, na.NoisyModule) for module in plain.modules())
    noisy = na.noisify(plain, "nah", strict=True)
    found = {name for name, module in noisy.named_modules() if isinstance(module, na.NoisyModule)}
    assert found == {"first_h.1", "first_c.1", "score.0", "beta.1", "cell.noise", "output.0"}
    noisy.eval()
    annotations, captions = torch.rand(2, 9, 3), torch.tensor([[3, 6, 0], [2, 0, 0]])
    assert torch.equal(noisy(annotations, captions)[0], noisy(annotations, captions)[0])
    noisy.train()
    assert not torch.equal(noisy(annotations, captions)[0], noisy(annotations, captions)[0])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden": 0}, "hidden=0: must be at least 1"),
        ({"dropout": 1.0}, "dropout=1.0: must be at least 0 and below 1"),
    ],
)
def test_bad_sizes(changed, message):
    with pytest.raises(ValueError, match=message):
        CaptionModel(7, **changed)
    with pytest.raises(ValueError, match=r"annotations must be \[batch, places, 3\], not \[2, 9, 4\]"):
        CaptionModel(7, features=3).begin(torch.rand(2, 9, 4))
