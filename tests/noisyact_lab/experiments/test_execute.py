"""Learning to Execute: its updates against nn.LSTM, its schedule, its sets of programs, its samples."""

import contextlib
import io
import itertools
import json
import re

import pytest
import torch
from run_cases import stopped_ends_as_whole
from tiny import EXECUTE as TINY
from torch import nn

from noisyact_lab.engine.experiment import load_experiment
from noisyact_lab.engine.folder.files import read_lines
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.run import run
from noisyact_lab.experiments.execute.execute import EXECUTE, Execute, Settings
from noisyact_lab.experiments.execute.programs import IGNORED, SYMBOLS, decoded
from noisyact_lab.experiments.execute.scores import predictions, score

CPU = torch.device("cpu")
ARMS = [arm.name for arm in EXECUTE.arms]


def task_of(arm="reference", seed=0, **changes):
    torch.manual_seed(seed)
    return Execute(EXECUTE.effective(arm, "smoke", {**TINY, **changes}), seed, CPU)


def folder(out, arm, seed=0):
    return folder_of(out, "execute", "smoke", arm, seed)


def metrics(out, arm, seed=0):
    return read_lines(folder(out, arm, seed) / "metrics.jsonl")


def test_is_registered_with_every_arm_and_the_settings_of_the_published_code():
    assert load_experiment("execute") is EXECUTE
    assert ARMS[:5] == ["reference", "hard", "leak", "nan", "nah"]
    assert [EXECUTE.effective(arm, "paper").curriculum for arm in ARMS[4:]] == ["combined", "baseline", "naive", "mix"]
    leak, nan = (EXECUTE.effective(arm, "paper") for arm in ("leak", "nan"))
    assert (leak.c, leak.gate_c, leak.alpha, leak.gate_alpha) == (0.0, 0.0, nan.alpha, nan.gate_alpha)
    paper = EXECUTE.effective("reference", "paper", {"test_rows": 501})
    model = Execute(paper, 0, CPU).model
    assert sum(parameter.numel() for parameter in model.parameters()) == 2_600_042  # as published
    assert max(parameter.abs().max().item() for parameter in model.parameters()) == pytest.approx(0.08, abs=1e-4)


def test_weights_of_a_seed_are_the_same_in_every_arm_and_p_is_not_among_them():
    reference = dict(task_of().model.named_parameters())
    for arm in ARMS[1:]:
        made = dict(task_of(arm).model.named_parameters())
        assert all(torch.equal(made[name], parameter) for name, parameter in reference.items())
    p = torch.cat([value.flatten() for name, value in task_of("nah").model.named_parameters() if ".noise." in name])
    assert p.abs().max() > 0.9


def network(task) -> tuple[nn.Embedding, nn.LSTM, nn.Linear]:
    """The task's network in torch's own layers, in double precision."""
    hidden, layers = task.settings.hidden, task.settings.layers
    parts = nn.Embedding(len(SYMBOLS), hidden), nn.LSTM(hidden, hidden, layers), nn.Linear(hidden, len(SYMBOLS))
    for part, source in zip(parts, (task.model.embedding, task.model.recurrent, task.model.output), strict=True):
        part.load_state_dict(source.state_dict())
    return tuple(part.double() for part in parts)


