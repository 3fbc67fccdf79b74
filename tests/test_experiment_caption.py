"""Captions: the model by the book, its attention and penalty by hand, learning to name what is shown, resuming."""

import dataclasses
import json
import math

import pytest
import torch

import noisyact as na
from flickr_cases import NOUNS, PARTS, captions_of, image_of, small_flickr  # noqa: F401
from noisyact.data import flickr8k
from noisyact.data.text import EOS, UNKNOWN, Vocabulary
from noisyact.experiments import lanes, registry
from noisyact.experiments.caption import CAPTION, CAPTIONS, Captions
from noisyact.experiments.caption_data import AT_ONCE, END, Numbered
from noisyact.experiments.grid import Job
from noisyact.experiments.run import folder_of, run
from noisyact.models.caption import CaptionModel, doubly_stochastic, mask_of
from noisyact.models.search import BEGIN, beam, greedy

ARMS = [arm.name for arm in CAPTION.arms]
CPU = torch.device("cpu")
TINY = {
    "verified": False, "images": None, "held_out": None, "vocabulary": None, "side": 14, "batch": 16, "epochs": 2,
    "embedding": 8, "hidden": 8, "attention": 8, "longest": 6,
}  # fmt: skip


def model_of(**changed):
    torch.manual_seed(0)
    model = CaptionModel(7, **{"features": 3, "embedding": 4, "hidden": 5, "attention": 6, **changed}).double()
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(std=0.7)
        model.embedding.weight[7].zero_()
    return model.eval()


# The model


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
        narrow = greedy(model.step, state, constants, end=END, longest=4)
    for many, one in zip(wide, narrow, strict=True):
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


# The experiment


def start(arm, **changes):
    torch.manual_seed(0)
    return Captions(CAPTION.effective(arm, "smoke", {**TINY, **changes}), 0, CPU)


def test_it_is_registered():
    assert registry.load("caption") is CAPTION
    assert {"reference", "hard", "leak", "nah", "nah-no-dropout", "nani", "nanil"} <= set(ARMS)


def test_all_arms_begin_with_the_same_weights(flickr):
    first, *others = (start(arm).model for arm in ARMS)
    weights = dict(first.named_parameters())
    for model in others:
        mine = dict(model.named_parameters())
        assert weights.keys() <= mine.keys()
        assert all(torch.equal(mine[name], weight) for name, weight in weights.items())


def test_arms_are_what_they_say(flickr):
    """At zero noise the hard arm is h: the same in training and evaluation; the leak is no longer flat; NAH differs."""
    x = torch.tensor([-3.0, -0.5, 0.5, 3.0])
    functions = {arm: start(arm, dropout=0.0).model.output[0] for arm in ("reference", "hard", "leak", "nah", "nani")}
    torch.testing.assert_close(functions["reference"](x), x.tanh())
    torch.testing.assert_close(functions["hard"](x), x.clamp(-1, 1))
    leak = x.clamp(-1, 1) * 1.15 - 0.15 * x
    torch.testing.assert_close(functions["leak"](x), leak)
    assert functions["nah"].noise == na.NAH(0.5, 1.15, True)
    assert functions["nani"].noise == na.NANI(0.05)
    assert start("nanil").model.beta[1].noise == na.NANIL(0.5)
    assert start("nah-no-dropout").model.output[1].p == start("reference-no-dropout").model.output[1].p == 0.0
    assert start("nah").model.output[1].p == 0.5


