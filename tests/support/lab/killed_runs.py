"""Runs that are killed at chosen and at random moments until they are finished, compared with one that was not.

python tests/support/lab/killed_runs.py FOLDER

A process of its own, since each run is a fork of it, which costs no import.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from run_cases import kept

from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.run import run

CHANGES = {"updates": 12, "evaluate_every": 2, "test_sequences": 40, "hidden": 4, "batch": 4, "length": 6}


def train(out: Path, die_at: int | None = None) -> None:
    """Do or resume the run; die at one of its file operations, so that all stages of a save are met."""
    count = 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal count
        if arguments and str(arguments[0]).startswith(str(out)):
            count += 1
            if count == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    run(Job("unique", "nan-annealed", "smoke", 3, out, device="cpu", changes=CHANGES))


def in_fork(out: Path, die_at: int | None = None, after: float | None = None) -> bool:
    """Whether it came to its end."""
    child = os.fork()
    if child == 0:
        try:
            train(out, die_at)
        except BaseException as error:
            print(f"{out.name}: {error!r}", flush=True)
            os._exit(1)
        os._exit(0)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit(f"{out.name}: a run failed")
    return os.WIFEXITED(status)


def left(out: Path) -> dict[str, bytes]:
    return kept(folder_of(out, "unique", "smoke", "nan-annealed", 3))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    drawn = random.Random(5)
    # This run is not in a fork, so that all forks share what torch imports at first use.
    run(Job("unique", "nan-annealed", "smoke", 3, folder / "whole", device="cpu", changes=CHANGES))
    start = time.monotonic()
    assert in_fork(folder / "again")
    seconds = time.monotonic() - start
    expected = left(folder / "whole")
    assert len(expected) == 7, list(expected)
    assert left(folder / "again") == expected
    kills = 0
    for case in range(15):
        out = folder / f"killed-{case}"
        while True:
            # Every third kill is by the clock, wherever the run then is.
            by_clock = drawn.random() < 1 / 3
            done = in_fork(
                out,
                die_at=None if by_clock else drawn.randrange(1, 60),
                after=drawn.uniform(0, 0.8 * seconds) if by_clock else None,
            )
            if done:
                break
            kills += 1
            if kills % 4 == 0:  # ensures progress, or a run killed early could take forever
                in_fork(out, die_at=150)
        assert left(out) == expected, out
    print(f"{kills} kills, all ended alike")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
