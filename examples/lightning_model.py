"""A noisy GRU with PyTorch Lightning: the callback anneals the noise and logs how saturated each gate is.

The task: a sequence of +1 and -1 with noise, and whether its sum is positive.

Needs `pip install '.[lightning]'`.

Run: python examples/lightning_model.py [--steps N] [--smoke]
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import noisyact as na
from noisyact.integrations.lightning import NoiseAnnealing


class Summing(LightningModule):
    """Reads a sequence and says whether its sum is positive."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.gru, self.output = na.NoisyGRU(1, units, noise="nah", batch_first=True), nn.Linear(units, 1)
        self.losses: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        """Sequences [batch, steps, 1] to logits [batch]."""
        return self.output(self.gru(x)[0][:, -1]).squeeze(1)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """The loss of a batch."""
        x, y = batch
        loss = F.binary_cross_entropy_with_logits(self(x), y)
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam for the weights and every p."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="Train a noisy GRU with Lightning.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--smoke", action="store_true", help="a small size, in seconds")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.steps = 40

    torch.manual_seed(0)
    x = torch.randn(2048, 15, 1).sign() + 0.1 * torch.randn(2048, 15, 1)
    data = DataLoader(TensorDataset(x, (x.sum(dim=(1, 2)) > 0).float()), batch_size=64)
    model = Summing(units=32)
    trainer = Trainer(
        max_steps=options.steps, callbacks=[NoiseAnnealing(na.anneal.linear(2.0, 0.5, options.steps))],
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, data)
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    print("\n".join(f"{name}: {value:.3g}" for name, value in logged.items()))
    return {"first": model.losses[0], "last": sum(model.losses[-5:]) / 5, **logged}


if __name__ == "__main__":
    main()
