"""The unique-count task: its data, its annealing, its curriculum."""

import json

import pytest
import torch

import noisyact as na
from noisyact_lab.engine.experiment import load_experiment
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.run import run
from noisyact_lab.experiments.unique import UNIQUE, UNIQUE_PLATEAU, Unique, sequences


def test_counts_are_right():
    x, unique = sequences(200, 26, 11, torch.Generator().manual_seed(3))
    assert x.shape == (26, 200)
    assert unique.tolist() == [len(set(column)) for column in x.T.tolist()]


def test_noise_is_annealed_as_the_paper_says(tmp_path):
    """c = 30 / sqrt(t + 1), t counting every 200 updates: 30, 21.2, 17.3 at updates 200, 400, 600."""
    changes = {"updates": 601, "evaluate_every": 200, "hidden": 4, "batch": 2, "mlp": 4, "test_sequences": 10}
    run(Job("unique", "nan-annealed", "smoke", 0, tmp_path, device="cpu", changes=changes))
    lines = (folder_of(tmp_path, "unique", "smoke", "nan-annealed", 0) / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line)["c"] for line in lines]
    torch.testing.assert_close(torch.tensor(found), 30 / torch.tensor([1.0, 2.0, 3.0, 4.0]).sqrt())


def test_the_curriculum_grows_over_its_updates():
    task = Unique(UNIQUE.effective("curriculum", "smoke"), 0, torch.device("cpu"))
    lengths = [task._length(index) for index in range(task.updates)]
    assert lengths[0] == 3
    assert lengths == sorted(lengths)
    assert lengths[29] < 26
    assert lengths[30:] == [26] * 30


def test_the_plateau_has_every_scheme_with_and_without_leak_and_annealing():
    assert load_experiment("unique-plateau") is UNIQUE_PLATEAU
    names = [arm.name for arm in UNIQUE_PLATEAU.arms]
    assert len(names) == len(set(names)) == 18
    made = {name: UNIQUE_PLATEAU.effective(name, "paper") for name in names}
    mean = made["nah-no-leak-mean-annealed"]
    assert mean.layer_arguments()["gate_noise"] == na.NAH(c=0.5, alpha=1.0, draw="mean")
    assert mean.annealed
    assert not made["nah-mean"].annealed
    assert made["nah-annealed"].layer_arguments()["noise"] == na.NAH(c=0.5, alpha=1.15, clip=True)
    assert all({c.arm, c.against} <= {*names} and c.times for c in UNIQUE_PLATEAU.family())
    easy = UNIQUE.effective("nan-annealed", "paper")
    assert (easy.embedding_std, easy.end_at_error) == (1.0, None)


def test_embeddings_are_those_of_the_easy_regime_made_smaller():
    tasks = []
    for experiment in (UNIQUE, UNIQUE_PLATEAU):
        torch.manual_seed(0)
        tasks.append(Unique(experiment.effective("hard", "smoke"), 0, torch.device("cpu")))
    easy, hard = (task.model.state_dict() for task in tasks)
    std = tasks[1].settings.embedding_std
    torch.testing.assert_close(hard.pop("embedding.weight"), std * easy.pop("embedding.weight"))
    assert all(torch.equal(easy[name], weight) for name, weight in hard.items())


@pytest.mark.parametrize("ends", [True, False])
def test_a_run_ends_when_it_has_solved_the_task(ends, tmp_path):
    """Its updates are those to 1%; one that never was there needs the whole budget."""
    changes = {"values": 1, "end_at_error": 1.0} if ends else {}  # one value, so one count
    record = run(Job("unique-plateau", "nah-mean-annealed", "smoke", 0, tmp_path, device="cpu", changes=changes))
    result = record["result"]
    if ends:
        assert record["updates"] == result["updates_to_1%"] == result["updates_needed"] < 60
        assert result["test_error"] == 0
    else:
        assert (record["updates"], result["updates_to_1%"], result["updates_needed"]) == (60, None, 60.0)
