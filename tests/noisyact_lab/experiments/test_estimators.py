"""Ways to train hard gates in three networks: their arms, and what is measured at the end of a run."""

import math

import pytest
import torch
from run_cases import stopped_ends_as_whole
from text_cases import small_treebank  # noqa: F401
from tiny import PTB_CHAR, PTB_WORD

import noisyact as na
from noisyact_lab.engine.experiment import load_experiment
from noisyact_lab.engine.folder.files import read_lines
from noisyact_lab.engine.job import Job
from noisyact_lab.engine.run import run
from noisyact_lab.experiments.estimators.arms import GateSettings, gate_arms
from noisyact_lab.experiments.estimators.measures import gate_shares, rounded_gates
from noisyact_lab.experiments.estimators.unique import ESTIMATORS_UNIQUE, CountGates
from noisyact_lab.experiments.estimators.word import ESTIMATORS_WORD, WordGates
from noisyact_lab.models.language_model import LanguageModel, mean_nll
from noisyact_lab.tasks.milestones import updates_to

ARMS = {arm.name: arm for arm in gate_arms(0.5)}
BINARY = ("straight-through-binary", "slope-annealed")
COUNT = {"updates": 12, "evaluate_every": 4, "hidden": 8, "mlp": 6, "test_sequences": 50, "batch": 4, "length": 6}
CPU = torch.device("cpu")
TINY = {
    "estimators-word": {**PTB_WORD, "epochs": 1, "bound": 1.0},
    "estimators-char": {**PTB_CHAR, "hidden": 12, "epochs": 1, "tokens": 2000, "evaluate_every": 5},
    "estimators-unique": COUNT,
}
"""Settings of runs that last a moment; the weights of the first are so large that gates saturate."""


def counting(arm, **changes):
    torch.manual_seed(0)
    return CountGates(ESTIMATORS_UNIQUE.effective(arm, "smoke", {**COUNT, **changes}), 0, CPU)


@pytest.mark.parametrize("name", TINY)
def test_every_arm_runs_and_is_measured(name, treebank, tmp_path, monkeypatch):
    experiment = load_experiment(name)
    monkeypatch.setattr(experiment.start, "samples", lambda task: [])  # they take longer than the rest
    assert [arm.name for arm in experiment.arms] == list(ARMS)
    score, found = experiment.start.test_metric, {}
    for arm in ARMS:
        job = Job(name, arm, "smoke", 0, tmp_path, "cpu", TINY[name])
        record = run(job)
        assert record["status"] == "finished"
        result = found[arm] = record["result"]
        assert result["rounding_gap"] == pytest.approx(result[f"rounded_{score}"] - result[score])
        assert all(0 <= result[share] <= 100 for share in ("exact_gates", "dead_units"))
        units = read_lines(job.folder / "noise.jsonl")[-1]["units"]
        assert all("at_limits" in unit for unit in units.values())
    for arm in BINARY:  # rounded in training; only gates within a rounding error of the middle can change
        assert found[arm]["exact_gates"] == 100
        assert abs(found[arm]["rounding_gap"]) < 1e-2 * found[arm][score]
    for arm in ("reference", "gumbel"):  # soft when they are tested
        assert found[arm]["exact_gates"] < 1
    if name == "estimators-word":
        assert found["hard"]["exact_gates"] > 10
        assert len({found[arm][f"rounded_{score}"] for arm in ARMS}) > 10


def test_arms_differ_in_the_gates_alone():
    made = {arm: ESTIMATORS_WORD.effective(arm, "paper") for arm in ARMS}
    layers = {arm: settings.layer_arguments() for arm, settings in made.items()}
    assert all(arguments["noise"] is None for arguments in layers.values())
    assert [arm for arm, arguments in layers.items() if not arguments["hard"]] == ["reference"]
    assert layers["hard"]["gate_noise"] is None
    assert layers["leak"]["gate_noise"] == na.NAN(c=0.0, alpha=1.1)
    assert layers["nah-mean"]["gate_noise"] == na.NAH(c=0.15, alpha=1.1, draw="mean")
    assert layers["nan-annealed"] == layers["nan"]
    assert {arm: settings.scale_from for arm, settings in made.items() if settings.scale_from} == {
        "nah-annealed": 9.0, "nan-annealed": 9.0, "slope-annealed": 1.0
    }  # fmt: skip
    assert str(layers["slope-annealed"]["gate_noise"]) == "slope:slope=5.0,binary=True"
    assert ESTIMATORS_UNIQUE.effective("nan", "paper").layer_arguments()["gate_noise"] == na.NAN(c=0.5, alpha=1.1)
    for experiment in map(load_experiment, TINY):
        pairs = {(c.arm, c.against) for c in experiment.family()}
        ways = [arm for arm in ARMS if arm not in ("reference", "hard", "leak")]
        assert pairs >= {(arm, against) for arm in ways for against in ("hard", "leak")}
        assert experiment.minutes.keys() == {"smoke", "short", "paper"}


