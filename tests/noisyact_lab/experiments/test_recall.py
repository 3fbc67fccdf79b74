"""Associative recall: its sequences, extreme weights, learning, resuming, a CUDA graph."""

import json
import math

import pytest
import torch
from run_cases import stopped_ends_as_whole
from torch.utils._python_dispatch import TorchDispatchMode

import noisyact as na
from noisyact_lab.engine.experiment import load_experiment
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.run import run
from noisyact_lab.experiments.recall import RECALL, RECALL_SATURATED, Recall, sequences

ARMS = [arm.name for arm in RECALL.arms]
CPU = torch.device("cpu")
TINY = {"max_items": 3, "hidden": 6, "rows": 4, "width": 3, "batch": 4, "validation": 5, "bits": 2, "item_length": 1}


# The task


@pytest.mark.parametrize(("items", "length", "bits"), [(2, 3, 6), (5, 2, 4), (16, 3, 6)])
def test_the_answer_is_the_item_after_the_query(items, length, bits):
    x, answers = sequences(200, items, length, bits, torch.Generator().manual_seed(items))
    assert x.shape == ((items + 2) * (length + 1), 200, bits + 2)
    asked = set()
    for sequence, answer in zip(x.unbind(1), answers.unbind(1), strict=True):
        *listed, query, silence = sequence.reshape(items + 2, length + 1, bits + 2)
        for part in listed:
            assert part[0].tolist() == [0.0] * bits + [1.0, 0.0]
        for part in (query, silence):
            assert part[0].tolist() == [0.0] * bits + [0.0, 1.0]
        assert not sequence.reshape(items + 2, length + 1, -1)[:, 1:, bits:].any()
        assert not silence[1:].any()
        listed = [part[1:, :bits].tolist() for part in listed]
        followers = {i: listed[i + 1] for i in range(items - 1) if listed[i] == query[1:, :bits].tolist()}
        assert answer.tolist() in followers.values()
        asked |= set(followers)
    assert asked == set(range(items - 1))


def test_bits_are_even():
    x, _ = sequences(2000, 4, 3, 6, torch.Generator().manual_seed(0))
    share = x.reshape(6, 4, 2000, 8)[:4, 1:, :, :6].mean().item()
    assert abs(share - 0.5) < 4 * 0.5 / math.sqrt(4 * 3 * 2000 * 6)


# The experiment


def test_the_controller_begins_saturated_where_that_is_wanted():
    assert load_experiment("recall-saturated") is RECALL_SATURATED
    shares = []
    for experiment in (RECALL, RECALL_SATURATED):
        torch.manual_seed(0)
        task = Recall(experiment.effective("nan", "paper", {"max_items": 4, "validation": 20}), 0, CPU)
        (unit,) = task.measure_noise().values()
        shares.append(unit["saturated"])
        assert unit["drawn"] == pytest.approx(unit["saturated"])
    assert shares[0] < 0.01
    assert shares[1] > 0.8
    names = {arm.name for arm in RECALL_SATURATED.arms}
    assert all({c.arm, c.against} <= names for c in RECALL_SATURATED.family())


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("size", [0.0, 30.0, 1e15])
def test_gradients_are_finite_for_extreme_weights(arm, size):
    """Weights of zero, and weights so large that all inputs of the heads are at their limits."""
    task = Recall(RECALL.effective(arm, "smoke", {**TINY, "rows": 8}), 0, CPU)
    if arm == "nan-annealed":
        na.set_noise_scale(task.model, 30.0)
    with torch.no_grad():
        for name, weights in task.model.named_parameters():
            weights.mul_(1.0 if name.endswith(("p", "output.weight")) else size)
    loss = task.model(task.valid_x, answer=1).square().mean()
    loss.backward()
    assert loss.isfinite()
    for name, weights in task.model.named_parameters():
        assert weights.grad is None or weights.grad.isfinite().all(), name


def test_is_registered_with_every_arm():
    assert load_experiment("recall") is RECALL
    assert ARMS == ["reference", "hard", "leak", "nan", "nan-annealed"]
    leak, nan, annealed = (RECALL.effective(arm, "paper") for arm in ARMS[2:])
    assert (leak.c, leak.alpha, leak.scheme) == (0.0, annealed.alpha, annealed.scheme)
    assert (nan.annealed, annealed.annealed, nan.alpha) == (False, True, annealed.alpha)
    assert (annealed.min_items, annealed.max_items) == (2, 16)


