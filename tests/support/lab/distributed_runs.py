"""Runs of two processes, each on a CPU, compared with runs of one.

python tests/support/lab/distributed_runs.py FOLDER

A separate process, since each rank is a fork of it, which costs no import. The ranks have the environment that torchrun
gives.
"""

import dataclasses
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flickr_cases
import mnist_cases
import pytest
import tiny
import torch
from lightning.fabric import Fabric  # noqa: F401  (before the forks)
from parallel_cases import PACKED, packed_corpus
from run_cases import kept
from text_cases import write_treebank
from torch import Tensor

import noisyact as na
from noisyact_lab.engine import experiment as experiments
from noisyact_lab.engine.distributed import join
from noisyact_lab.engine.experiment import Experiment
from noisyact_lab.engine.folder.files import read_json, read_lines
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.run import run
from noisyact_lab.engine.task import ProcessGroup
from noisyact_lab.experiments.caption.caption import CAPTION
from noisyact_lab.experiments.execute.execute import EXECUTE
from noisyact_lab.experiments.mnist import MNIST
from noisyact_lab.experiments.ptb_char import PTB_CHAR
from noisyact_lab.experiments.ptb_word import PTB_WORD, PTB_WORD_MEDIUM, Words
from noisyact_lab.experiments.translate.translate import TRANSLATE
from noisyact_lab.experiments.unique import UNIQUE

RANKS = 2


class Small(NamedTuple):
    """A small run of an experiment."""

    experiment: Experiment
    changes: dict
    recorded: tuple[str, ...] = ("loss",)
    """Metrics that are continuous in the weights, so that two processes match one up to rounding."""


SMALL_UNIQUE = Small(
    UNIQUE, {"updates": 30, "evaluate_every": 10, "test_sequences": 40, "hidden": 8, "batch": 8, "length": 6}
)
SMALL_MNIST = Small(MNIST, {**tiny.MNIST, "updates": 30, "evaluate_every": 10})
WORDS = Small(
    PTB_WORD, {**tiny.PTB_WORD, "epochs": 2, "max_gradient_norm": 0.5},
    ("train_perplexity", "valid_perplexity"),
)  # fmt: skip


