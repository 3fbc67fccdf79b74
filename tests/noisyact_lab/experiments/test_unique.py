"""The unique-count task: its data, its annealing, its curriculum."""

import json

import torch

from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.run import run
from noisyact_lab.experiments.unique import UNIQUE, Unique, sequences


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