def test_the_mean_of_nan_is_the_leak():
    """So it is no arm of its own."""
    x, found = torch.randn(6, 3, 4), []
    for gates in ("nan:c=0,alpha=1.1", "nan:c=0.5,alpha=1.1,draw=mean", "nan:c=0.5,alpha=1.1"):
        torch.manual_seed(0)
        gru = na.NoisyGRU(4, 5, **GateSettings(gates=gates).layer_arguments())
        with torch.no_grad():
            gru.weight_ih_l0.mul_(10)
        found.append(gru(x)[0])
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


def test_rounding_equals_a_computation_by_hand():
    """One unit, whose gates are given by their biases: i = 0.575, f = 0.5, o = 0.65, g = 0.5 at both steps.

    c is 0.2875 and then 0.2875 / 2 + 0.2875 = 0.43125. Rounded, all three gates are 1, so c is 0.5 and then 1. The
    output is o c, and the model's only logit that is not 0 is that of symbol 1.
    """
    lstm = na.NoisyLSTM(1, 1, **GateSettings().layer_arguments())
    model = LanguageModel(2, lstm, 0.0, 0)
    with torch.no_grad():
        lstm.bias_ih_l0.copy_(torch.tensor([0.3, 0.0, 0.5, 0.6]))  # i, f, g, o
        model.output.weight.copy_(torch.tensor([[0.0], [1.0]]))
    text = torch.tensor([[0], [1], [1]])
    right = {False: (0.65 * 0.2875, 0.65 * 0.43125), True: (0.5, 1.0)}

    def nll(rounded):
        return sum(math.log(1 + math.exp(-h)) for h in right[rounded]) / 2

    assert mean_nll(model, text) == pytest.approx(nll(False), rel=1e-6)
    with rounded_gates(model):
        assert mean_nll(model, text) == pytest.approx(nll(True), rel=1e-6)
    assert mean_nll(model, text) == pytest.approx(nll(False), rel=1e-6)


def gru_with(gates, hard=True):
    """Two units. Both r are at a limit for good; of z one is at its middle and the other at 1 or at 0 by turns."""
    gru = na.NoisyGRU(1, 2, **GateSettings(hard, gates).layer_arguments())
    with torch.no_grad():
        for parameter in (gru.weight_ih_l0, gru.weight_hh_l0, gru.bias_ih_l0, gru.bias_hh_l0):
            parameter.zero_()
        gru.bias_ih_l0[:2] = torch.tensor([5.0, -5.0])
        gru.weight_ih_l0[3] = 7.0
    return gru


def test_shares_equal_a_count_by_hand():
    x = torch.tensor([1.0, -1.0, 1.0])[:, None, None]
    assert gate_shares(gru_with(None), x) == {"exact_gates": 75.0, "dead_units": 50.0}
    assert gate_shares(gru_with(None), x[:1]) == {"exact_gates": 75.0, "dead_units": 75.0}
    for gates, hard in ((None, False), ("nan:c=0,alpha=1.1", True), ("gumbel", True)):  # never exactly 0 or 1
        assert gate_shares(gru_with(gates, hard), x) == {"exact_gates": 0.0, "dead_units": 50.0}
    assert gate_shares(gru_with("straight-through:binary=True"), x)["exact_gates"] == 100.0
    gru = gru_with("gumbel").train()
    assert gate_shares(gru, x) == gate_shares(gru.eval(), x)
    with pytest.raises(ValueError, match="NoisyRNN has no gates"):
        gate_shares(na.NoisyRNN(1, 2), x)


