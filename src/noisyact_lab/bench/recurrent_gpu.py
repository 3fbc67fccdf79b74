"""GPU benchmark of NoisyLSTM and NoisyGRU against nn.LSTM and nn.GRU (cuDNN), in eager mode and as CUDA graphs."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from noisyact.recurrent.layers import NoisyRecurrent
from noisyact.text_table import text_table
from noisyact_lab.bench.recurrent import PEERS, WrongResult, forward_and_backward, inference
from noisyact_lab.gpu.tf32 import tf32_products

__all__ = ["CASES", "Row", "exact_products", "graph", "least_ms", "measure", "median_ms", "peak_mib", "table"]

_SHAPES = [(20, 20, 200, 2), (35, 20, 650, 2), (35, 20, 1500, 2), (200, 64, 1024, 1)]
CASES: list[tuple[tuple[int, int, int, int], torch.dtype]] = [
    *((shape, dtype) for shape in _SHAPES for dtype in (torch.float32, torch.bfloat16)),
    ((200, 64, 768, 1), torch.float16),  # cuDNN has a persistent kernel for this size
    ((200, 64, 1024, 1), torch.float16),
]
"""Pairs of a shape (steps, batch, units, layers) and a dtype. The input has as many features as there are units."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One layer, shape and dtype. Times are medians in milliseconds, memory is in MiB. A ratio is ours over torch's."""

    layer: str
    shape: tuple[int, int, int, int]
    dtype: str
    both_ms: float
    torch_both_ms: float
    both_ratio: float
    graph_ms: float
    torch_graph_ms: float
    graph_ratio: float
    inference_ms: float
    torch_inference_ms: float
    inference_ratio: float
    memory_mib: float
    torch_memory_mib: float
    memory_ratio: float


