"""Zoneout and recurrent dropout on the Penn Treebank: on a small text made here."""

import pytest
import torch
from run_cases import stopped_ends_as_whole
from text_cases import small_treebank  # noqa: F401
from tiny import PTB_WORD as TINY

import noisyact as na
from noisyact_lab.engine.experiment import load_experiment
from noisyact_lab.engine.job import Job
from noisyact_lab.engine.run import run
from noisyact_lab.experiments.ptb_word import PTB_WORD, PTB_WORD_ZONEOUT, Words

ARMS = [arm.name for arm in PTB_WORD_ZONEOUT.arms]
LEARNS = {"bound": 0.5, "hidden": 20, "epochs": 8, "first_epochs": 6}
CPU = torch.device("cpu")


def task_of(arm, experiment=PTB_WORD_ZONEOUT, **changes):
    return Words(experiment.effective(arm, "smoke", {**TINY, **changes}), 0, CPU)


def test_its_arms_differ_from_those_of_ptb_word_in_the_masks_alone(treebank):
    assert load_experiment("ptb-word-zoneout") is PTB_WORD_ZONEOUT
    masks = {
        "reference": ((0.0, 0.0), 0.0), "zoneout": ((0.025, 0.25), 0.0), "recurrent-dropout": ((0.0, 0.0), 0.25),
        "nan": ((0.0, 0.0), 0.0), "nan-zoneout": ((0.025, 0.25), 0.0), "nan-recurrent-dropout": ((0.0, 0.0), 0.25),
    }  # fmt: skip
    assert list(masks) == ARMS
    for arm, (zoneout, dropout) in masks.items():
        same = PTB_WORD.effective("nan" if "nan" in arm else "reference", "paper").layer_arguments()
        given = PTB_WORD_ZONEOUT.effective(arm, "paper").layer_arguments()
        assert given == same | {"zoneout": zoneout, "recurrent_dropout": dropout}
        layer = task_of(arm).model.recurrent
        assert isinstance(layer, na.NoisyLSTM)
        assert (layer.zoneout, layer.recurrent_dropout) == (zoneout if any(zoneout) else 0.0, dropout)


def test_without_masks_a_run_is_that_of_ptb_word(treebank):
    weights = []
    for experiment in (PTB_WORD_ZONEOUT, PTB_WORD):
        torch.manual_seed(0)
        task = task_of("nan", experiment)
        for index in range(3):
            task.update(index)
        weights.append(list(task.model.parameters()))
    for mine, theirs in zip(*weights, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("arm", [arm for arm in ARMS if "-" in arm or arm == "zoneout"])
def test_masks_are_drawn_in_training_and_not_in_evaluation(arm, treebank):
    model, (window,) = task_of(arm).model, task_of(arm).probe()
    with torch.no_grad():
        for training in (True, False):
            model.train(training)
            first, again = (model(window)[0] for _ in range(2))
            assert torch.equal(first, again) is not training


@pytest.mark.parametrize("arm", ["zoneout", "nan-recurrent-dropout"])
def test_an_arm_learns(arm, treebank, tmp_path):
    job = Job("ptb-word-zoneout", arm, "smoke", 0, tmp_path / "out", device="cpu", changes={**TINY, **LEARNS})
    record = run(job)
    assert record["status"] == "finished"
    assert record["result"]["test_perplexity"] < 7  # of 13 symbols


def test_a_killed_run_draws_the_same_masks(treebank, tmp_path):
    stopped_ends_as_whole(PTB_WORD_ZONEOUT, "nan-zoneout", tmp_path, {**TINY, "epochs": 3, "first_epochs": 2})
