"""A character language model: an LSTM with noisy gates learns to write.

The text is the Penn Treebank if it is installed (`noisyact data fetch ptb`), and otherwise sentences from the small
grammar below. The noise is annealed. At the end the model writes a line.

Run: python examples/character_model.py [--updates N] [--noise nah] [--smoke]
"""

from __future__ import annotations

import argparse
import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import noisyact as na

GRAMMAR = {
    "line": ["the {noun} {verb} the {noun} .", "a {noun} {verb} a {noun} and the {noun} {verb} it ."],
    "noun": ["gate", "unit", "network", "gradient", "layer"],
    "verb": ["opens", "closes", "saturates", "follows", "frees"],
}


def text() -> str:
    """The training text of the Penn Treebank, or sentences of the grammar."""
    from noisyact_lab.data import locate

    try:
        return (locate.find("ptb") / "ptb.train.txt").read_text(encoding="utf-8")
    except FileNotFoundError:
        chosen = random.Random(0)
        lines = [chosen.choice(GRAMMAR["line"]) for _ in range(2000)]
        for word in ("noun", "verb"):
            while any(f"{{{word}}}" in line for line in lines):
                lines = [line.replace(f"{{{word}}}", chosen.choice(GRAMMAR[word]), 1) for line in lines]
        return "\n".join(lines)


class CharacterModel(nn.Module):
    """Embedding, noisy LSTM, logits."""

    def __init__(self, characters: int, units: int, noise: str | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, units)
        self.lstm = na.NoisyLSTM(units, units, noise=noise)
        self.output = nn.Linear(units, characters)

    def forward(self, numbers: Tensor, state: tuple[Tensor, Tensor] | None = None):
        """Characters [steps, batch] to logits [steps, batch, characters], and the state."""
        hidden, state = self.lstm(self.embedding(numbers), state)
        return self.output(hidden), state


@torch.no_grad()
def write(model: CharacterModel, characters: list[str], length: int) -> str:
    """Sample a line from the trained model, without noise."""
    model.eval()
    number, state, line = torch.tensor([[characters.index("\n")]]), None, ""
    for _ in range(length):
        logits, state = model(number, state)
        number = torch.multinomial(logits[-1].softmax(dim=1), 1)
        line += characters[int(number)]
    return line


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="Train a character language model with noisy gates.")
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--units", type=int, default=128)
    parser.add_argument("--noise", default="nah", help="a scheme, such as nah or nan:c=1.0")
    parser.add_argument("--smoke", action="store_true", help="a small size, in seconds")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.updates, options.units = 60, 32

    torch.manual_seed(0)
    written = text()
    characters = sorted(set(written))
    place = {character: i for i, character in enumerate(characters)}
    numbers = torch.tensor([place[character] for character in written[:1_000_000]])
    model = CharacterModel(len(characters), options.units, options.noise)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    scheduler = na.NoiseScheduler(model, na.anneal.linear(2.0, 0.5, options.updates))
    bits = []
    for update in range(options.updates):
        starts = torch.randint(len(numbers) - 51, (32,))
        batch = torch.stack([numbers[i : i + 51] for i in starts], dim=1)
        logits, _ = model(batch[:-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        bits.append(loss.item() / math.log(2))
        if update % max(1, options.updates // 10) == 0:
            print(f"update {update}: {bits[-1]:.2f} bits a character, c = {scheduler.value:.2f}")
    print(na.saturation(model, numbers[:1000].view(50, 20), loss=lambda output: output[0].square().mean()))
    print(write(model, characters, 80))
    return {"first": bits[0], "last": sum(bits[-10:]) / 10}


if __name__ == "__main__":
    main()
