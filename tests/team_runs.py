"""Runs of two processes, each on a CPU, and what they have to do with runs of one.

A process of its own, since each rank is a fork of it, which costs no import: python tests/team_runs.py FOLDER. The
ranks are given the environment that torchrun gives.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric  # noqa: F401  (before the forks)
from torch import Tensor

import noisyact as na
from noisyact.experiments import team as teams
from noisyact.experiments.experiment import Experiment
from noisyact.experiments.files import read_json, read_lines
from noisyact.experiments.mnist import MNIST
from noisyact.experiments.run import folder_of, run
from noisyact.experiments.unique import UNIQUE
from test_experiment_mnist import TINY, made

RANKS = 2
CHANGES = {"updates": 30, "evaluate_every": 10, "test_sequences": 40, "hidden": 8, "batch": 8, "length": 6}


def together(work: Callable[[teams.Team], None], kill_when: Callable[[], bool] | None = None) -> None:
    """Do the work on two ranks; or kill both when something has happened."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            os.environ |= {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS),
                "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test",
            }  # fmt: skip
            try:
                work(teams.join(torch.device("cpu")))
            except BaseException as error:
                print(f"rank {rank}: {error!r}", flush=True)
                os._exit(1)
            os._exit(0)
        ranks.append(child)
    if kill_when is not None:
        while not kill_when():
            time.sleep(0.002)
        for child in ranks:
            os.kill(child, signal.SIGKILL)
    ended = [os.waitpid(child, 0)[1] for child in ranks]
    assert ended == [0 if kill_when is None else signal.SIGKILL] * RANKS, ended


def train(experiment: Experiment, arm: str, out: Path, changes: dict) -> Callable[[teams.Team], None]:
    """A run; the second rank has another folder, which must stay as it is: the first alone keeps the record."""

    def work(team: teams.Team) -> None:
        place = out if team.leads else out.with_name("untouched")
        record = run(experiment, arm, "smoke", 3, place, device="cpu", changes=changes, team=team)
        assert record["devices"] == RANKS

    return work


def weights(experiment: Experiment, arm: str, out: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    (_, last) = sorted((folder_of(out, experiment.name, "smoke", arm, 3) / "checkpoints").iterdir())
    return load_file(last / "tensors.safetensors")


def equals_one_process(experiment: Experiment, arm: str, folder: Path, changes: dict) -> None:
    """Without noise the averaged gradients are those of the whole batch."""
    together(train(experiment, arm, folder / "two", changes))
    run(experiment, arm, "smoke", 3, folder / "one", device="cpu", changes=changes)
    one, two = (weights(experiment, arm, folder / name) for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
    lines = [
        read_lines(folder_of(folder / name, experiment.name, "smoke", arm, 3) / "metrics.jsonl")
        for name in ("one", "two")
    ]
    assert len(lines[1]) == 3
    for one_line, two_line in zip(*lines, strict=True):
        assert one_line.keys() == two_line.keys()
        assert abs(one_line["loss"] - two_line["loss"]) < 1e-4, (one_line, two_line)
    assert not (folder / "untouched").exists()


def draws_differ(folder: Path) -> None:
    """Noise and dropout are each rank's own, also where a checkpoint has brought all generators to those of one."""

    def work(team: teams.Team) -> None:
        torch.manual_seed(5)
        team.reseed(5, 10)
        batch = torch.arange(24).reshape(3, 8)
        share = team.share(batch, dim=1)
        assert torch.equal(share, batch[:, 4 * team.rank : 4 * team.rank + 4])
        assert torch.equal(team.whole(share, dim=1), batch)
        noise = na.NoisyHardTanh("nan")(torch.full((1000,), 3.0)).detach()
        torch.save((noise, torch.rand(1000), team.mean(torch.tensor(float(team.rank)))), folder / f"{team.rank}.pt")

    together(work)
    first, second = (torch.load(folder / f"{rank}.pt") for rank in range(RANKS))
    for mine, other in zip(first[:2], second[:2], strict=True):
        assert abs(torch.corrcoef(torch.stack([mine, other]))[0, 1]) < 0.15
    assert first[2] == second[2] == 0.5
    torch.manual_seed(5)
    na.NoisyHardTanh("nan")(torch.full((1000,), 3.0))
    assert torch.equal(torch.rand(1000), first[1])  # the first rank's are those of a run alone


def kept(out: Path) -> dict[str, bytes]:
    folder = folder_of(out, "unique", "smoke", "nan", 3)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.name not in ("timing.jsonl", "result.json")
    }


def killed_and_resumed_ends_the_same(folder: Path) -> None:
    together(train(UNIQUE, "nan", folder / "whole", CHANGES))
    metrics = folder_of(folder / "killed", "unique", "smoke", "nan", 3) / "metrics.jsonl"
    together(train(UNIQUE, "nan", folder / "killed", CHANGES), kill_when=lambda: len(read_lines(metrics)) >= 2)
    together(train(UNIQUE, "nan", folder / "killed", CHANGES))
    assert len(read_lines(metrics)) == 3
    assert kept(folder / "killed") == kept(folder / "whole")
    result = folder_of(folder / "killed", "unique", "smoke", "nan", 3) / "result.json"
    stamp = result.stat().st_mtime_ns
    together(train(UNIQUE, "nan", folder / "killed", CHANGES))  # finished: known to all ranks, not done again
    assert result.stat().st_mtime_ns == stamp
    assert read_json(result)["devices"] == RANKS
    with pytest.raises(ValueError, match="devices is 2 there and None here"):
        run(UNIQUE, "nan", "smoke", 3, folder / "killed", device="cpu", changes=CHANGES)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    made(folder / "data" / "mnist")
    os.environ |= {"NOISYACT_DATA": str(folder / "data"), "XDG_CACHE_HOME": str(folder / "cache")}
    for name in ("unique", "mnist", "draws", "resumed"):
        (folder / name).mkdir()
    equals_one_process(UNIQUE, "hard", folder / "unique", CHANGES)
    equals_one_process(MNIST, "tanh", folder / "mnist", {**TINY, "updates": 30, "evaluate_every": 10})
    draws_differ(folder / "draws")
    killed_and_resumed_ends_the_same(folder / "resumed")
    print("all as it should be")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
