"""The check of a case's results, before its times count.

A layer is compared with one that has the same weights and computes in float32 without TF32 (float64 for float64). For a
noisy layer it is the reference backend with the same noise, which runs one step at a time in Python. If a case has more
than `FULL_STEPS` steps in all its layers, or more than `FULL_GFLOP` of work, both run on the first `SHORT_STEPS` steps,
with the same batch and units, which decide how the kernel is cut. For a soft layer it is torch's own, over all steps,
without dropout, because the two draw different masks.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from noisyact.recurrent.layers import NoisyRecurrent
from noisyact_lab.bench.grid.cases import Case
from noisyact_lab.bench.grid.layers import Layers, output, products_of

__all__ = ["FULL_GFLOP", "FULL_STEPS", "SHORT_STEPS", "check"]

FULL_STEPS, FULL_GFLOP, SHORT_STEPS = 64, 50.0, 8

_BOUNDS = {
    "float64": (1e-9, 1e-7), "float32": (1e-4, 1e-2), "tf32": (1e-2, 0.1), "float16": (1e-2, 0.1),
    "bfloat16": (2e-2, 0.2),
}  # fmt: skip
"""The largest norm of the difference of the output and of a gradient, relative to the norm of the right tensor.

Noisy functions have kinks, where the derivative jumps. Rounding moves a few values across a kink, and their gradients
then differ by much, so the bounds of gradients are wide. A wrong kernel is off by about 1.
"""


def check(case: Case, layers: Layers) -> str:
    """Compare outputs and all gradients. Returns how the noisy layer was compared.

    Raises: AssertionError, if a result is wrong. The message names the layer and the tensor.
    """
    steps = case.steps
    if case.steps * case.layers > FULL_STEPS or case.gflop > FULL_GFLOP:
        steps = min(case.steps, SHORT_STEPS)
    x, lengths = layers.x.detach()[:steps], layers.lengths
    if lengths is not None:
        lengths = lengths.clamp(max=steps)
    noisy = layers.by_name["noisy"]
    with products_of(case.dtype):
        mine = _results(noisy, x, lengths)
    reference = _exact(noisy)
    assert isinstance(reference, NoisyRecurrent)
    reference.backend = "reference"
    with products_of("float32"):
        right = _results(reference, x, lengths)
    _compare("noisy", mine, right, case.dtype)
    for name in ("soft", "flashrnn"):
        if name not in layers.by_name:
            continue
        soft, plain = (_without_dropout(layers.by_name[one]) for one in (name, "torch"))
        with products_of(case.dtype):
            mine = _results(soft, layers.x, layers.lengths)
        with products_of("float32"):
            right = _results(_exact(plain), layers.x, layers.lengths)
        _compare(name, mine, right, case.dtype)
    return f"the reference, {'all' if steps == case.steps else 'the first'} {steps} steps"


def _exact_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32


def _dtype(layer: nn.RNNBase) -> torch.dtype:
    return next(layer.parameters()).dtype


def _exact(layer: nn.RNNBase) -> nn.RNNBase:
    """A copy of the layer in at least float32."""
    return copy.deepcopy(layer).to(_exact_dtype(_dtype(layer)))


def _without_dropout(layer: nn.RNNBase) -> nn.RNNBase:
    if not layer.dropout:
        return layer
    copied = copy.deepcopy(layer)
    copied.dropout = 0.0
    return copied


def _results(layer: nn.RNNBase, x: Tensor, lengths: Tensor | None) -> dict[str, Tensor]:
    """The output and the gradients of the sum of its squares, with noise from a fixed seed.

    The sum is divided by the root of the number of rows: float16 cannot hold the sums of many.
    """
    torch.manual_seed(1)
    leaf = x.detach().to(_dtype(layer)).requires_grad_()
    y = output(layer, leaf, lengths)
    weights = dict(layer.named_parameters())
    loss = y.to(_exact_dtype(y.dtype)).square().sum() / math.sqrt(y.numel() / y.shape[-1])
    found = torch.autograd.grad(loss, [leaf, *weights.values()])
    return {"output": y.detach(), **dict(zip(("input", *weights), found, strict=True))}


def _compare(layer: str, mine: dict[str, Tensor], right: dict[str, Tensor], dtype: str) -> None:
    for name, expected in right.items():
        found, expected = mine[name].double(), expected.double()
        off = ((found - expected).norm() / expected.norm().clamp(min=1e-6)).item()
        bound = _BOUNDS[dtype][name != "output"]
        what = name if name == "output" else f"gradient of {name}"
        if not off <= bound:  # NaN is wrong too
            raise AssertionError(f"{layer}: the {what} is off by {off:.2g} of its norm, allowed {bound:g}")
