"""CPU benchmark of resets: the time of a recurrent layer with a mask of resets against the same call without one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from noisyact.recurrent.layers import NoisyGRU, NoisyLSTM, NoisyRecurrent
from noisyact.text_table import text_table
from noisyact_lab.bench.recurrent import WrongResult
from noisyact_lab.bench.timing import least_times

__all__ = ["LAYERS", "SHAPES", "Row", "measure", "table"]

SHAPES = [(128, 16, 128), (128, 64, 512)]
"""The shapes (steps, batch, units). The input has as many features as there are units."""

LAYERS: list[tuple[str, Any, dict[str, Any]]] = [
    ("LSTM", NoisyLSTM, {"noise": "nah"}),
    ("GRU", NoisyGRU, {"noise": "nah"}),
    ("soft LSTM without noise", NoisyLSTM, {"noise": None, "hard": False}),
]
SHARE = 0.02
"""The share of steps at which a new sequence begins: sequences of 50 steps on average."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One layer and shape: the least milliseconds of forward and backward, and those with resets over those without."""

    layer: str
    shape: tuple[int, int, int]
    plain_ms: float
    resets_ms: float
    ratio: float


def measure(shapes: list[tuple[int, int, int]], seconds: float, threads: int) -> Iterator[Row | WrongResult]:
    """Measure every layer and shape, in turns with and without resets for about the given seconds each.

    A case is measured only if its output and gradients equal those of the reference.
    """
    for shape in shapes:
        for name, make, options in LAYERS:
            steps, batch, hidden = shape
            layer, x = make(hidden, hidden, backend="cpu", **options), torch.randn(steps, batch, hidden)
            reset = torch.rand(steps, batch) < SHARE
            try:
                _check(layer, x[:7, :7], torch.rand(7, min(batch, 7)) < 0.3)
            except AssertionError as error:
                yield WrongResult(f"{name} {shape}: not measured, its results are wrong: {error}")
                continue
            leaf, g = x.requires_grad_(), torch.randn_like(x)
            plain, resets = least_times([_both(layer, leaf, g, None), _both(layer, leaf, g, reset)], seconds, threads)
            yield Row(name, shape, plain * 1e3, resets * 1e3, resets / plain)


def _both(layer: NoisyRecurrent, x: Tensor, g: Tensor, reset: Tensor | None) -> Callable[[], object]:
    """A function that runs the layer forward and backward."""

    def run() -> None:
        layer.zero_grad()
        x.grad = None
        layer(x, reset=reset)[0].backward(g)

    return run


def _check(layer: NoisyRecurrent, x: Tensor, reset: Tensor) -> None:
    """Compare output and all gradients with the reference backend, for the same noise."""
    results = []
    for backend in (layer.backend, "reference"):
        layer.backend, kept = backend, layer.backend
        leaf = x.detach().requires_grad_()
        y = layer(leaf, reset=reset, seed=1)[0]
        results.append([y, *torch.autograd.grad(y.square().sum(), [leaf, *layer.parameters()])])
        layer.backend = kept
    for mine, right in zip(*results, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-3, atol=1e-4 * right.abs().max().clamp(min=1e-6).item())


def table(rows: list[Row], width: int | None = None) -> str:
    """Format the rows as a text table, in lines of at most `width` where one is given."""
    header = ("layer", "T, B, H", "fwd+bwd", "with resets", "ratio")
    cells = [
        (row.layer, ", ".join(map(str, row.shape)), f"{row.plain_ms:.2f} ms", f"{row.resets_ms:.2f} ms",
         f"{row.ratio:.3f}")
        for row in rows
    ]  # fmt: skip
    return text_table(header, cells, width=width)
