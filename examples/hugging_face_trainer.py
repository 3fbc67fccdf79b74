"""A noisy LSTM with the Hugging Face Trainer: the callback anneals the noise by optimiser steps.

The task: a sequence of letters, and whether the letter 0 was among its first ones. No model or data is downloaded.

Needs `pip install '.[transformers]'`.

Run: python examples/hugging_face_trainer.py [--steps N] [--smoke]
"""

from __future__ import annotations

import argparse
import tempfile

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import noisyact as na
from noisyact.integrations.transformers import NoiseAnnealingCallback


class Remembering(nn.Module):
    """Reads letters and says whether 0 was among the first ones. The Trainer needs a dictionary with the loss."""

    def __init__(self, letters: int, units: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, units)
        self.lstm = na.NoisyLSTM(units, units, noise="nah", batch_first=True)
        self.output = nn.Linear(units, 2)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Letters [batch, steps] to logits [batch, 2], with the loss where labels are given."""
        logits = self.output(self.lstm(self.embedding(input_ids))[0][:, -1])
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="Train a noisy LSTM with the Hugging Face Trainer.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--smoke", action="store_true", help="a small size, in seconds")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.steps = 40

    torch.manual_seed(0)
    letters = torch.randint(6, (2048, 10))
    labels = (letters[:, :4] == 0).any(dim=1).long()
    data = [{"input_ids": x, "labels": y} for x, y in zip(letters, labels, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder, max_steps=options.steps, per_device_train_batch_size=64, learning_rate=0.01, report_to=[],
            logging_steps=5, save_strategy="no", use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        schedule = na.anneal.linear(2.0, 0.5, options.steps)
        trainer = Trainer(
            Remembering(letters=6, units=32), settings, train_dataset=data, callbacks=[NoiseAnnealingCallback(schedule)]
        )
        trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    scales = [line["noise/scale"] for line in trainer.state.log_history if "noise/scale" in line]
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}, c {scales[0]:.2f} to {scales[-1]:.2f}")
    return {"first": float(losses[0]), "last": float(losses[-1]), "scale": float(scales[-1])}


if __name__ == "__main__":
    main()