@pytest.mark.parametrize("limit", [1e-3, 1e3])
def test_updates_are_those_of_the_published_code(limit):
    """Per column and step -log p where a symbol is printed, summed, over the columns; clipped; plain SGD."""
    task = task_of(max_gradient_norm=limit)
    embedding, lstm, output = network(task)
    parameters = [*embedding.parameters(), *lstm.parameters(), *output.parameters()]
    steps, batch, state = task.settings.steps, task.settings.batch, None
    for index in range(3):
        task.update(index)
        total = torch.zeros((), dtype=torch.float64)
        window = task.x[index * steps : (index + 1) * steps + 1].long()
        hidden, state = lstm(embedding(window[:-1]), state)
        state = tuple(part.detach() for part in state)  # carried to the next window, its gradient not
        log_p = output(hidden).log_softmax(-1)
        asked = 0
        for step in range(steps):
            for column in range(batch):
                if task.y[index * steps + step, column] != IGNORED:
                    total -= log_p[step, column, window[step + 1, column]]
                    asked += 1
        assert asked > 0
        gradients = torch.autograd.grad(total / batch, parameters)
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        factor = min(1.0, limit / norm.item())
        assert (factor < 1) == (limit < 1)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 0.5 * factor * gradient
    # Order as here: embedding, layers, output.
    for mine, theirs in zip(parameters, task.model.parameters(), strict=True):
        torch.testing.assert_close(theirs.double(), mine, rtol=2e-3, atol=1e-6)


def test_a_round_begins_with_a_state_of_zero_and_carries_it():
    """With a rate of 0 a round's accuracy and loss are those of one pass over its programs."""
    task = task_of(learning_rate=0.0, enough=100.0, patience=100)
    for start in (0, 5):
        for index in range(start, start + 5):
            line = task.update(index)
        x, y = task.x, task.y
        found = predictions(task.model, x, 15)
        assert line["train_accuracy"] == pytest.approx(score(x, y, found).accuracy)
        embedding, lstm, output = network(task)
        log_p = output(lstm(embedding(x[:-1].long()))[0]).log_softmax(-1)
        asked = y != IGNORED
        nll = -log_p[asked].gather(1, y[asked].long()[:, None]).mean()
        assert line["loss"] == pytest.approx(nll.item(), rel=1e-5)


def test_schedule_as_worked_out_by_hand():
    task = task_of(length=2, nesting=2, patience=3, decay=0.5, lowest_rate=0.2, enough=90.0)
    states, memory = [], task.memory
    for count, (train, valid) in enumerate(
        [
            (50, 0), (60, 0), (70, 0), (50, 0),  # not below 50, three rounds before
            (59, 0),  # below 60: longer. Counted from here
            (10, 0), (20, 0), (58, 0),  # below 59, which was at the easier length: an operation more, one digit again
            (10, 91),  # enough are right: longer
            (30, 90), (20, 0), (10, 0),  # 90 is not enough; then as many as three rounds before: no change
            (19, 0),  # below 30, at the target: the rate falls
            (5, 100),  # and falls below the lowest: the end
        ]
    ):  # fmt: skip
        task._schedule(train, valid, 10 * count)
        states.append((memory["length"], memory["nesting"], memory["rate"]))
    easy, longer = (1, 1, 0.5), (2, 1, 0.5)
    deeper, target = (1, 2, 0.5), (2, 2, 0.5)
    expected = [*[easy] * 4, *[longer] * 3, deeper, *[target] * 4, (2, 2, 0.25), (2, 2, 0.125)]
    assert states == expected
    assert task.updates == 10 * 13
    assert memory["changes"] == 5


def test_the_papers_schedule_ends_after_17_steps_of_difficulty_and_28_of_the_rate():
    task = Execute(EXECUTE.effective("reference", "paper", {"hidden": 4, "test_rows": 501}), 0, CPU)
    most, changes = task.updates, 0
    while task.updates == most:
        task._schedule(0.0, 99.0, 100 * (changes := changes + 1))
        if changes == 17:
            assert task.current == (6, 3)
            assert task.memory["rate"] == 0.5
    assert changes == 17 + 28
    assert task.updates == 4500


