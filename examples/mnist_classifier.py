"""A classifier of digits: an ordinary network is made noisy, trained with annealed noise, and made ordinary again.

The images are MNIST's if they are installed (`noisyact data fetch mnist`). Otherwise this file draws digits: seven
segments on 28 x 28 pixels, shifted and blurred by noise.

Run: python examples/mnist_classifier.py [--epochs N] [--noise nah] [--smoke]
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import noisyact as na

SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
PLACES = {  # the rows and columns of each segment
    "a": (slice(4, 6), slice(9, 19)), "b": (slice(4, 14), slice(17, 19)), "c": (slice(14, 24), slice(17, 19)),
    "d": (slice(22, 24), slice(9, 19)), "e": (slice(14, 24), slice(9, 11)), "f": (slice(4, 14), slice(9, 11)),
    "g": (slice(13, 15), slice(9, 19)),
}  # fmt: skip


def drawn_digits(count: int) -> tuple[Tensor, Tensor]:
    """Images [count, 784] of digits made of segments, and their labels."""
    patterns = torch.zeros(10, 28, 28)
    for digit, segments in enumerate(SEGMENTS):
        for segment in segments:
            patterns[digit][PLACES[segment]] = 1.0
    labels = torch.randint(10, (count,))
    shifts = torch.randint(-3, 4, (count, 2)).tolist()
    images = [patterns[label].roll(shift, (0, 1)) for label, shift in zip(labels, shifts, strict=True)]
    return (torch.stack(images) + 0.3 * torch.randn(count, 28, 28)).flatten(1), labels


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels to train with, and to test with."""
    from noisyact_lab.experiments.mnist import images_and_labels

    try:
        (images, labels), (test_images, test_labels) = images_and_labels("train"), images_and_labels("t10k")
        return images / 255, labels, test_images / 255, test_labels
    except FileNotFoundError:
        return *drawn_digits(4000), *drawn_digits(1000)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="Train a classifier of digits with noisy units.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--noise", default="nah:alpha=1.0", help="a scheme, such as nah or nan:c=1.0")
    parser.add_argument("--smoke", action="store_true", help="a small size, in seconds")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    images, labels, test_images, test_labels = data()
    if options.smoke:
        options.epochs, images, labels = 2, images[:3000], labels[:3000]
    model = nn.Sequential(nn.Linear(784, 128), nn.Tanh(), nn.Linear(128, 10))
    model = na.noisify(model, options.noise)  # the tanh becomes a noisy hard tanh with its own p
    updates = options.epochs * (len(images) // 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    scheduler = na.NoiseScheduler(model, na.anneal.cosine(3.0, 0.5, max(1, updates)))
    wrong = 1.0
    for epoch in range(options.epochs):
        model.train()
        for batch in torch.randperm(len(images)).split(64)[: len(images) // 64]:
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        model.eval()  # the noise is replaced by its expectation
        with torch.no_grad():
            wrong = (model(test_images).argmax(dim=1) != test_labels).float().mean().item()
        print(f"epoch {epoch + 1}: {wrong:.1%} wrong, c = {scheduler.value:.2f}")
    print(na.saturation(model, test_images[:256], loss=lambda output: output.logsumexp(dim=1).mean()))
    plain = na.denoisify(model)
    print(plain)
    return {"wrong": wrong}


if __name__ == "__main__":
    main()
