"""The paper's claim in one example: a network that starts saturated cannot learn, and with noise it can.

What of the noise frees it is asked too: its mean or its randomness, and would a leak do the same?

A small network learns the sign of x1 * x2. All its hidden hard-tanh units start at |x| near 3, three times their
threshold, where the gradient of the hard tanh is exactly zero. Nine arms are trained with the same data, initial
weights and number of updates, for several seeds. Where there is noise alpha is 1, so there is no fixed leak:

    hard tanh       no noise: the first layer gets no gradient and never changes
    leak, 1.15      no noise, and the leak of the paper's experiments, alpha = 1.15, whose slope is negative
    leak, 0.95      no noise, and a leak with a positive slope
    NAN             normal noise of learned strength at the output: its gradient has a random sign
    NAH             half-normal noise of learned strength at the output: its gradient leads back to the linear part
    NAH, mean       the mean of that noise without its randomness: a leak of learned strength
    NAH, centred    the randomness of that noise without its mean
    NANIS           normal noise at the input of saturated units
    NANIS, mean     the mean of the hard tanh over that noise, without randomness: it is smooth where it saturates

The test errors of every seed, with settings, versions and commit, are written to saturated_start.json beside the
picture. results/saturated_start.json in the repository is such a record.

Run: python examples/saturated_start.py [--out DIR] [--seeds N] [--updates N]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn

import noisyact as na
from noisyact_lab.engine.folder.files import write_json
from noisyact_lab.engine.folder.records import signature

ARMS: dict[str, na.Scheme | None] = {
    "hard tanh": None,
    "leak, 1.15": na.NAN(c=0.0, alpha=1.15),
    "leak, 0.95": na.NAN(c=0.0, alpha=0.95),
    "NAN": na.NAN(c=0.5, alpha=1.0),
    "NAH": na.NAH(c=0.5, alpha=1.0),
    "NAH, mean": na.NAH(c=0.5, alpha=1.0, draw="mean"),
    "NAH, centred": na.NAH(c=0.5, alpha=1.0, draw="centred"),
    "NANIS": na.NANIS(sigma=0.5),
    "NANIS, mean": na.NANIS(sigma=0.5, draw="mean"),
}
COLOURS = {
    "hard tanh": "#555555", "leak, 1.15": "#845b53", "leak, 0.95": "#d684bd", "NAN": "#3274a1", "NAH": "#c03d3e",
    "NAH, mean": "#e1812c", "NAH, centred": "#9372b2", "NANIS": "#3a923a", "NANIS, mean": "#a9a62b",
}  # fmt: skip
RECORD = "saturated_start.json"
HIDDEN, BATCH, LEARNING_RATE, START, EVALUATE_EVERY = 32, 64, 0.01, 3.0, 50


def sample(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw points in a square and label them by whether the signs of their coordinates agree."""
    x = torch.rand(count, 2, generator=generator) * 2 - 1
    return x, (x[:, 0] * x[:, 1] > 0).float()


def saturated_network(noise: na.Scheme | None) -> nn.Sequential:
    """Create a network with two inputs, a saturated hidden layer and one output."""
    first = nn.Linear(2, HIDDEN)
    nn.init.uniform_(first.weight, -1.0, 1.0)
    with torch.no_grad():
        first.bias.copy_(START * torch.randn(HIDDEN).sign())
    last = nn.Linear(HIDDEN, 1)  # created before the activation, so that every arm has the same initial weights
    hidden = nn.Hardtanh() if noise is None else na.NoisyHardTanh(noise, num_parameters=HIDDEN)
    return nn.Sequential(first, hidden, last)


