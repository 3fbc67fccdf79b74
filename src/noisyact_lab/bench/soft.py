"""CPU benchmark of soft layers without noise on noisyact's kernels against nn.LSTM, nn.GRU and nn.RNN, at drawn shapes.

The rule of :mod:`noisyact.recurrent.routing` follows from its ratios.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from noisyact.recurrent.layers import NoisyGRU, NoisyLSTM, NoisyRNN
from noisyact.text_table import text_table
from noisyact_lab.bench.recurrent import WrongResult, forward_and_backward, inference
from noisyact_lab.bench.timing import least_times

__all__ = ["Row", "drawn_shapes", "measure", "table"]

Shape = tuple[int, int, int, int]
PEERS: list[tuple[str, Any, Any]] = [("LSTM", NoisyLSTM, nn.LSTM), ("GRU", NoisyGRU, nn.GRU), ("RNN", NoisyRNN, nn.RNN)]
_LARGEST = 2e10
"""The largest number of multiplications in a forward pass; more would take seconds for each call."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One layer and shape. Times are minima in milliseconds. A ratio is ours over torch's."""

    layer: str
    shape: Shape
    both_ms: float
    torch_both_ms: float
    both_ratio: float
    inference_ms: float
    torch_inference_ms: float
    inference_ratio: float


def drawn_shapes(count: int, seed: int = 0) -> list[Shape]:
    """Draw shapes (steps, batch, units, layers) with 1 to 200 steps, 1 to 512 rows, 8 to 1,024 units and 1 to 3 layers.

    The logarithms of the sizes are uniform. Shapes that would take seconds for each call are drawn again.

    >>> drawn_shapes(2)
    [(88, 113, 62, 2), (169, 9, 605, 1)]
    """
    generator, shapes = random.Random(seed), []
    while len(shapes) < count:
        steps, batch, hidden = (
            round(math.exp(generator.uniform(math.log(low), math.log(high))))
            for low, high in ((1, 200), (1, 512), (8, 1024))
        )
        layers = generator.randint(1, 3)
        if 8 * steps * batch * hidden * hidden * layers <= _LARGEST:
            shapes.append((steps, batch, hidden, layers))
    return shapes


def measure(shapes: list[Shape], repeats: int) -> Iterator[Row | WrongResult]:
    """Measure every layer and shape with torch's initial weights."""
    for shape in shapes:
        steps, batch, hidden, layers = shape
        x = torch.randn(steps, batch, hidden)
        for name, ours, theirs in PEERS:
            plain = theirs(hidden, hidden, layers)
            fast = ours(hidden, hidden, layers, noise=None, hard=False, backend="cpu")
            fast.load_state_dict(plain.state_dict())
            try:
                _check(fast, plain, x[:3, :7])
            except AssertionError as error:
                yield WrongResult(f"{name} {shape}: not measured, its results are wrong: {error}")
                continue
            yield _time(name, shape, fast, plain, x, repeats)


def _check(fast: nn.Module, plain: nn.Module, x: Tensor) -> None:
    """Compare output and all gradients with torch's layer."""
    results = []
    for layer in (fast, plain):
        leaf = x.detach().requires_grad_()
        y = layer(leaf)[0]
        results.append([y.detach(), *torch.autograd.grad(y.square().sum(), [leaf, *layer.parameters()])])
    for mine, right in zip(*results, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-3, atol=1e-4 * right.abs().max().clamp(min=1e-6).item())


def _time(name: str, shape: Shape, fast: nn.Module, plain: nn.Module, x: Tensor, repeats: int) -> Row:
    leaf, g = x.detach().requires_grad_(), torch.randn_like(x)
    both = least_times([forward_and_backward(layer, leaf, g) for layer in (fast, plain)], repeats)
    without = least_times([inference(layer.eval(), x) for layer in (fast, plain)], repeats)
    return Row(
        name, shape, both[0] * 1e3, both[1] * 1e3, both[0] / both[1], without[0] * 1e3, without[1] * 1e3,
        without[0] / without[1],
    )  # fmt: skip


def table(rows: list[Row]) -> str:
    """Format the rows as a text table."""
    header = "layer", "T, B, H, layers", "fwd+bwd", "torch", "ratio", "inference", "torch", "ratio"
    cells = [
        (
            row.layer, ", ".join(map(str, row.shape)), f"{row.both_ms:.2f} ms", f"{row.torch_both_ms:.2f} ms",
            f"{row.both_ratio:.2f}", f"{row.inference_ms:.2f} ms", f"{row.torch_inference_ms:.2f} ms",
            f"{row.inference_ratio:.2f}",
        )
        for row in rows
    ]  # fmt: skip
    return text_table(header, cells)