def test_an_epoch_shows_captions_once_in_batches_of_nearly_one_length(flickr):
    task = start("reference", batch=20)
    assert task.evaluate_every == 5 * PARTS["train"] // 20
    seen = [task._batch(index) for index in range(2 * task.evaluate_every)]
    lengths = task.train.lengths
    for rows, steps in seen:
        assert len(rows) == 20
        assert steps % 4 == 0
        assert lengths[rows].max() <= steps < lengths[rows].max() + 4
    epochs = [torch.cat([rows for rows, _ in part]) for part in (seen[: len(seen) // 2], seen[len(seen) // 2 :])]
    for epoch in epochs:
        assert len(epoch.unique()) == len(epoch) == task.evaluate_every * 20
    assert not torch.equal(*epochs)
    again = start("reference", batch=20)
    assert torch.equal(again._batch(7)[0], seen[7][0])


def test_the_loss_is_the_nll_of_words_and_end(flickr):
    """A model that gives each of V words the same probability: (words + 1) log V, and padding is free."""
    task = start("reference")
    with torch.no_grad():
        for weights in task.model.parameters():
            weights.zero_()
    valid = task.material.valid
    mean = sum(len(c) + 1 for part in valid.captions for c in part) / (5 * PARTS["dev"])
    expected = mean * math.log(len(task.vocabulary))
    assert task._measured(task.model, valid) == pytest.approx(expected, rel=1e-5)


def test_captions_as_numbers():
    """The end follows, up to a multiple of 4; "bird" is not in the vocabulary."""
    captions = ((("a", "dog"), ("a", "bird", "runs", "a")), (("dog",),))
    part = flickr8k.Part(("x", "y"), captions, flickr8k.Annotations(torch.zeros(2, 196, 1), torch.ones(1)))
    found = Numbered.of(part, Vocabulary([EOS, UNKNOWN, "a", "dog", "runs"]), CPU)
    assert found.words.tolist() == [[2, 3, 0, 0, 0, 0, 0, 0], [2, 1, 4, 2, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0, 0, 0]]
    assert found.lengths.tolist() == [3, 5, 2]
    assert found.images.tolist() == [0, 0, 1]


def test_pieces_of_an_evaluation_have_each_caption_once_and_whole():
    lengths = torch.randint(1, 30, (2 * AT_ONCE + 7,), generator=torch.Generator().manual_seed(0))
    pieces = Numbered(torch.zeros(len(lengths), 32), lengths, lengths).pieces
    assert [len(rows) for rows, _ in pieces] == [AT_ONCE, AT_ONCE, 7]
    assert torch.cat([rows for rows, _ in pieces]).sort().values.tolist() == list(range(len(lengths)))
    assert [steps for _, steps in pieces] == [int(lengths[rows].max()) for rows, _ in pieces]


def test_runs_of_one_process_share_what_they_read(flickr):
    first, second = start("nah"), start("hard", hidden=9)
    assert first.material is second.material
    assert start("nah", images=20).material.train.annotations.q.shape[0] == 20
    again = start("nah")
    assert torch.equal(again.material.train.numbered.words, first.material.train.numbered.words)


def test_it_learns_to_name_what_it_is_shown(flickr, tmp_path):
    changes = {
        **TINY,
        "embedding": 24,
        "hidden": 32,
        "attention": 16,
        "epochs": 30,
        "learning_rate": 0.01,
        "dropout": 0,
    }
    record = run(CAPTION, "nah", "smoke", 0, tmp_path, device="cpu", changes=changes)
    assert record["status"] == "finished"
    folder = folder_of(tmp_path, "caption", "smoke", "nah", 0)
    (table,) = json.loads((folder / "samples.json").read_text())
    assert table["title"] == CAPTIONS
    right = [image_of("test", number) for number in range(PARTS["test"])]
    assert [row[0] for row in table["rows"]] == [name for name, _, _ in right]
    for (_, caption, _), (_, shown, _) in zip(table["rows"], right, strict=True):
        assert NOUNS[shown] in caption.split()
    # Which of five captions it is cannot be known: the entropy of the choice is what is left.
    assert math.log(5) - 0.2 < record["result"]["test_nll"] < math.log(5) + 0.6
    assert {path.name for path in (folder / "pictures").iterdir()} == {"attention.svg", "attention.png"}
    assert captions_of(0)[0].startswith("A dog")


def test_a_run_ends_when_validation_does_not_improve(flickr):
    task = start("reference", epochs=9, patience=2)
    whole, epoch = task.updates, task.evaluate_every
    task.update(0)
    falling = iter([5.0, 4.0, 4.5, 4.1, 3.0])
    task._measured = lambda *_: next(falling)
    for count in (1, 2, 3):
        task._since = 1
        task.evaluate(count * epoch)
        assert task.updates == whole
    kept = {name: value.clone() for name, value in task.modules["best"].state_dict().items()}
    task._since = 1
    task.evaluate(4 * epoch)
    assert task.updates == 4 * epoch
    assert task.memory["best"] == 2 * epoch
    assert all(torch.equal(value, kept[name]) for name, value in task.modules["best"].state_dict().items())


class Stopped(Exception):
    pass


def test_a_run_that_is_stopped_ends_as_one_that_is_not(flickr, tmp_path):
    changes = {**TINY, "epochs": 3}

    def stop(done, total, line):
        if done and done < total:
            raise Stopped

    run(CAPTION, "nah", "smoke", 1, tmp_path / "whole", device="cpu", changes=changes)
    for _ in range(2):
        with pytest.raises(Stopped):
            run(CAPTION, "nah", "smoke", 1, tmp_path / "parts", device="cpu", changes=changes, progress=stop)
    run(CAPTION, "nah", "smoke", 1, tmp_path / "parts", device="cpu", changes=changes)
    whole, parts = (folder_of(tmp_path / name, "caption", "smoke", "nah", 1) for name in ("whole", "parts"))
    names = ["metrics.jsonl", "samples.json", *(f"checkpoints/{path.name}/state.json" for path in
                                               sorted((whole / "checkpoints").iterdir()))]  # fmt: skip
    for name in names:
        assert (whole / name).read_bytes() == (parts / name).read_bytes(), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_runs_side_by_side_on_a_gpu_end_as_alone(flickr, tmp_path):
    """They share what they read, each in a stream of its own. Sums on a GPU are not always in the same order."""
    jobs = [Job("caption", arm, "smoke", 1, tmp_path / "lanes", "cuda", TINY) for arm in ("reference", "hard", "nah")]
    for job, outcome in zip(jobs, lanes.run_all(jobs, 3), strict=True):
        assert outcome.record is not None, outcome.error
        alone = dataclasses.replace(job, out=tmp_path / "alone").do()
        assert outcome.record["result"] == pytest.approx(alone["result"], rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "caption: batch=0: must be at least 1"),
        ({"batch": 1000}, "caption: batch=1000: must be at most the 240 training captions"),
        ({"penalty": -1.0}, "caption: penalty=-1.0: must be at least 0"),
        ({"scheme": "loud"}, "scheme='loud': allowed are"),
        ({"side": 3}, "side=3: must divide 14"),
        ({"images": 49}, "images=49: must be 1 to 48"),
        ({"vocabulary": 2}, "vocabulary=2: must be 3 to"),
        ({"beam": 0}, "caption: beam=0: must be at least 1"),
    ],
)
def test_bad_settings_are_named(flickr, changes, message):
    with pytest.raises(ValueError, match=message):
        start("hard", **changes)
