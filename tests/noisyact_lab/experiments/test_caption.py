"""Captions: the batches, learning to name what is shown, stopping in time, resuming."""

import dataclasses
import json
import math

import pytest
import torch
from flickr_cases import NOUNS, PARTS, captions_of, image_of, small_flickr  # noqa: F401
from run_cases import stopped_ends_as_whole
from tiny import CAPTION as TINY

import noisyact as na
from noisyact_lab.data import flickr8k
from noisyact_lab.data.text import EOS, UNKNOWN, Vocabulary
from noisyact_lab.engine.experiment import load_experiment
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.parallel import streams
from noisyact_lab.engine.run import run
from noisyact_lab.experiments.caption.caption import CAPTION, CAPTION_BIAS, CAPTIONS, Captions
from noisyact_lab.experiments.caption.photos import AT_ONCE, Numbered

ARMS = [arm.name for arm in CAPTION.arms]
CPU = torch.device("cpu")


def start(arm, **changes):
    torch.manual_seed(0)
    return Captions(CAPTION.effective(arm, "smoke", {**TINY, **changes}), 0, CPU)


def test_it_is_registered():
    assert load_experiment("caption") is CAPTION
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


@pytest.mark.parametrize(("arm", "noise"), [("hard", na.NANI(0.0)), ("nani", na.NANI(0.05)), ("nanil", na.NANIL(0.5))])
def test_arms_with_noise_in_the_lstm_alone(arm, noise, flickr):
    model = start(f"{arm}-lstm").model
    assert (model.cell.noise.state, model.cell.noise.gate) == (noise, noise)
    assert {type(part) for part in (model.output[0], model.score[0], model.first_h[1])} == {torch.nn.Tanh}
    assert type(model.beta[1]) is torch.nn.Sigmoid


def test_nowhere_else(flickr):
    with pytest.raises(ValueError, match="where='readout': must be all or lstm"):
        start("hard", where="readout")


def test_an_epoch_shows_captions_once_in_batches_of_nearly_one_length(flickr):
    task = start("reference", batch=20)
    assert task.evaluate_every == 5 * PARTS["train"] // 20
    seen = [task.batches.at(index) for index in range(2 * task.evaluate_every)]
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
    assert torch.equal(again.batches.at(7)[0], seen[7][0])


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


def test_it_can_begin_with_the_frequencies_of_words(flickr):
    """At the start each word has about its share of the training captions, whatever is shown, in every arm."""
    assert load_experiment("caption-bias") is CAPTION_BIAS
    for arm in ("reference", "nah-mean"):
        task = Captions(CAPTION_BIAS.effective(arm, "smoke", TINY), 0, CPU)
        written = [word for some in task.material.train.captions for part in some for word in [*part, EOS]]
        share = {word: written.count(word) / len(written) for word in set(written)}
        images, words = task.probe()
        logits, _ = task.model.eval()(images, words)
        found = logits.softmax(dim=-1).flatten(0, 1).mean(dim=0)
        for word, expected in share.items():
            assert found[task.vocabulary.number[word]].item() == pytest.approx(expected, rel=0.1, abs=0.01)
    patience = {arm.name: CAPTION_BIAS.effective(arm.name, "paper").patience for arm in CAPTION_BIAS.arms}
    assert patience == {"reference": 10, "hard": 25, "leak": 10, "nah": 10, "nah-mean": 10}


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
    record = run(Job("caption", "nah", "smoke", 0, tmp_path, device="cpu", changes=changes))
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
        task.evaluate(count * epoch)
        assert task.updates == whole
    kept = {name: value.clone() for name, value in task.modules["best"].state_dict().items()}
    task.evaluate(4 * epoch)
    assert task.updates == 4 * epoch
    assert task.memory["best"] == 2 * epoch
    assert all(torch.equal(value, kept[name]) for name, value in task.modules["best"].state_dict().items())


def test_stopped_and_resumed_ends_the_same(flickr, tmp_path):
    stopped_ends_as_whole(CAPTION, "nah", tmp_path, {**TINY, "epochs": 3})


@pytest.mark.gpu
def test_runs_side_by_side_on_a_gpu_end_as_alone(flickr, tmp_path):
    """They share what they read, each in a stream of its own. Sums on a GPU are not always in the same order."""
    jobs = [Job("caption", arm, "smoke", 1, tmp_path / "streams", "cuda", TINY) for arm in ("reference", "hard", "nah")]
    for job, outcome in zip(jobs, streams.run_all(jobs, 3), strict=True):
        assert outcome.record is not None, outcome.error
        alone = run(dataclasses.replace(job, out=tmp_path / "alone"))
        assert outcome.record["result"] == pytest.approx(alone["result"], rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "caption: batch=0: must be at least 1"),
        ({"batch": 1000}, "caption: batch=1000: must be at most the 240 training captions"),
        ({"penalty": -1.0}, "caption: penalty=-1.0: must be at least 0"),
        ({"scheme": "loud"}, "scheme 'loud' is unknown; allowed are"),
        ({"side": 3}, "side=3: must divide 14"),
        ({"images": 49}, "images=49: must be 1 to 48"),
        ({"vocabulary": 2}, "vocabulary=2: must be 3 to"),
        ({"beam": 0}, "caption: beam=0: must be at least 1"),
    ],
)
def test_bad_settings_are_named(flickr, changes, message):
    with pytest.raises(ValueError, match=message):
        start("hard", **changes)
