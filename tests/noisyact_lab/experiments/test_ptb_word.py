"""The word-level experiment: on a small text made here, and on the real one where it is there."""

import itertools
import json
import math

import pytest
import torch
import torch.nn.functional as F
from run_cases import stopped_ends_as_whole
from text_cases import PARTS, small_treebank  # noqa: F401
from tiny import PTB_WORD as TINY
from torch import nn

import noisyact as na
from noisyact_lab.data.text import WORDS, penn_treebank
from noisyact_lab.engine.experiment import load_experiment
from noisyact_lab.engine.folder.files import read_lines
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.run import run
from noisyact_lab.experiments.ptb_word import PTB_WORD, PTB_WORD_MEDIUM, Settings, Words
from noisyact_lab.models import language_model
from noisyact_lab.models.language_model import LanguageModel, mean_nll
from noisyact_lab.tasks.noise_settings import NoiseSettings
from noisyact_lab.tasks.text_task import columns

LEARNS = {"bound": 0.5, "hidden": 20, "epochs": 8, "first_epochs": 6}
ARMS = [arm.name for arm in PTB_WORD.arms]
CPU = torch.device("cpu")


def task_of(arm="reference", seed=0, experiment=PTB_WORD, **changes):
    return Words(experiment.effective(arm, "smoke", {**TINY, **changes}), seed, CPU)


def test_is_registered_with_every_arm():
    assert load_experiment("ptb-word") is PTB_WORD
    assert load_experiment("ptb-word-medium") is PTB_WORD_MEDIUM
    assert ARMS == [
        "reference", "hard", "leak", "nan", "nah", "nah-mean", "nah-centred", "leak-gates", "leak-tanhs",
        "leak-unclipped", "nah-no-leak", "nah-no-leak-mean", "nah-no-leak-centred", "nah-no-leak-fixed-p",
        "nan-no-leak", "nani", "nanil", "nanis",
    ]  # fmt: skip
    assert [arm.name for arm in PTB_WORD_MEDIUM.arms] == ["reference", "hard", "leak", "nan", "nah"]
    assert {arm.name: (arm.paper, arm.papers) for arm in PTB_WORD.arms if arm.paper} == {
        "reference": (115.6, {"valid_perplexity": 119.4}),
        "nan": (108.0, {"valid_perplexity": 111.7}),
        "nah": (108.7, {"valid_perplexity": 112.6}),
    }
    assert not any(arm.paper or arm.papers for arm in PTB_WORD_MEDIUM.arms)
    leak, nan = (PTB_WORD.effective(arm, "paper").layer_arguments() for arm in ("leak", "nan"))
    assert nan["noise"] == na.NAN(c=0.5, alpha=1.15, clip=True)
    assert nan["gate_noise"] == na.NAN(c=0.15, alpha=1.1)
    assert leak == {name: scheme if name == "hard" else scheme.with_scale(0.0) for name, scheme in nan.items()}


def test_arms_that_are_compared_differ_in_one_thing():
    """Without noise p has no part in the output; at alpha = 1 the clip has none unless the noise is symmetric."""
    made = {arm: PTB_WORD.effective(arm, "paper") for arm in ARMS}
    layers = {arm: made[arm].layer_arguments() for arm in ARMS}
    assert layers["nah-mean"]["noise"] == na.NAH(c=0.5, alpha=1.15, clip=True, draw="mean")
    assert layers["nah-centred"]["gate_noise"] == na.NAH(c=0.15, alpha=1.1, draw="centred")
    assert layers["nah-no-leak-mean"]["gate_noise"] == na.NAH(c=0.15, alpha=1.0, draw="mean")
    assert layers["nah-no-leak-centred"]["noise"] == na.NAH(c=0.5, alpha=1.0, draw="centred")
    assert layers["nan-no-leak"]["noise"] == na.NAN(c=0.5, alpha=1.0)
    leaks = {arm: [layers[arm][name].leak for name in ("noise", "gate_noise")] for arm in ARMS if "leak-" in arm[:5]}
    assert [bool(tanhs) for tanhs, _ in leaks.values()] == [False, True, True]  # on the gates, the tanhs, unclipped
    assert [bool(gates) for _, gates in leaks.values()] == [True, False, True]
    known = {(c.arm, c.against, c.margin) for c in PTB_WORD.family()}
    assert {("nah", "nah-mean", 2.0), ("nah-no-leak", "nah-no-leak-mean", 2.0), ("leak-gates", "hard", None)} <= known
    assert len(known) == len(PTB_WORD.family())


