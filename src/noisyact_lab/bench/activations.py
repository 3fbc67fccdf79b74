"""Benchmark of the noisy activations against F.hardtanh: forward, and forward + backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from noisyact import equations
from noisyact.functional import noisy
from noisyact.noise import draw_seed, standard_normal
from noisyact.pairs import HARD_SIGMOID, HARD_TANH, HardPair
from noisyact.schemes import NAH, NAN, NANI, NANIL, NANIS, Scheme
from noisyact.text_table import text_table
from noisyact_lab.bench.timing import median_times

__all__ = ["Row", "measure", "table"]

CASES: list[tuple[str, HardPair, Scheme, bool]] = [
    ("hard tanh, NAH", HARD_TANH, NAH(), False),
    ("hard tanh, NAH, p per feature", HARD_TANH, NAH(), True),
    ("hard tanh, NAN", HARD_TANH, NAN(), False),
    ("hard tanh, NANI", HARD_TANH, NANI(), False),
    ("hard tanh, NANIL", HARD_TANH, NANIL(), False),
    ("hard tanh, NANIS", HARD_TANH, NANIS(), False),
    ("hard sigmoid, NAH", HARD_SIGMOID, NAH(), False),
]
FEATURES = 1024


@dataclasses.dataclass(frozen=True)
class Row:
    """One case. Times are medians in milliseconds. A ratio is our time over that of F.hardtanh in the same dtype."""

    case: str
    forward_ms: float
    hardtanh_forward_ms: float
    forward_ratio: float
    both_ms: float
    hardtanh_both_ms: float
    both_ratio: float
    formula_both_ms: float
    """Time of forward + backward for the formula in torch operations, with noise from torch.randn_like."""
    compiled_both_ms: float | None
    """Time of forward + backward for the formula under torch.compile: first case on a GPU only, else None."""


class WrongResult(Exception):
    """The results of a case are wrong, so it is not measured."""


def cases(device: str) -> list[tuple[str, HardPair, Scheme, torch.dtype, bool]]:
    """Return the cases: all in float32 and bfloat16, and on a CPU the first in float16 too."""
    found = []
    for case, pair, scheme, per_feature in CASES:
        found.append((case, pair, scheme, torch.float32, per_feature))
        found.append((f"{case}, bfloat16", pair, scheme, torch.bfloat16, per_feature))
        if torch.device(device).type == "cpu" and case == CASES[0][0]:
            found.append((f"{case}, float16", pair, scheme, torch.float16, per_feature))
    return found


def measure(elements: int, repeats: int, device: str, block: int = 1) -> Iterator[Row | WrongResult]:
    """Measure every case on x ~ N(0, 1), which saturates a third of the hard tanhs and 5% of the hard sigmoids.

    The two functions alternate in turns of ``block`` calls. With one call, other work evicts the cache between calls,
    as in a network. With several, the data is still in the cache, which favours the function that computes less.
    """
    for case, pair, scheme, dtype, per_feature in cases(device):
        x = torch.randn(elements // FEATURES, FEATURES, device=device).to(dtype)
        p = torch.rand(FEATURES if per_feature else 1, device=device) * 2 - 1
        try:
            _check(case, x[:257], p, pair, scheme)
        except AssertionError as error:
            yield WrongResult(f"{case}: not measured, its results are wrong: {error}")
            continue
        yield _time(case, x, p, pair, scheme, repeats, block)


def _check(case: str, x: Tensor, p: Tensor, pair: HardPair, scheme: Scheme) -> None:
    """Compare output and both gradients with the reference equations in float64, for the same noise."""
    seed = draw_seed(x.device)
    g = torch.randn_like(x, dtype=torch.float32).to(x.dtype)
    ours = _gradients(lambda x, p: noisy(x, pair, scheme, p, seed=seed), x, p, g)
    xi = standard_normal(seed, x.shape).double()
    theirs = _gradients(
        lambda x, p: equations.phi(x, pair, scheme, scheme.scale, p, xi), x.double(), p.double(), g.double()
    )
    tolerance = 1e-5 if x.dtype == torch.float32 else 2e-2
    (y, gx, gp), (right_y, right_gx, right_gp) = ours, theirs
    torch.testing.assert_close(y.double(), right_y, rtol=tolerance, atol=tolerance)
    off = int((~torch.isclose(gx.double(), right_gx, rtol=tolerance, atol=tolerance)).sum())
    if 0 < off <= 2:
        return  # the derivative has jumps, and rounding can move one of 263,168 elements across one
    torch.testing.assert_close(gx.double(), right_gx, rtol=tolerance, atol=tolerance)
    scale = right_gp.abs().max().clamp(min=1.0).item()
    torch.testing.assert_close(gp.double(), right_gp, rtol=tolerance, atol=tolerance * scale)


def _gradients(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, p: Tensor, g: Tensor) -> list[Tensor]:
    x, p = x.detach().requires_grad_(), p.detach().requires_grad_()
    y = function(x, p)
    gx, gp = torch.autograd.grad(y, (x, p), g, allow_unused=True, materialize_grads=True)
    return [y.detach(), gx, gp]


def _time(case: str, x: Tensor, p: Tensor, pair: HardPair, scheme: Scheme, repeats: int, block: int) -> Row:
    g = torch.ones_like(x)
    leaf_x, leaf_p = x.detach().requires_grad_(), p.detach().requires_grad_()

    def forward(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], None]:
        def run() -> None:
            with torch.no_grad():
                function(x, p)

        return run

    def both(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], None]:
        def run() -> None:
            leaf_x.grad = leaf_p.grad = None
            function(leaf_x, leaf_p).backward(g)

        return run

    def ours(x: Tensor, p: Tensor) -> Tensor:
        return noisy(x, pair, scheme, p)

    def hardtanh(x: Tensor, p: Tensor) -> Tensor:
        return F.hardtanh(x)

    def formula(x: Tensor, p: Tensor) -> Tensor:
        wide = x.float()
        return equations.phi(wide, pair, scheme, scheme.scale, p, torch.randn_like(wide)).to(x.dtype)

    # The formula needs the most memory. It runs first, so that the allocator already holds that memory for the others.
    device = x.device.type
    (both_formula,) = median_times([both(formula)], max(3, repeats // 10), device=device)
    forward_ours, forward_theirs = median_times([forward(ours), forward(hardtanh)], repeats, block, device)
    both_ours, both_theirs = median_times([both(ours), both(hardtanh)], repeats, block, device)
    both_compiled = None
    if device == "cuda" and case.startswith(CASES[0][0]) and p.numel() == 1:
        (both_compiled,) = median_times([both(torch.compile(formula))], max(3, repeats // 10), device=device)
    return Row(
        case=case,
        forward_ms=forward_ours * 1e3,
        hardtanh_forward_ms=forward_theirs * 1e3,
        forward_ratio=forward_ours / forward_theirs,
        both_ms=both_ours * 1e3,
        hardtanh_both_ms=both_theirs * 1e3,
        both_ratio=both_ours / both_theirs,
        formula_both_ms=both_formula * 1e3,
        compiled_both_ms=None if both_compiled is None else both_compiled * 1e3,
    )


def table(rows: list[Row], width: int | None = None) -> str:
    """Format the rows as a text table, in lines of at most `width` where one is given."""
    header = ("case", "forward", "hardtanh", "ratio", "fwd+bwd", "hardtanh", "ratio", "formula in torch", "compiled")
    cells = [
        (
            row.case, f"{row.forward_ms:.2f} ms", f"{row.hardtanh_forward_ms:.2f} ms", f"{row.forward_ratio:.2f}",
            f"{row.both_ms:.2f} ms", f"{row.hardtanh_both_ms:.2f} ms", f"{row.both_ratio:.2f}",
            f"{row.formula_both_ms:.2f} ms", "" if row.compiled_both_ms is None else f"{row.compiled_both_ms:.2f} ms",
        )
        for row in rows
    ]  # fmt: skip
    return text_table(header, cells, width, kept=(2, 3, 5, 6))