def measure(cases: list[tuple[tuple[int, int, int, int], torch.dtype]], repeats: int) -> Iterator[Row | WrongResult]:
    """Measure every layer and case with half-normal noise in all nonlinearities and torch's initial weights."""
    for shape, dtype in cases:
        for name, ours, theirs in PEERS:
            steps, batch, hidden, layers = shape
            settings: dict[str, Any] = {"device": "cuda", "dtype": dtype}
            noisy, plain = (
                ours(hidden, hidden, layers, noise="nah", **settings),
                theirs(hidden, hidden, layers, **settings),
            )
            x = torch.randn(steps, batch, hidden, **settings)
            try:
                _check(noisy, x[:4])
            except AssertionError as error:
                yield WrongResult(f"{name} {shape} {dtype}: not measured, its results are wrong: {error}")
                continue
            yield _time(name, shape, dtype, noisy, plain, x, repeats)


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Switch TF32 off for all float32 products, including the recurrent layers', which follow cuDNN's setting."""
    with tf32_products(False):
        before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.backends.cudnn.allow_tf32 = before


def _check(layer: NoisyRecurrent, x: Tensor) -> None:
    """Compare output and gradients with the reference backend, for the same noise, by the norm of the difference.

    Rounding to 16 bits moves some values across a kink, where the derivative jumps. Gradients then differ by percents.
    """
    results = []
    for backend in ("triton", "reference"):
        layer.backend, kept = backend, layer.backend
        torch.manual_seed(1)
        leaf = x.detach().requires_grad_()
        with exact_products():
            y = layer(leaf)[0]
            gradients = torch.autograd.grad(y.float().square().sum(), [leaf, *layer.parameters()])
        results.append([y.detach(), *gradients])
        layer.backend = kept
    bounds = (1e-5, 1e-3) if x.dtype == torch.float32 else (2e-2, 0.2)
    for index, (mine, right) in enumerate(zip(*results, strict=True)):
        off = ((mine.float() - right.float()).norm() / right.float().norm().clamp(min=1e-6)).item()
        bound = bounds[index > 0]
        if not off <= bound:
            raise AssertionError(f"result {index} is off by {off:.2g} of its norm, allowed {bound:.2g}")


def _time(
    name: str, shape: tuple[int, int, int, int], dtype: torch.dtype, noisy: nn.Module, plain: nn.Module, x: Tensor,
    repeats: int,
) -> Row:  # fmt: skip
    leaf, g = x.detach().requires_grad_(), torch.randn_like(x)
    both = [forward_and_backward(layer, leaf, g) for layer in (noisy, plain)]
    both_ms = median_ms(both, repeats)
    graph_ms = median_ms([graph(run) for run in both], repeats)
    memory = [peak_mib(run) for run in both]
    noisy.eval()
    plain.eval()
    inference_ms = median_ms([inference(layer, x) for layer in (noisy, plain)], repeats)
    return Row(
        layer=name,
        shape=shape,
        dtype=str(dtype).removeprefix("torch."),
        both_ms=both_ms[0],
        torch_both_ms=both_ms[1],
        both_ratio=both_ms[0] / both_ms[1],
        graph_ms=graph_ms[0],
        torch_graph_ms=graph_ms[1],
        graph_ratio=graph_ms[0] / graph_ms[1],
        inference_ms=inference_ms[0],
        torch_inference_ms=inference_ms[1],
        inference_ratio=inference_ms[0] / inference_ms[1],
        memory_mib=memory[0],
        torch_memory_mib=memory[1],
        memory_ratio=memory[0] / memory[1],
    )


_TURN = 0.05
"""Seconds: a slower function has fewer calls in a turn, so that a grid of long sequences ends."""


def median_ms(functions: list[Callable[[], object]], repeats: int) -> list[float]:
    """Return the median time of a call of each function in ms over alternating turns of up to ten calls."""
    return [statistics.median(spent) for spent in _turns_ms(functions, repeats)]


def least_ms(functions: list[Callable[[], object]], repeats: int) -> list[float]:
    """Return the least time of a call of each function in ms, the mean of a turn of up to ten calls.

    Other work on the host only ever adds time, and the time of a small layer is the host's.
    """
    return [min(spent) for spent in _turns_ms(functions, repeats)]


def _turns_ms(functions: list[Callable[[], object]], repeats: int, calls: int = 10) -> list[list[float]]:
    """The time of a call in ms in each turn of each function."""

    def turn(function: Callable[[], object], count: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            function()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    for function in functions:  # compiles
        turn(function, 1)
    counts = [max(1, min(calls, int(_TURN / turn(function, 1)))) for function in functions]
    times: list[list[float]] = [[] for _ in functions]
    for number in range(repeats + 1):
        for function, count, spent in zip(functions, counts, times, strict=True):
            seconds = turn(function, count)
            if number:  # the first turn warms up
                spent.append(1e3 * seconds)
    return times


def graph(function: Callable[[], object]) -> Callable[[], object]:
    """Record a function as a CUDA graph and return its replay, which has almost no host overhead."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        function()
    return recorded.replay


def peak_mib(function: Callable[[], object]) -> float:
    """Return the peak GPU memory in MiB that a function uses in addition to the memory already allocated."""
    function()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def table(rows: list[Row], width: int | None = None) -> str:
    """Format the rows as a text table, in lines of at most `width` where one is given."""
    header = (
        "layer", "T, B, H, layers", "dtype", "fwd+bwd", "torch", "ratio", "as a graph", "torch", "ratio", "inference",
        "torch", "ratio", "memory",
    )  # fmt: skip
    cells = [
        (
            row.layer, ", ".join(map(str, row.shape)), row.dtype,
            f"{row.both_ms:.2f} ms", f"{row.torch_both_ms:.2f} ms", f"{row.both_ratio:.2f}",
            f"{row.graph_ms:.3f} ms", f"{row.torch_graph_ms:.3f} ms", f"{row.graph_ratio:.2f}",
            f"{row.inference_ms:.2f} ms", f"{row.torch_inference_ms:.2f} ms", f"{row.inference_ratio:.2f}",
            f"{row.memory_ratio:.2f}",
        )
        for row in rows
    ]  # fmt: skip
    return text_table(header, cells, width, kept=(4, 5, 7, 8, 10, 11), repeated=3)