class EvaluatedWithinAnEpoch(Words):
    """Evaluates within an epoch, so that checkpoints must contain the recurrent state."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.evaluate_every = 8


OFTEN = dataclasses.replace(PTB_WORD, name="ptb-word-often", start=EvaluatedWithinAnEpoch)
experiments._PLACES[OFTEN.name] = f"{__name__}:OFTEN"
WORDS_OFTEN = Small(OFTEN, {**WORDS.changes, "epochs": 1, "bound": 0.5})
WORDS_WITH_DROPOUT = WORDS._replace(experiment=PTB_WORD_MEDIUM)
CHARACTERS = Small(PTB_CHAR, {**tiny.PTB_CHAR, "epochs": 1, "evaluate_every": 4}, ("train_bpc", "valid_bpc"))
SMALL_TRANSLATE = Small(TRANSLATE, tiny.TRANSLATE, ("train_nll", "valid_nll"))
SMALL_CAPTION = Small(
    # Adam turns a gradient of rounding errors into a full step, so the learning rate is low.
    CAPTION, {**tiny.CAPTION, "dropout": 0.0, "learning_rate": 1e-4}, ("train_nll", "valid_nll")
)  # fmt: skip
SMALL_EXECUTE = Small(EXECUTE, {**tiny.EXECUTE, "updates": 30, "evaluate_every": 10})


def together(work: Callable[[ProcessGroup], None], kill_when: Callable[[], bool] | None = None) -> None:
    """Do the work on two ranks, and kill both when `kill_when` returns true."""
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
                work(join(torch.device("cpu")))
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


def train(small: Small, arm: str, out: Path, group: ProcessGroup) -> None:
    """Do a run. The second rank gets another folder, in which it must write nothing."""
    place = out if group.is_first else out.with_name("untouched")
    record = run(Job(small.experiment.name, arm, "smoke", 3, place, device="cpu", changes=small.changes), group=group)
    assert record["devices"] == RANKS


def weights(experiment: Experiment, arm: str, out: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    (_, last) = sorted((folder_of(out, experiment.name, "smoke", arm, 3) / "checkpoints").iterdir())
    return load_file(last / "tensors.safetensors")


def equals_one_process(folder: Path, runs: list[tuple[Small, str]]) -> None:
    """Without noise, the averaged gradients are those of the full batch, and the state is gathered."""

    def work(group: ProcessGroup) -> None:
        for small, arm in runs:
            train(small, arm, folder / "two", group)

    together(work)
    for (experiment, changes, recorded), arm in runs:
        run(Job(experiment.name, arm, "smoke", 3, folder / "one", device="cpu", changes=changes))
        one, two = (weights(experiment, arm, folder / name) for name in ("one", "two"))
        assert one.keys() == two.keys()
        for name in one:
            torch.testing.assert_close(
                two[name],
                one[name],
                rtol=1e-3,
                atol=1e-5,
                msg=lambda text, n=f"{experiment.name} {name}": f"{n}: {text}",
            )
        lines = [
            read_lines(folder_of(folder / name, experiment.name, "smoke", arm, 3) / "metrics.jsonl")
            for name in ("one", "two")
        ]
        assert len(lines[1]) >= 2
        for one_line, two_line in zip(*lines, strict=True):
            assert one_line.keys() == two_line.keys()
            for name in recorded:
                assert two_line[name] == pytest.approx(one_line[name], rel=1e-4), (experiment.name, name)
    assert not (folder / "untouched").exists()


def draws_differ(folder: Path) -> None:
    """Ranks have different noise and dropout, even after a checkpoint has set all generators to one state."""

    def work(group: ProcessGroup) -> None:
        torch.manual_seed(5)
        group.reseed(5, 10)
        batch = torch.arange(24).reshape(3, 8)
        share = group.share(batch, dim=1)
        assert torch.equal(share, batch[:, 4 * group.rank : 4 * group.rank + 4])
        assert torch.equal(group.all_gather(share, dim=1), batch)
        noise = na.NoisyHardTanh("nan")(torch.full((1000,), 3.0)).detach()
        torch.save((noise, torch.rand(1000), group.mean(torch.tensor(float(group.rank)))), folder / f"{group.rank}.pt")

    together(work)
    first, second = (torch.load(folder / f"{rank}.pt") for rank in range(RANKS))
    for mine, other in zip(first[:2], second[:2], strict=True):
        assert abs(torch.corrcoef(torch.stack([mine, other]))[0, 1]) < 0.15
    assert first[2] == second[2] == 0.5
    torch.manual_seed(5)
    na.NoisyHardTanh("nan")(torch.full((1000,), 3.0))
    assert torch.equal(torch.rand(1000), first[1])  # the first rank draws as a single process does


def noise_of_the_tasks_differs(runs: list[tuple[Small, str, bool]]) -> None:
    """Given the same share of a batch, the losses of the ranks differ only by noise and dropout."""

    def work(group: ProcessGroup) -> None:
        group.share = lambda batch, dim=0: batch.narrow(dim, 0, batch.shape[dim] // RANKS)
        for (experiment, changes, _), arm, differs in runs:
            torch.manual_seed(3)
            task: Any = experiment.start(experiment.effective(arm, "smoke", changes), 3, torch.device("cpu"))
            with torch.no_grad():
                for parameter in task.model.parameters():
                    parameter *= 30  # units without saturation have no noise
            task.spread(group)
            group.reseed(3, 0)
            task.update(0)
            first, second = group.all_gather((task._sums if experiment is EXECUTE else task.loss_sum)[None])
            assert first.isfinite().all()
            assert torch.equal(first, second) is not differs, (experiment.name, arm, first, second)

    together(work)


def uneven_batches_are_refused(runs: list[Small]) -> None:
    class Five(ProcessGroup):
        rank, size = 1, 5

    for experiment, changes, _ in runs:
        settings = experiment.effective(experiment.arms[0].name, "smoke", changes)
        task: Any = experiment.start(settings, 3, torch.device("cpu"))
        with pytest.raises(ValueError, match=rf"batch={settings.batch}: must be a multiple of the 5 devices"):
            task.spread(Five())


def killed_and_resumed_ends_the_same(folder: Path, small: Small, arm: str) -> None:
    def work(name: str) -> Callable[[ProcessGroup], None]:
        return lambda group: train(small, arm, folder / name, group)

    whole, killed = (folder_of(folder / name, small.experiment.name, "smoke", arm, 3) for name in ("whole", "killed"))
    together(work("whole"))
    together(work("killed"), kill_when=lambda: len(read_lines(killed / "metrics.jsonl")) >= 2)
    assert not (killed / "result.json").exists()
    together(work("killed"))
    assert len(read_lines(killed / "metrics.jsonl")) >= 3
    assert kept(killed) == kept(whole)


def finished_is_not_done_again(folder: Path) -> None:
    result = folder_of(folder / "killed", "unique", "smoke", "nan", 3) / "result.json"
    stamp = result.stat().st_mtime_ns
    together(lambda group: train(SMALL_UNIQUE, "nan", folder / "killed", group))  # known to all ranks
    assert result.stat().st_mtime_ns == stamp
    assert read_json(result)["devices"] == RANKS
    with pytest.raises(ValueError, match="devices is 2 there and None here"):
        run(Job("unique", "nan", "smoke", 3, folder / "killed", device="cpu", changes=SMALL_UNIQUE.changes))


def what_cannot_be_written_is_said_once(folder: Path) -> None:
    """By the first rank. The others are told, or they would print a traceback for a lost connection."""
    from noisyact_lab.cli import main

    (folder / "file").touch()
    command = ["run", "unique", "--arm", "nan", "--preset", "smoke", "--device", "cpu", "--out", str(folder / "file")]

    def work(group: ProcessGroup) -> None:
        with (folder / f"said-{group.rank}").open("w") as file:
            os.dup2(file.fileno(), sys.stderr.fileno())
        sys.argv = ["noisyact", *command]
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1

    together(work)
    said = [(folder / f"said-{rank}").read_text() for rank in range(RANKS)]
    assert "Not a directory; choose a place where a folder is or can be made" in said[0]
    assert said[1] == ""
    assert "Traceback" not in said[0]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    data = folder / "data"
    mnist_cases.made(data / "mnist")
    write_treebank(data / "ptb")
    flickr_cases.write(data / "flickr8k")
    (data / "packed").mkdir()
    packed_corpus().write(data / "packed" / PACKED)
    os.environ |= {"NOISYACT_DATA": str(data), "XDG_CACHE_HOME": str(folder / "cache")}
    for name in ("equal", "draws", "resumed", "unwritable"):
        (folder / name).mkdir()
    equals_one_process(
        folder / "equal",
        [
            (SMALL_UNIQUE, "hard"), (SMALL_MNIST, "tanh"), (WORDS, "reference"), (CHARACTERS, "hard"),
            (SMALL_TRANSLATE, "reference"), (SMALL_CAPTION, "reference"), (SMALL_EXECUTE, "reference"),
        ],
    )  # fmt: skip
    draws_differ(folder / "draws")
    noise_of_the_tasks_differs(
        [
            (WORDS, "reference", False), (WORDS, "nan", True), (WORDS_WITH_DROPOUT, "reference", True),
            (CHARACTERS, "hard", False), (CHARACTERS, "nani", True),
            (SMALL_TRANSLATE, "reference", False), (SMALL_TRANSLATE, "nah", True),
            (SMALL_CAPTION, "reference", False), (SMALL_CAPTION, "nah", True),
            (SMALL_EXECUTE, "reference", False), (SMALL_EXECUTE, "nan", True),
        ]
    )  # fmt: skip
    uneven_batches_are_refused(
        [SMALL_UNIQUE, SMALL_MNIST, WORDS, CHARACTERS, SMALL_TRANSLATE, SMALL_CAPTION, SMALL_EXECUTE]
    )
    killed_and_resumed_ends_the_same(folder / "resumed", SMALL_UNIQUE, "nan")
    killed_and_resumed_ends_the_same(folder / "resumed", WORDS_OFTEN, "nan")
    finished_is_not_done_again(folder / "resumed")
    what_cannot_be_written_is_said_once(folder / "unwritable")
    print("all as it should be")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