def test_p_stays_as_it_was_drawn_where_it_is_not_learned(treebank):
    for arm, learned in (("nah-no-leak", True), ("nah-no-leak-fixed-p", False)):
        task = task_of(arm, bound=2.0)  # saturates
        drawn = [p.clone() for p in task.model.recurrent.noise.parameters()]
        for index in range(3):
            task.update(index)
        now = task.model.recurrent.noise.parameters()
        assert [torch.equal(*both) for both in zip(drawn, now, strict=True)] == [not learned] * 2


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_learns(arm, treebank, tmp_path):
    record = run(Job("ptb-word", arm, "smoke", 0, tmp_path / "out", device="cpu", changes={**TINY, **LEARNS}))
    assert record["status"] == "finished"
    symbols = torch.bincount(penn_treebank(WORDS, verified=False).train).double()
    frequencies = symbols[symbols > 0] / symbols.sum()
    alone = math.exp(-(frequencies * frequencies.log()).sum())  # the perplexity of knowing frequencies alone
    assert record["result"]["test_perplexity"] < 0.6 * alone
    (samples,) = json.loads((folder_of(tmp_path / "out", "ptb-word", "smoke", arm, 0) / "samples.json").read_text())
    assert samples["columns"] == ["prompt", "temperature", "goes on"]
    assert len(samples["rows"]) == 8


def test_an_update_is_that_of_the_published_code(treebank):
    """By nn.LSTM: the loss summed over steps and averaged over columns, its gradient clipped as a whole, plain SGD.

    The second update starts from the state of the first.
    """
    task = task_of(max_gradient_norm=0.5)
    model = nn.ModuleList([nn.Embedding(len(task.corpus.vocabulary), 12), nn.LSTM(12, 12, 2), nn.Linear(12, 13)])
    embedding, lstm, output = model
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), task.model.parameters(), strict=True):
            mine.copy_(theirs)
    state, norms, losses = None, [], []
    for index in range(3):
        x = task.train[5 * index : 5 * index + 6]
        y, state = lstm(embedding(x[:-1]), state)
        state = tuple(part.detach() for part in state)
        loss = sum(F.cross_entropy(output(y[step]), x[step + 1]) for step in range(5))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norms.append(torch.cat([g.flatten() for g in gradients]).norm())
        losses.append(loss.item() / 5)
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= min(1.0, 0.5 / norms[-1]) * gradient
        assert task.update(index) == {}
        torch.testing.assert_close(task.carried.state(), state, rtol=1e-4, atol=1e-6)
    assert max(norms) > 0.5
    for mine, theirs in zip(model.parameters(), task.model.parameters(), strict=True):
        torch.testing.assert_close(theirs, mine, rtol=1e-4, atol=1e-6)
    assert task.mean_loss(3) == pytest.approx(sum(losses) / 3, rel=1e-5)


def test_rates_of_the_epochs(treebank):
    """1 for five epochs, then halved each: 1/256 in the thirteenth."""
    task = task_of(epochs=13)
    task.step = lambda window: None
    rates = []
    for epoch in range(13):
        for index in (epoch * task.epoch, (epoch + 1) * task.epoch - 1):
            task.update(index)
            rates.append(float(task.optimizer.param_groups[0]["lr"]))
    assert rates[::2] == rates[1::2] == [1.0] * 5 + [2.0**-k for k in range(1, 9)]
    medium = PTB_WORD_MEDIUM.effective("nan", "paper")
    assert (medium.first_epochs, medium.decay, medium.epochs, medium.dropout, medium.hidden) == (6, 1.25, 39, 0.5, 650)


def test_an_epoch_reads_the_columns_in_order_from_a_zero_state(treebank):
    task = task_of("hard", epochs=2)
    seen, states = [], []

    def look(window):
        seen.append(window)
        states.append(task.carried.get_buffer("parts").clone())
        step(window)

    step, task.step = task.step, look
    for index in range(task.updates):
        task.update(index)
    rows = torch.cat([window[:-1] for window in seen[: task.epoch]])
    assert torch.equal(rows, task.train[: len(rows)])
    assert len(task.train) - 1 - len(rows) < 5
    assert all(torch.equal(first, second) for first, second in zip(seen, seen[task.epoch :], strict=False))
    assert [bool(state.any()) for state in states] == [index % task.epoch > 0 for index in range(task.updates)]


def test_columns_of_the_treebank():
    """The published code starts column i (from 0) at round(i N / 20); 46,479 rows, 2,323 updates of 20."""
    text = columns(torch.arange(929_589), 20)
    assert len(text) == 46_479
    assert text[0].tolist() == [math.floor(i * 929_589 / 20 + 0.5) for i in range(20)]
    assert torch.equal(text - text[0], torch.arange(46_479)[:, None].expand(-1, 20))
    assert (len(text) - 1) // 20 == 2323


def test_model_of_the_paper():
    for settings, parameters in ((Settings(hard=False), 4_653_200), (Settings(scheme="nah"), 4_655_200)):
        lstm = na.NoisyLSTM(settings.hidden, settings.hidden, settings.layers, **settings.layer_arguments())
        model = LanguageModel(10_000, lstm, settings.bound, 0)
        assert sum(p.numel() for p in model.parameters()) == parameters
    for name, parameter in model.named_parameters():
        bound = 1.0 if ".noise." in name else 0.1
        assert 0.97 * bound < parameter.abs().max() <= bound


def test_weights_of_a_seed_are_the_same_in_every_arm(treebank):
    made = []
    for arm in ARMS:
        torch.manual_seed(len(made))  # of p alone
        made.append(task_of(arm, seed=7).model.state_dict())
    for state in made[1:]:
        for name, weight in made[0].items():
            assert torch.equal(state[name], weight)
    assert not torch.equal(task_of(seed=8).model.output.weight, made[0]["output.weight"])


