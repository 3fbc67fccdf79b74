"""The character-level experiment: on a small text made here, and on the real one where it is there."""

import json
import math

import pytest
import torch
from run_cases import stopped_ends_as_whole
from text_cases import small_treebank  # noqa: F401
from tiny import PTB_CHAR as TINY

import noisyact as na
from noisyact_lab.data.text import CHARACTERS, penn_treebank
from noisyact_lab.engine.experiment import load_experiment
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.run import run
from noisyact_lab.experiments.ptb_char import PTB_CHAR, Characters

ARMS = [arm.name for arm in PTB_CHAR.arms]
CPU = torch.device("cpu")


def test_is_registered_with_every_arm():
    assert load_experiment("ptb-char") is PTB_CHAR
    assert ARMS == ["reference", "hard", "leak", "nan", "nani", "nanis"]
    settings = PTB_CHAR.effective("nani", "paper", {"sigma": "0.518"})
    assert settings.layer_arguments()["gate_noise"] == na.NANI(0.518)
    assert settings.steps == 200
    leak, nan = (PTB_CHAR.effective(arm, "paper") for arm in ("leak", "nan"))
    assert (leak.c, leak.gate_c, leak.alpha, leak.gate_alpha) == (0.0, 0.0, nan.alpha, nan.gate_alpha)


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_learns(arm, treebank, tmp_path):
    job = Job("ptb-char", arm, "smoke", 0, tmp_path / "out", device="cpu", changes={**TINY, "learning_rate": 0.01})
    record = run(job)
    assert record["status"] == "finished"
    counts = torch.bincount(penn_treebank(CHARACTERS, verified=False).train).double()
    entropy = -(counts / counts.sum() * (counts / counts.sum()).log2()).sum()  # bits of knowing frequencies alone
    assert record["result"]["valid_bpc"] < 0.6 * entropy
    assert record["result"]["test_bpc"] == pytest.approx(record["result"]["valid_bpc"], rel=0.2)
    folder = folder_of(tmp_path / "out", "ptb-char", "smoke", arm, 0)
    (samples,) = json.loads((folder / "samples.json").read_text())
    assert len(samples["rows"]) == 8


def test_bits_of_a_model_that_knows_nothing(treebank):
    task = Characters(PTB_CHAR.effective("hard", "smoke", TINY), 0, CPU)
    for parameter in task.model.parameters():
        torch.nn.init.zeros_(parameter)
    task.loss_sum += 2 * math.log(2)
    found = task.evaluate(1)
    assert found["valid_bpc"] == pytest.approx(math.log2(len(task.corpus.vocabulary)), rel=1e-6)
    assert found["train_bpc"] == pytest.approx(2.0)


def test_every_sequence_begins_with_a_state_of_zeros(treebank, monkeypatch):
    task = Characters(PTB_CHAR.effective("nan", "smoke", TINY), 0, CPU)
    assert {len(task.valid), len(task.test)} == {task.steps + 1}
    before, step = [], task.step
    monkeypatch.setattr(
        task, "step", lambda window: (before.append(task.carried.state().abs().sum().item()), step(window))
    )
    for index in range(3):
        task.update(index)
        assert task.carried.state().abs().sum() > 0
    assert before == [0.0, 0.0, 0.0]


def test_tests_and_speaks_with_the_best_weights(treebank):
    task = Characters(PTB_CHAR.effective("nan", "smoke", {**TINY, "learning_rate": 0.01}), 0, CPU)
    for index in range(60):
        task.update(index)
    good = {"update": 60, **task.evaluate(60)}
    before = task.samples()
    with torch.no_grad():
        task.model.output.weight.neg_()
    task.update(60)
    bad = {"update": 61, **task.evaluate(61)}
    assert bad["valid_bpc"] > good["valid_bpc"]
    result = task.result([good, bad])
    assert result["best_update"] == 60
    assert result["test_bpc"] == pytest.approx(good["valid_bpc"], rel=0.2)
    assert task.samples() == before


@pytest.mark.parametrize("arm", ["reference", "nanis"])
def test_stopped_and_resumed_ends_the_same(arm, treebank, tmp_path):
    """Also within an epoch."""
    changes = {**TINY, "epochs": 2, "evaluate_every": 7}
    stopped_ends_as_whole(PTB_CHAR, arm, tmp_path, changes)
    task = Characters(PTB_CHAR.effective(arm, "smoke", changes), 1, CPU)
    assert 14 < task.epoch < 21 < task.updates


def test_real_smoke(real_treebank, tmp_path):
    record = run(Job("ptb-char", "nani", "smoke", 0, tmp_path, device="cpu"))
    assert record["status"] == "finished"
    assert 2 < record["result"]["test_bpc"] < 4.6  # below the frequencies alone, 4.3 or so, or not far above them
    task = Characters(PTB_CHAR.effective("nan", "paper"), 0, CPU)
    assert (task.epoch, task.updates) == (391, 3910)
    assert task.train.shape == (78_398, 64)
