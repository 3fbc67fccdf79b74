"""CPU benchmark of NoisyLSTM and NoisyGRU against nn.LSTM and nn.GRU: time of each pass, and peak memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from noisyact.recurrent.layers import NoisyGRU, NoisyLSTM, NoisyRecurrent
from noisyact.text_table import text_table
from noisyact_lab.bench.memory import peak_megabytes
from noisyact_lab.bench.timing import median_times

__all__ = ["SHAPES", "Row", "WrongResult", "forward_and_backward", "inference", "measure", "table"]

SHAPES = [(20, 20, 200, 2), (35, 20, 650, 2), (26, 128, 64, 1)]
"""The shapes (steps, batch, units, layers). The input has as many features as there are units."""

PEERS: list[tuple[str, Any, Any]] = [("LSTM", NoisyLSTM, nn.LSTM), ("GRU", NoisyGRU, nn.GRU)]


@dataclasses.dataclass(frozen=True)
class Row:
    """One layer and shape. Times are medians in milliseconds. A ratio is ours over torch's."""

    layer: str
    shape: tuple[int, int, int, int]
    forward_ms: float
    forward_ratio: float
    both_ms: float
    torch_both_ms: float
    both_ratio: float
    inference_ms: float
    torch_inference_ms: float
    inference_ratio: float
    memory_ratio: float


class WrongResult(Exception):
    """The results of a case are wrong, so it is not measured."""


def measure(
    shapes: list[tuple[int, int, int, int]], repeats: int, threads: int, block: int = 5
) -> Iterator[Row | WrongResult]:
    """Measure every layer and shape with half-normal noise in all nonlinearities and torch's initial weights."""
    for shape in shapes:
        for name, ours, theirs in PEERS:
            steps, batch, hidden, layers = shape
            noisy, plain = ours(hidden, hidden, layers, noise="nah"), theirs(hidden, hidden, layers)
            x = torch.randn(steps, batch, hidden)
            try:
                _check(noisy, x[:3, :7])
            except AssertionError as error:
                yield WrongResult(f"{name} {shape}: not measured, its results are wrong: {error}")
                continue
            yield _time(name, shape, noisy, plain, x, repeats, threads, block)


def _check(layer: NoisyRecurrent, x: Tensor) -> None:
    """Compare output and all gradients with the reference backend, for the same noise."""
    results = []
    for backend in (layer.backend, "reference"):
        layer.backend, kept = backend, layer.backend
        torch.manual_seed(1)
        leaf = x.detach().requires_grad_()
        y = layer(leaf)[0]
        gradients = torch.autograd.grad(y.square().sum(), [leaf, *layer.parameters()])
        results.append([y.detach(), *gradients])
        layer.backend = kept
    for mine, right in zip(*results, strict=True):
        scale = right.abs().max().clamp(min=1e-6).item()
        torch.testing.assert_close(mine, right, rtol=1e-3, atol=1e-4 * scale)


def _time(
    name: str,
    shape: tuple[int, int, int, int],
    noisy: nn.Module,
    plain: nn.Module,
    x: Tensor,
    repeats: int,
    threads: int,
    block: int,
) -> Row:
    leaf, g = x.detach().requires_grad_(), torch.randn_like(x)

    calls: dict[str, Callable[[nn.Module], Callable[[], object]]] = {
        "forward": lambda layer: lambda: layer(leaf),
        "both": lambda layer: forward_and_backward(layer, leaf, g),
        "inference": lambda layer: inference(layer, x),
    }
    times = {}
    for what, make in calls.items():
        for layer in (noisy, plain):
            layer.train(what != "inference")
        times[what] = median_times([make(noisy), make(plain)], repeats, block)
    memory = [peak_megabytes(f"{prefix}{name}", *shape, threads) for prefix in ("Noisy", "")]
    return Row(
        layer=name,
        shape=shape,
        forward_ms=times["forward"][0] * 1e3,
        forward_ratio=times["forward"][0] / times["forward"][1],
        both_ms=times["both"][0] * 1e3,
        torch_both_ms=times["both"][1] * 1e3,
        both_ratio=times["both"][0] / times["both"][1],
        inference_ms=times["inference"][0] * 1e3,
        torch_inference_ms=times["inference"][1] * 1e3,
        inference_ratio=times["inference"][0] / times["inference"][1],
        memory_ratio=memory[0] / memory[1],
    )


def forward_and_backward(layer: nn.Module, x: Tensor, g: Tensor) -> Callable[[], object]:
    """Return a function that runs a layer forward and backward, where g is the gradient of the output."""

    def run() -> None:
        layer.zero_grad()
        x.grad = None
        layer(x)[0].backward(g)

    return run


def inference(layer: nn.Module, x: Tensor) -> Callable[[], object]:
    """Return a function that runs a layer forward without recording gradients."""

    def run() -> None:
        with torch.no_grad():
            layer(x)

    return run


def table(rows: list[Row], width: int | None = None) -> str:
    """Format the rows as a text table, in lines of at most `width` where one is given."""
    header = (
        "layer", "T, B, H, layers", "fwd ratio", "fwd+bwd", "torch", "ratio", "inference", "torch", "ratio", "memory"
    )  # fmt: skip
    cells = [
        (
            row.layer, ", ".join(map(str, row.shape)), f"{row.forward_ratio:.2f}", f"{row.both_ms:.2f} ms",
            f"{row.torch_both_ms:.2f} ms", f"{row.both_ratio:.2f}", f"{row.inference_ms:.2f} ms",
            f"{row.torch_inference_ms:.2f} ms", f"{row.inference_ratio:.2f}", f"{row.memory_ratio:.2f}",
        )
        for row in rows
    ]  # fmt: skip
    return text_table(header, cells, width, kept=(4, 5, 7, 8), repeated=2)