def test_sets_of_programs():
    """Two rounds read the same; a change brings new ones at once, of another difficulty."""
    task = task_of(curriculum="naive", patience=100, enough=100.0)
    read = []
    for index in range(30):
        if index == 20:
            task._schedule(0.0, 101.0, index)
        task.update(index)
        if index % 5 == 0:
            read.append(task.x.clone())
    same = [torch.equal(a, b) for a, b in itertools.pairwise(read)]
    assert same == [True, False, True, False, True]
    assert task.current == (2, 1)
    # In the middle of a set a change begins the next.
    task.update(30)
    task._schedule(0.0, 0.0, 35)
    number = task.memory["set"]
    task.memory["rounds"] = 1
    task._schedule(0.0, 101.0, 35)
    assert (task.memory["set"], task.memory["rounds"]) == (number + 1, 0)


def test_writing_ahead_changes_nothing_and_is_done_in_time():
    """As on a GPU, where the next set is written while this one is read, also when the difficulty changes."""
    changes = {"curriculum": "naive", "length": 3, "patience": 100, "enough": 100.0}
    plain, ahead = task_of(**changes), task_of(**changes)
    ahead.ahead = True
    for index in range(40):
        if index in (15, 20):
            for task in (plain, ahead):
                task._schedule(0.0, 101.0, index)
        assert ahead.update(index) == plain.update(index)
        assert torch.equal(ahead.x, plain.x)
        if index in (9, 29, 39):  # the second round of a set is over
            number, columns = ahead._written[0][0], ahead._written[1]
            assert number == ahead.memory["set"]
            assert len(columns._joined) == 6 * (5 * 15 + 1)
    assert ahead.current == (3, 1)


def test_validation_has_the_current_difficulty_and_test_the_target():
    task = task_of(length=5, curriculum="baseline")

    def largest(x):
        return max(int(number) for column in x.T for number in re.findall(r"\d+", decoded(column)))

    assert largest(task.test_x) > 10_000
    assert largest(task._training_set(0).packed()[0]) > 10_000
    assert largest(task._valid_set()[0]) <= 10 + 4 * 10  # a loop of 4 times 10


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_learns(arm, tmp_path):
    changes = {"length": 1, "updates": 120, "evaluate_every": 60}
    record = run(Job("execute", arm, "smoke", 0, tmp_path, device="cpu", changes=changes))
    assert record["status"] == "finished"
    lines = metrics(tmp_path, arm)
    assert lines[-1]["loss"] < 2.2  # 3.7 at the start
    assert lines[-1]["train_accuracy"] > 35
    assert record["result"]["test_accuracy"] > 25


def test_the_schedule_ends_a_run(tmp_path):
    """Every round changes: one more digit, then rates 0.05, 0.005, 0.0005 and the end after 4 rounds of 10."""
    changes = {"enough": -1.0, "decay": 0.1, "evaluate_every": 30}
    record = run(Job("execute", "hard", "smoke", 0, tmp_path, device="cpu", changes=changes))
    assert (record["status"], record["updates"], record["result"]["updates"]) == ("finished", 40, 40)
    lines = metrics(tmp_path, "hard")
    assert [line["update"] for line in lines] == [30, 40]
    assert [line["length"] for line in lines] == [2, 2]
    assert [line["learning_rate"] for line in lines] == pytest.approx([0.05, 0.005])
    assert record["result"]["test_accuracy_at_50%"] == lines[0]["test_accuracy"]
    # Killed after its last checkpoint and before its result: the end is the same, and no update is added.
    (folder(tmp_path, "hard") / "result.json").unlink()
    again = run(Job("execute", "hard", "smoke", 0, tmp_path, device="cpu", changes=changes))
    assert (again["updates"], again["result"]) == (40, record["result"])


@pytest.mark.parametrize("arm", ["reference", "nah"])
def test_stopped_and_resumed_ends_the_same(arm, tmp_path):
    """Within the two rounds of a set, and between sets."""
    stopped_ends_as_whole(EXECUTE, arm, tmp_path, {"patience": 1, "evaluate_every": 10})
    lengths = [line["length"] for line in metrics(tmp_path / "whole", arm, 1)]
    assert lengths[0] == 1
    assert lengths[-1] == 2  # patience of 1: the schedule has changed something


