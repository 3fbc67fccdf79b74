"""Benchmark of a training step of the attention models: noisy units against soft ones, in the same process.

A step is a complete update: forward, backward, gradient clipping and optimiser. On a GPU it is replayed as a CUDA graph
with TF32 products, as in the experiments.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisyact.conversion.convert import noisify
from noisyact.deferral import deferred_gradients
from noisyact.noise import seeds_in_blocks
from noisyact.recurrent.cells import NoisyCell
from noisyact.recurrent.layers import NoisyRecurrent
from noisyact.schemes import NAH
from noisyact.text_table import text_table
from noisyact_lab.bench.recurrent import WrongResult
from noisyact_lab.bench.recurrent_gpu import exact_products, graph, median_ms
from noisyact_lab.bench.timing import median_times
from noisyact_lab.gpu.adadelta import adadelta
from noisyact_lab.gpu.tf32 import tf32_products
from noisyact_lab.models.caption import CaptionModel, doubly_stochastic, mask_of
from noisyact_lab.models.translation import Translation

__all__ = ["CASES", "Case", "Made", "Row", "measure", "table"]


@dataclasses.dataclass(frozen=True)
class Made:
    """A model to measure.

    Args:
        model: the model without noise.
        loss: computes the loss of the model or of its noisy copy on a fixed batch.
        words: the number of words in that batch, without padding.
        optimizer: creates the optimiser for parameters. On a GPU it must be able to step inside a CUDA graph.
        max_gradient_norm: the norm to which gradients are clipped, or None for no clipping.
    """

    model: nn.Module
    loss: Callable[[nn.Module], Tensor]
    words: int
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    max_gradient_norm: float | None


@dataclasses.dataclass(frozen=True)
class Case:
    """The name of a model and the function that makes it for a device. On a CPU the model is small."""

    name: str
    make: Callable[[torch.device], Made]


@dataclasses.dataclass(frozen=True)
class Row:
    """One model. Times are medians in milliseconds. The ratio is noisy over soft."""

    model: str
    words: int
    noisy_ms: float
    soft_ms: float
    ratio: float
    words_a_second: float
    soft_words_a_second: float


def _translation(device: torch.device) -> Made:
    """The model of dl4mt with a batch of 32 pairs, whose sentences have 21 to 30 words each."""
    on_gpu = device.type == "cuda"
    words, word_size, hidden = (30_000, 500, 1024) if on_gpu else (2000, 64, 96)
    batch, steps = (32, 30) if on_gpu else (16, 10)
    generator = torch.Generator().manual_seed(0)
    model = Translation(words, words, word_size=word_size, hidden=hidden).to(device)
    model.initialise(generator)
    sides = [torch.randint(2, words, (steps, batch), generator=generator).to(device) for _ in range(2)]
    lengths = [torch.randint(steps - 9, steps + 1, (batch,), generator=generator).to(device) for _ in range(2)]

    def loss(any_model: nn.Module) -> Tensor:
        assert isinstance(any_model, Translation)
        return any_model.nll(sides[0], lengths[0], sides[1], lengths[1]).mean()

    return Made(
        model, loss, int(lengths[1].sum()),
        lambda parameters: adadelta(parameters, 1.0, device), 1.0,
    )  # fmt: skip


def _caption(device: torch.device) -> Made:
    """The model of Xu et al. with 64 images of 14 x 14 places and captions of 9 to 12 words, including <eos>."""
    on_gpu = device.type == "cuda"
    words, places = (7694, 196) if on_gpu else (1500, 49)
    sizes = {} if on_gpu else {"embedding": 128, "hidden": 192, "attention": 64}
    batch, steps = (64, 12) if on_gpu else (16, 12)
    generator = torch.Generator().manual_seed(0)
    model = CaptionModel(words, **sizes, orthogonal=0.01).to(device)
    annotations = torch.rand(batch, places, 512, generator=generator).to(device)
    captions = torch.randint(words, (batch, steps), generator=generator).to(device)
    lengths = torch.randint(steps - 3, steps + 1, (batch,), generator=generator).to(device)

    def loss(any_model: nn.Module) -> Tensor:
        mask = mask_of(lengths, steps)
        logits, alpha = any_model(annotations, captions)
        each = F.cross_entropy(logits.flatten(0, 1), captions.flatten(), reduction="none").unflatten(0, mask.shape)
        return (each * mask).sum(dim=1).mean() + doubly_stochastic(alpha, mask)

    return Made(
        model, loss, int(lengths.sum()),
        lambda parameters: torch.optim.Adam(parameters, 2e-4, fused=True, capturable=on_gpu), None,
    )  # fmt: skip


CASES: list[Case] = [Case("translation", _translation), Case("caption", _caption)]


def measure(repeats: int, device: str) -> Iterator[Row | WrongResult]:
    """Check and then measure every model with half-normal noise in all nonlinearities."""
    where = torch.device(device)
    for case in CASES:
        made = case.make(where)
        noisy = noisify(copy.deepcopy(made.model), NAH(0.5, 1.15, True), gate_noise=NAH(0.15, 1.1), strict=True)
        try:
            _check(noisy, where)
            _check_step(made, noisy)
        except AssertionError as error:
            yield WrongResult(f"{case.name}: not measured, its results are wrong: {error}")
            continue
        steps = [_step(made, model) for model in (noisy, made.model)]
        noisy_ms, soft_ms = _times(steps, repeats, where)
        yield Row(
            case.name, made.words, noisy_ms, soft_ms, noisy_ms / soft_ms, 1e3 * made.words / noisy_ms,
            1e3 * made.words / soft_ms,
        )  # fmt: skip


def _check(model: nn.Module, device: torch.device) -> None:
    """Compare output and gradients of every noisy layer and cell with the reference equations, for the same noise."""
    for name, part in model.named_modules():
        if not isinstance(part, (NoisyCell, NoisyRecurrent)):
            continue
        x = torch.randn(3, 7, part.input_size, device=device)
        results = []
        for backend in ("auto", "reference"):
            part.backend, kept = backend, part.backend
            torch.manual_seed(1)
            leaf = x.detach().requires_grad_()
            with exact_products():
                y = part(leaf)[0] if isinstance(part, NoisyRecurrent) else _unrolled(part, leaf)
                gradients = torch.autograd.grad(y.square().sum(), [leaf, *part.parameters()])
            results.append([y.detach(), *gradients])
            part.backend = kept
        for index, (mine, right) in enumerate(zip(*results, strict=True)):
            off = ((mine - right).norm() / right.norm().clamp(min=1e-6)).item()
            bound = 1e-3 if index else 1e-5
            if not off <= bound:
                raise AssertionError(f"{name}, result {index} is off by {off:.2g} of its norm, allowed {bound:.2g}")


def _check_step(made: Made, model: nn.Module) -> None:
    """Compare the loss and all gradients of a step with plain autograd, for the same noise."""
    named = dict(model.named_parameters())
    results = []
    for deferred in (True, False):
        torch.manual_seed(1)
        with exact_products():
            with deferred_gradients(deferred), seeds_in_blocks():
                loss = made.loss(model)
            results.append([loss.detach(), *torch.autograd.grad(loss, list(named.values()))])
    total_norm = torch.stack([gradient.norm() for gradient in results[1][1:]]).norm()
    for name, mine, right in zip(["the loss", *named], *results, strict=True):
        # Some gradients are zero up to rounding, such as the gradient of a bias before a softmax.
        size = right.norm() if name == "the loss" else torch.maximum(right.norm(), 1e-4 * total_norm)
        off = ((mine - right).norm() / size).item()
        if not off <= 1e-3:
            raise AssertionError(f"{name} is off by {off:.2g} of its norm in a step, allowed 1e-3")


def _unrolled(cell: NoisyCell, x: Tensor) -> Tensor:
    state, states = None, []
    for step in x:
        state = cell(step, state)
        states.append(state[0] if isinstance(state, tuple) else state)
    return torch.stack(states)


def _step(made: Made, model: nn.Module) -> Callable[[], object]:
    parameters = list(model.parameters())
    on_gpu = parameters[0].is_cuda
    optimizer = made.optimizer(parameters)

    def step() -> None:
        optimizer.zero_grad()
        with deferred_gradients(on_gpu), seeds_in_blocks(on_gpu):
            loss = made.loss(model)
        loss.backward()
        if made.max_gradient_norm is not None:
            nn.utils.clip_grad_norm_(parameters, made.max_gradient_norm)
        optimizer.step()

    return step


def _times(steps: list[Callable[[], object]], repeats: int, device: torch.device) -> list[float]:
    if device.type != "cuda":
        return [1e3 * seconds for seconds in median_times(steps, repeats)]
    with tf32_products(True):
        return median_ms([graph(step) for step in steps], repeats)


def table(rows: list[Row], width: int | None = None) -> str:
    """Format the rows as a text table, in lines of at most `width` where one is given."""
    cells = [
        (
            row.model, f"{row.words:,}", f"{row.noisy_ms:.2f} ms", f"{row.soft_ms:.2f} ms", f"{row.ratio:.2f}",
            f"{row.words_a_second:,.0f}", f"{row.soft_words_a_second:,.0f}",
        )
        for row in rows
    ]  # fmt: skip
    header = ("model", "words", "noisy", "soft", "ratio", "words a second", "soft")
    return text_table(header, cells, width, kept=(3, 4, 6))
