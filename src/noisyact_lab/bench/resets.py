"""Benchmark of resets: the time of a recurrent layer with a mask of resets against the same call without one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from noisyact.recurrent.layers import NoisyGRU, NoisyLSTM, NoisyRecurrent
from noisyact.text_table import text_table
from noisyact_lab.bench.recurrent import WrongResult
from noisyact_lab.bench.recurrent_gpu import exact_products, graph, least_ms
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
    """One layer and shape: the least milliseconds of forward and backward, and those with resets over those
    without. The same as CUDA graphs, which are None on a CPU.
    """

    layer: str
    shape: tuple[int, int, int]
    plain_ms: float
    resets_ms: float
    ratio: float
    plain_graph_ms: float | None = None
    resets_graph_ms: float | None = None
    graph_ratio: float | None = None


def measure(
    shapes: list[tuple[int, int, int]], repeats: float, threads: int, device: str = "cpu"
) -> Iterator[Row | WrongResult]:
    """Measure every layer and shape, in turns with and without resets.

    A case is measured only if its output and gradients equal those of the reference.

    Args:
        repeats: on a CPU about how many seconds to measure a case, on a GPU the number of turns.
        threads: the number of CPU threads.
    """
    on_cpu = torch.device(device).type == "cpu"
    for shape in shapes:
        for name, make, options in LAYERS:
            steps, batch, hidden = shape
            layer = make(hidden, hidden, backend="cpu" if on_cpu else "triton", device=device, **options)
            x, reset = torch.randn(steps, batch, hidden), (torch.rand(steps, batch) < SHARE).to(device)
            x = x.to(device)
            try:
                _check(layer, x[:7], (torch.rand(x[:7].shape[:2]) < 0.3).to(device))
            except AssertionError as error:
                yield WrongResult(f"{name} {shape}: not measured, its results are wrong: {error}")
                continue
            leaf, g = x.requires_grad_(), torch.randn_like(x)
            both = [_both(layer, leaf, g, None), _both(layer, leaf, g, reset)]
            plain, resets = _times_ms(both, repeats, threads, on_cpu)
            if on_cpu:
                yield Row(name, shape, plain, resets, resets / plain)
                continue
            plain_graph, resets_graph = least_ms([graph(run) for run in both], int(repeats))
            ratios = resets / plain, plain_graph, resets_graph, resets_graph / plain_graph
            yield Row(name, shape, plain, resets, *ratios)


def _times_ms(functions: list[Callable[[], object]], repeats: float, threads: int, on_cpu: bool) -> list[float]:
    if on_cpu:
        return [seconds * 1e3 for seconds in least_times(functions, repeats, threads)]
    return least_ms(functions, int(repeats))


def _both(layer: NoisyRecurrent, x: Tensor, g: Tensor, reset: Tensor | None) -> Callable[[], object]:
    """A function that runs the layer forward and backward."""

    def run() -> None:
        layer.zero_grad()
        x.grad = None
        layer(x, reset=reset)[0].backward(g)

    return run


def _check(layer: NoisyRecurrent, x: Tensor, reset: Tensor) -> None:
    """Compare output and all gradients with the reference backend, for the same noise, by the norm of the difference.

    Rounding moves a few values across a kink, where the derivative jumps, so the bound of gradients is wide.
    """
    results = []
    for backend in (layer.backend, "reference"):
        layer.backend, kept = backend, layer.backend
        leaf = x.detach().requires_grad_()
        with exact_products():
            y = layer(leaf, reset=reset, seed=1)[0]
            results.append([y, *torch.autograd.grad(y.square().sum(), [leaf, *layer.parameters()])])
        layer.backend = kept
    for index, (mine, right) in enumerate(zip(*results, strict=True)):
        off, bound = ((mine - right).norm() / right.norm().clamp(min=1e-6)).item(), 5e-3 if index else 1e-4
        if not off <= bound:
            raise AssertionError(f"result {index} is off by {off:.2g} of its norm, allowed {bound:.2g}")


def table(rows: list[Row], width: int | None = None) -> str:
    """Format the rows as a text table, in lines of at most `width` where one is given."""
    on_gpu = any(row.graph_ratio is not None for row in rows)
    header = ["layer", "T, B, H", "fwd+bwd", "with resets", "ratio"]
    header += ["as a graph", "with resets", "ratio"] if on_gpu else []
    cells = []
    for row in rows:
        cell = [row.layer, ", ".join(map(str, row.shape)), f"{row.plain_ms:.2f} ms", f"{row.resets_ms:.2f} ms",
                f"{row.ratio:.3f}"]  # fmt: skip
        if row.graph_ratio is not None:
            cell += [f"{row.plain_graph_ms:.2f} ms", f"{row.resets_graph_ms:.2f} ms", f"{row.graph_ratio:.3f}"]
        cells.append(cell)
    return text_table(header, cells, width=width)
