"""The paper's claim in one example: a network that starts saturated cannot learn without noise, but can with it.

A small network learns the sign of x1 * x2. All its hidden hard-tanh units start at |x| near 3, three times their
threshold, where the gradient of the hard tanh is exactly zero. Six arms are trained with the same data, initial
weights and number of updates, for several seeds. alpha is 1, so there is no fixed leak:

    hard tanh       no noise: the first layer gets no gradient and never changes
    NAN             normal noise of learned strength at the output: its gradient has a random sign
    NAH             half-normal noise of learned strength at the output: its gradient leads back to the linear part
    NAH, mean       the mean of that noise without its randomness: a leak of learned strength
    NAH, centred    the randomness of that noise without its mean
    NANIS           normal noise at the input of saturated units

Run: python examples/saturated_start.py [--out DIR] [--seeds N] [--updates N]
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

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

ARMS: dict[str, na.Scheme | None] = {
    "hard tanh": None,
    "NAN": na.NAN(c=0.5, alpha=1.0),
    "NAH": na.NAH(c=0.5, alpha=1.0),
    "NAH, mean": na.NAH(c=0.5, alpha=1.0, draw="mean"),
    "NAH, centred": na.NAH(c=0.5, alpha=1.0, draw="centred"),
    "NANIS": na.NANIS(sigma=0.5),
}
COLOURS = {
    "hard tanh": "#555555", "NAN": "#3274a1", "NAH": "#c03d3e", "NAH, mean": "#e1812c", "NAH, centred": "#9372b2",
    "NANIS": "#3a923a",
}  # fmt: skip
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


def draw(curves: dict[str, list[list[tuple[int, float, float]]]], path: Path) -> None:
    """Plot both curves of every arm: the mean over seeds, and a band from the worst to the best seed."""
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
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
    panels[1].legend(frameon=False, loc="lower left")
    count = len(next(iter(curves.values())))
    figure.suptitle(f"A network that starts saturated ({count} seeds: mean, and worst to best)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a network that starts saturated, with and without noise.")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for the picture")
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
    draw(curves, picture)
    console.print(f"picture: {picture.resolve()}", soft_wrap=True)


if __name__ == "__main__":
    main()