def test_weights_of_a_seed_are_the_same_in_every_arm():
    made = []
    for arm in ARMS:
        torch.manual_seed(7)
        task = Recall(RECALL.effective(arm, "smoke", TINY), 0, CPU)
        made.append({name: w for name, w in task.model.named_parameters() if not name.endswith("p")})
    for weights in made[1:]:
        assert weights.keys() == made[0].keys()
        assert all(torch.equal(weights[name], made[0][name]) for name in weights)


def test_all_validation_sequences_in_one_batch_are_answered_as_alone():
    task = Recall(RECALL.effective("nan", "smoke", {**TINY, "item_length": 2, "max_items": 5}), 0, CPU)
    found, generator = task._answers(), torch.Generator().manual_seed(20_160_301)
    assert found.shape == task.valid_answer.shape == (2, 4, 5, 2)
    for place, items in enumerate((2, 3, 4, 5)):
        x, answer = sequences(5, items, 2, 2, generator)
        assert torch.equal(task.valid_answer[:, place], answer)
        task.model.eval()
        with torch.no_grad():
            torch.testing.assert_close(found[:, place], task.model(x, answer=2))


def test_noise_is_annealed_as_the_paper_says():
    """c = 30 / sqrt(t + 1), t counting every 200 updates, and 0.5 at the least."""
    task = Recall(RECALL.effective("nan-annealed", "smoke", {**TINY, "evaluate_every": 1}), 0, CPU)
    for index, c in ((0, 30.0), (199, 30.0), (200, 30 / math.sqrt(2)), (600, 15.0), (10**6, 0.5)):
        assert task.update(index)["c"] == c
        assert task.model.controller.activation.scale.item() == pytest.approx(c)


@pytest.mark.parametrize("arm", ["reference", "nan-annealed"])
def test_learns_to_recall(arm, tmp_path):
    changes = {**TINY, "bits": 4, "hidden": 32, "rows": 6, "width": 8, "batch": 16, "max_items": 2, "updates": 250,
               "evaluate_every": 250, "validation": 200, "learning_rate": 0.01}  # fmt: skip
    record = run(Job("recall", arm, "smoke", 0, tmp_path, device="cpu", changes=changes))
    assert record["result"]["valid_error"] < 2  # of 50 by chance
    assert record["result"]["valid_wrong_answers"] < 10  # of 94
    samples = json.loads((folder_of(tmp_path, "recall", "smoke", arm, 0) / "samples.json").read_text())
    rows = samples[0]["rows"]
    assert sum(right == predicted for right, predicted in rows) >= 4


@pytest.mark.parametrize("arm", ["reference", "nan-annealed"])
def test_stopped_and_resumed_ends_the_same(arm, tmp_path):
    changes = {**TINY, "updates": 14, "evaluate_every": 5}
    stopped_ends_as_whole(RECALL, arm, tmp_path, changes)


def test_bad_settings_are_named():
    for changes, message in (
        ({"scheme": "nani"}, "scheme 'nani' is unknown; allowed are none, nan, nah, nanil"),
        ({"controller": "lstm"}, "controller 'lstm' is unknown; allowed are feedforward"),
        ({"min_items": 1}, "min_items=1, max_items=3: the first must be at least 2"),
        ({"max_items": 1}, "min_items=2, max_items=1"),
        ({"rows": 2}, "rows=2: must be at least 3"),
        ({"heads": 0}, "heads=0: must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            Recall(RECALL.effective("nan", "smoke", {**TINY, **changes}), 0, CPU)


# A step as a CUDA graph


class NothingReadBack(TorchDispatchMode):
    """Raises for an operation whose result the host waits for, or whose shape depends on numbers."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket._qualified_op_name
        assert name not in {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal"}, name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("arm", ARMS)
def test_a_step_reads_nothing_back(arm):
    task = Recall(RECALL.effective(arm, "smoke", TINY), 0, CPU)
    batch = task._sequences(4, 3, torch.Generator())
    with NothingReadBack():
        task._step(*batch)
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NothingReadBack():
        task._step(*batch).item()


@pytest.mark.gpu
@pytest.mark.parametrize("arm", ["reference", "nan-annealed"])
def test_graphs_do_what_the_steps_do(arm):
    found = []
    for as_graphs in (True, False):
        torch.manual_seed(3)
        changes = {**TINY, "updates": 30, "evaluate_every": 10}
        task = Recall(RECALL.effective(arm, "smoke", changes), 0, torch.device("cuda"))
        if not as_graphs:
            task.step = task._step
        losses = [task.update(index).get("loss") for index in range(30)]
        found.append((torch.tensor(losses[9::10]), [w.detach().cpu() for w in task.model.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