@pytest.mark.parametrize(
    ("arm", "scales"),
    [("slope-annealed", [1.0, 3.0, 5.0, 5.0]), ("nah-annealed", [30.0, 15**0.5, 0.5, 0.5]), ("nah", [0.5] * 4)],
)
def test_a_scale_is_annealed_in_place(arm, scales):
    """A CUDA graph reads the buffer anew; the value is reached after half of the 12 updates."""
    task, seen = counting(arm), []
    buffer = task.model.lstm.noise.scale
    for index in range(12):
        line = task.update(index)
        assert task.model.lstm.noise.scale is buffer
        seen.append(buffer.item())
        if task.due(index + 1):
            assert line.get("scale") == (None if arm == "nah" else pytest.approx(seen[-1]))
    assert [seen[index] for index in (0, 3, 6, 11)] == pytest.approx(scales, rel=1e-5)


@pytest.mark.parametrize("arm", ["slope-annealed", "hard-concrete"])
def test_stopped_and_resumed_ends_the_same(arm, tmp_path):
    stopped_ends_as_whole(ESTIMATORS_UNIQUE, arm, tmp_path, COUNT)


def test_evaluations_are_on_validation_sequences_and_the_choice_on_their_mean():
    task = counting("hard")
    assert not torch.equal(task.held_out[0], task.test_x)
    assert torch.equal(task.probe()[0], task.held_out[0][:, :64])
    lines = [{"update": 4, "valid_error": 40.0}, {"update": 8, "valid_error": 1.0}, {"update": 12, "valid_error": 4.0}]
    found = task.result(lines)
    assert (found["valid_error"], found["mean_valid_error"], found["updates_to_1%"]) == (4.0, 15.0, 8.0)
    assert updates_to(lines, "valid_error", 1.0) == 8.0
    wrong = sum(task.model.eval()(task.test_x).argmax(dim=1) != task.test_unique).item()
    assert found["test_error"] == pytest.approx(100 * wrong / 50)
    assert task.evaluate(4).keys() == {"valid_error"}


def test_without_the_setting_test_no_test_data_are_read(treebank, monkeypatch):
    for kind, experiment, tiny in ((CountGates, ESTIMATORS_UNIQUE, COUNT),
                                   (WordGates, ESTIMATORS_WORD, TINY["estimators-word"])):  # fmt: skip
        monkeypatch.setattr(kind, "test_score", lambda task: pytest.fail("the test data were read"))
        task = kind(experiment.effective("hard", "smoke", {**tiny, "test": False}), 0, CPU)
        for index in range(task.updates):
            task.update(index)
        found = task.result([{"update": task.updates, **task.evaluate(task.updates)}])
        assert experiment.choice.metric in found
        assert not any(name.startswith(("test", "round")) for name in found)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gates": "relu"}, "unknown noise scheme 'relu'"),
        ({"gates": "gumbel:c=1"}, "'c=1' in 'gumbel:c=1' is not a setting of gumbel"),
        ({"gates": "gumbel", "hard": "false"}, "gates=gumbel: is for hard gates, but hard=False"),
        ({"scale_from": 2.0}, "scale_from=2.0: gates=none has no scale to anneal"),
        ({"gates": "straight-through", "scale_from": 2.0}, "annealing needs two finite scales above 0"),
        ({"gates": "nan:c=0", "scale_from": 2.0}, "annealing needs two finite scales above 0"),
        ({"gates": "slope", "scale_from": -1.0}, "slope must be above 0"),
        ({"annealed_share": 0}, "annealed_share=0.0: must be above 0 and at most 1"),
        ({"scheme": "nan"}, "setting 'scheme' is unknown"),
    ],
)
def test_bad_settings_are_named(changes, why):
    with pytest.raises(ValueError, match=why):
        ESTIMATORS_WORD.effective("hard", "paper", changes)


@pytest.mark.gpu
@pytest.mark.parametrize("arm", ["hard", "leak", "straight-through", "slope-annealed", "nah-annealed", "gumbel"])
def test_an_arm_runs_in_a_cuda_graph(arm, tmp_path):
    """The annealed scale is read anew at every replay: without noise a GPU ends as the CPU does."""
    changes = {**COUNT, "updates": 40, "evaluate_every": 10}
    there, here = (
        run(Job("estimators-unique", arm, "smoke", 0, tmp_path / device, device, changes)) for device in ("cuda", "cpu")
    )
    assert there["status"] == here["status"] == "finished"
    if arm in ("hard", "leak"):
        assert there["result"]["valid_error"] == pytest.approx(here["result"]["valid_error"], abs=10)