def test_samples_are_programs_with_what_python_prints(tmp_path):
    run(Job("execute", "nan", "smoke", 0, tmp_path, device="cpu", changes={"updates": 10, "evaluate_every": 10}))
    (table,) = json.loads((folder(tmp_path, "nan") / "samples.json").read_text())
    assert table["columns"] == ["program", "target", "prediction"]
    assert len(table["rows"]) > 2
    for program, target, prediction in table["rows"]:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(program, {})
        assert output.getvalue() == target[:-1] + "\n"
        assert target.endswith(".")
        assert len(prediction) == len(target)


def test_samples_predict_at_their_places():
    """A network that always says the next symbol of the test text is right everywhere."""
    task = task_of(test_rows=400)

    class Oracle(nn.Module):
        def forward(self, x, state):
            place = state or 0
            following = task.test_x[place + 1 : place + 1 + len(x), : x.shape[1]].long()
            return nn.functional.one_hot(following, len(SYMBOLS)).float(), place + len(x)

    task.model = Oracle()
    rows = task.samples()[0]["rows"]
    assert len(rows) > 5
    assert all(target == prediction for _, target, prediction in rows)
    assert task._scored(task.test_x, task.test_y) == (100.0, 0.0, 100.0)


def test_bad_settings_are_named():
    for changes, said in (
        ({"curriculum": "blend"}, "execute: curriculum 'blend' is unknown; allowed are baseline, naive, mix, combined"),
        ({"nesting": 11}, "execute: target: length 2, nesting 11: allowed are"),
        ({"length": 0}, "execute: target: length 0"),
        ({"batch": 0}, "execute: batch=0: must be at least 1"),
        ({"test_rows": 1}, "execute: test_rows=1: must be at least 2"),
        ({"curve_rows": 92}, "execute: curve_rows=92: must be at most test_rows, 91"),
        ({"updates": 61}, "execute: updates=61: must be a multiple of round, 5"),
        ({"evaluate_every": 7}, "execute: evaluate_every=7: must be a multiple of round, 5"),
        ({"decay": 1.0}, r"execute: decay=1\.0: must be between 0 and 1"),
        ({"scheme": "nam"}, "scheme 'nam' is unknown; allowed are"),
    ):
        with pytest.raises(ValueError, match=said):
            task_of(**changes)
    assert Settings().updates % Settings().round == 0


@pytest.mark.gpu
@pytest.mark.parametrize("arm", ["reference", "leak"])
def test_graph_updates_as_the_cpu_does(arm):
    """Without noise both take the same steps, also after the rate has changed: the graph reads it anew."""
    settings = EXECUTE.effective(arm, "smoke", {**TINY, "length": 1, "enough": -1.0, "updates": 20})
    torch.manual_seed(0)
    there = Execute(settings, 0, torch.device("cuda"))
    torch.manual_seed(0)
    here = Execute(settings, 0, CPU)
    for index in range(20):
        ours, theirs = here.update(index), there.update(index)
        assert theirs == pytest.approx(ours, rel=1e-2, abs=2.0)
    assert there.memory["rate"] < 0.5
    for mine, other in zip(here.model.parameters(), there.model.parameters(), strict=True):
        torch.testing.assert_close(other.cpu(), mine, rtol=2e-2, atol=2e-3)  # TF32 in the layers


@pytest.mark.gpu
def test_resumed_on_a_gpu_ends_the_same(tmp_path):
    def stop(done, updates, line):
        if done == 20:
            raise KeyboardInterrupt

    where = {"device": "cuda"}
    whole = run(Job("execute", "nah", "smoke", 1, tmp_path / "whole", **where))
    with pytest.raises(KeyboardInterrupt):
        run(Job("execute", "nah", "smoke", 1, tmp_path / "parts", **where), progress=stop)
    assert run(Job("execute", "nah", "smoke", 1, tmp_path / "parts", **where))["result"] == whole["result"]