def test_dropout_is_outside_the_recurrence(treebank):
    """With a layer's input dropped altogether what is left is the recurrence, which must be as without dropout."""
    model = task_of("hard", experiment=PTB_WORD_MEDIUM, dropout=0.999999).model
    x = torch.randint(13, (6, 3))
    _, (h, c) = model(x)
    empty = torch.zeros(6, 3, 12)
    _, (h_0, c_0) = model.recurrent.eval()(empty)
    torch.testing.assert_close((h[0], c[0]), (h_0[0], c_0[0]))
    assert not torch.equal(model.train()(x)[0], model.eval()(x)[0])
    assert torch.equal(model(x)[0], model(x)[0])


def test_mean_nll_takes_the_text_in_pieces(treebank, monkeypatch):
    task = task_of("nah")
    text = task.corpus.test[:, None]
    whole = mean_nll(task.model, text)
    with torch.no_grad():
        logits, _ = task.model.eval()(text[:-1])
    assert whole == pytest.approx(F.cross_entropy(logits[:, 0], text[1:, 0]).item(), rel=1e-5)
    monkeypatch.setattr(language_model, "_AT_ONCE", 7 * 13)  # 7 predictions, of 13 words
    assert mean_nll(task.model.train(), text) == pytest.approx(whole, rel=1e-5)
    assert task.model.training
    for parameter in task.model.parameters():
        nn.init.zeros_(parameter)
    assert mean_nll(task.model, text) == pytest.approx(math.log(13), rel=1e-6)


def test_test_text_decides_nothing(treebank, tmp_path):
    records = []
    for out in ("a", "b"):
        records.append(run(Job("ptb-word", "nah", "smoke", 0, tmp_path / out, device="cpu", changes=TINY)))
        (treebank / "ptb.test.txt").write_text("it it it it\n")
    files = [folder_of(tmp_path / out, "ptb-word", "smoke", "nah", 0) / "metrics.jsonl" for out in ("a", "b")]
    assert files[0].read_text() == files[1].read_text()
    results = [record["result"] for record in records]
    assert results[0].pop("test_perplexity") != results[1].pop("test_perplexity")
    assert results[0] == results[1]


@pytest.mark.parametrize("arm", ["reference", "nah"])
def test_stopped_and_resumed_ends_the_same(arm, treebank, tmp_path):
    whole = stopped_ends_as_whole(PTB_WORD, arm, tmp_path, {**TINY, "epochs": 4, "first_epochs": 2})
    assert len(read_lines(whole / "metrics.jsonl")) == 4


def test_bad_settings_are_named(treebank):
    with pytest.raises(ValueError, match="scheme 'relu' is unknown; allowed are none, nan, nah, nani, nanil, nanis"):
        NoiseSettings(scheme="relu").layer_arguments()
    for changes, said in (
        ({"batch": 0}, "ptb-word: batch=0: must be at least 1"),
        ({"epochs": 0}, "ptb-word: epochs=0: must be at least 1"),
        ({"tokens": 20}, r"tokens=20: must be at least batch \* \(steps \+ 1\) = 24 and at most 867, the whole"),
        ({"tokens": 10_000}, r"tokens=10000: must be at least .* at most 867"),
        ({"vocabulary": 14}, "vocabulary=14: must be 2 to 13"),
        ({"verified": True}, f"has {PARTS['train'] + 1} lines, but the Treebank's file has 42,068"),
    ):
        with pytest.raises(ValueError, match=said):
            task_of(**changes)


@pytest.mark.gpu
@pytest.mark.parametrize("arm", ["reference", "leak"])
def test_graph_updates_as_the_cpu_does(arm, treebank):
    """Without noise both take the same steps, also where the rate changes: the graph reads it anew."""
    settings = PTB_WORD.effective(arm, "smoke", {**TINY, "first_epochs": 1})
    torch.manual_seed(0)
    there = Words(settings, 0, torch.device("cuda"))
    torch.manual_seed(0)
    here = Words(settings, 0, CPU)
    for index in range(here.updates):
        there.update(index)
        here.update(index)
    for mine, theirs in zip(here.model.parameters(), there.model.parameters(), strict=True):
        torch.testing.assert_close(theirs.cpu(), mine, rtol=2e-2, atol=2e-3)  # TF32 in the layers
    assert there.loss_sum.item() == pytest.approx(here.loss_sum.item(), rel=1e-3)


def test_real_smoke(real_treebank, tmp_path):
    record = run(Job("ptb-word", "nah", "smoke", 0, tmp_path, device="cpu"))
    assert record["status"] == "finished"
    assert 20 < record["result"]["test_perplexity"] < 100
    task = Words(PTB_WORD.effective("nah", "paper", {"epochs": 1}), 0, CPU)
    assert (task.epoch, task.train.shape) == (2323, (46_479, 20))
    assert len(task.corpus.test) - 1 == 82_429
    assert list(itertools.islice(task.corpus.vocabulary.symbols, 3)) == ["<eos>", "aer", "banknote"]