def train(noise: na.Scheme | None, seed: int, updates: int, tick) -> list[tuple[int, float, float]]:
    """Train once and return (update, test error, fraction of saturated hidden activations) at each evaluation."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    x, y = sample(1024, generator)
    x_test, y_test = sample(4096, generator)
    model = saturated_network(noise)
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    curve = []
    for update in range(updates + 1):
        if update % EVALUATE_EVERY == 0:
            model.eval()
            with torch.no_grad():
                wrong = (model(x_test).squeeze(1) > 0) != y_test.bool()
                saturated = na.HARD_TANH.saturated(model[0](x_test))
            curve.append((update, wrong.float().mean().item(), saturated.float().mean().item()))
            model.train()
            tick(0 if update == 0 else EVALUATE_EVERY)
        batch = torch.randint(len(x), (BATCH,), generator=generator)
        loss = F.binary_cross_entropy_with_logits(model(x[batch]).squeeze(1), y[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return curve


def draw(curves: dict[str, list[list[tuple[int, float, float]]]], path: Path, checksum: str) -> None:
    """Plot both curves of every arm: the mean over seeds, and a band from the worst to the best seed.

    The picture carries the checksum of the record's arms, which tells whether picture and record belong together.
    """
    figure, panels = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
    titles = ("test error", "share of saturated hidden activations")
    for arm, runs in curves.items():
        updates = [point[0] for point in runs[0]]
        for panel, column in zip(panels, (1, 2), strict=True):
            values = list(zip(*[[point[column] for point in run] for run in runs], strict=True))
            panel.plot(updates, [statistics.fmean(v) for v in values], label=arm, color=COLOURS[arm], linewidth=2)
            panel.fill_between(updates, *zip(*[(min(v), max(v)) for v in values], strict=True), color=COLOURS[arm],
                               alpha=0.15, linewidth=0)  # fmt: skip
    for panel, title in zip(panels, titles, strict=True):
        panel.set(title=title, xlabel="updates", ylim=(0.75, 1.01) if "share" in title else (0, 0.6))
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    count = len(next(iter(curves.values())))
    figure.suptitle(f"A network that starts saturated ({count} seeds: mean, and worst to best)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Record": checksum})


def record(curves: dict[str, list[list[tuple[int, float, float]]]], updates: int) -> dict[str, Any]:
    """What was run and what came out, for a program: the test error of each seed after the last update, in per cent."""
    schemes = {arm: None if scheme is None else str(scheme) for arm, scheme in ARMS.items()}
    arms = [
        {"name": arm, "scheme": schemes[arm], "test_error": [100 * run[-1][1] for run in runs]}
        for arm, runs in curves.items()
    ]
    settings = {
        "updates": updates, "hidden": HIDDEN, "batch": BATCH, "learning_rate": LEARNING_RATE, "start": START
    }  # fmt: skip
    return {"settings": settings, "arms": arms, "signature": signature({"device": "cpu"})}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a network that starts saturated, with and without noise.")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for the picture and the record")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=2000)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the network is too small to benefit from more threads
    console = Console()
    columns = (TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TimeRemainingColumn())  # fmt: skip
    curves = {}
    with Progress(*columns, console=console) as progress:
        for arm, noise in ARMS.items():
            task = progress.add_task(arm, total=options.seeds * options.updates)
            curves[arm] = [
                train(noise, seed, options.updates, lambda n, task=task: progress.advance(task, n))
                for seed in range(options.seeds)
            ]
    table = Table("arm", "test error, each seed", "mean", title=f"after {options.updates} updates")
    for arm, runs in curves.items():
        errors = [run[-1][1] for run in runs]
        table.add_row(arm, "  ".join(f"{e:.1%}" for e in errors), f"{statistics.fmean(errors):.1%}")
    console.print(table)
    picture = options.out / "saturated_start.png"
    found = record(curves, options.updates)
    draw(curves, picture, hashlib.sha256(json.dumps(found["arms"]).encode()).hexdigest())
    console.print(f"picture: {picture.resolve()}", soft_wrap=True)
    numbers = options.out / RECORD
    write_json(numbers, found)
    console.print(f"record: {numbers.resolve()}", soft_wrap=True)


if __name__ == "__main__":
    main()
