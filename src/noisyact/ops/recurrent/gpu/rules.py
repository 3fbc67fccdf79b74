"""The rules for the state of a recurrent layer in the form that the GPU kernels take.

StateRules in ../types.py specifies them.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noisyact.noise import threshold
from noisyact.ops.recurrent.gpu.cells import LEARNED, dropout_kernel
from noisyact.ops.recurrent.types import StateRules
from noisyact.ops.triton.launch import Launcher

__all__ = ["NO_RULES", "RULES_FLAGS", "KernelRules", "kernel_rules"]

RULES_FLAGS = ("RULED", "RESET", "ZONEOUT_H", "ZONEOUT_C", "MASKED", "DROPOUT", "HAS_ROWS")
"""The compile-time constants of the rules. MASKED: zoneout draws masks; otherwise it uses the expectation."""


class KernelRules(NamedTuple):
    """The rules of one layer as arguments of the kernels."""

    flags: tuple[int, ...] = (0,) * len(RULES_FLAGS)
    """The values of RULES_FLAGS."""
    tensors: tuple[Tensor | None, ...] = (None,) * 6
    """reset, reset_h, reset_c, rows, mask_seed, and the mask of the recurrent dropout, [batch, H] in float32."""
    numbers: tuple[int, int, int] = (0, 0, 0)
    """The first step, and the thresholds of zoneout of h and c."""

    def change_product(self) -> bool:
        """Whether the recurrent product sees anything but the h of the step before."""
        return self.tensors[0] is not None or self.tensors[5] is not None

    def times_dropout(self, h: Tensor, places: Tensor) -> Tensor:
        """h, [rows, H], times the mask of the recurrent dropout for these places in the batch, [rows]."""
        dropout = self.tensors[5]
        return h if dropout is None else _times(h, dropout[places])

    def seen_at_first(self, h0: Tensor | None, reverse: bool) -> Tensor | None:
        """What the first recurrent product sees; None for zeros.

        Args:
            h0: [batch, H], the initial h; None for zeros.
        """
        reset, reset_h, *_, dropout = self.tensors
        if h0 is None and reset_h is None:
            return None
        h = torch.zeros_like(reset_h) if h0 is None else h0  # pyright: ignore[reportArgumentType]
        if reset is not None:
            h = torch.where(reset[-1 if reverse else 0].unsqueeze(-1), 0.0 if reset_h is None else reset_h, h)
        return h if dropout is None else _times(h, dropout)


NO_RULES = KernelRules()


def _times(h: Tensor, factors: Tensor) -> Tensor:
    """The product in the dtype of h."""
    return torch.mul(h, factors, out=torch.empty_like(h))


def kernel_rules(kind: str, rules: StateRules, batch: int, hidden: int) -> KernelRules:
    """The rules of a layer whose tensors are on the current device, with the mask of its recurrent dropout drawn."""
    reset, reset_h, reset_c, rows, seed, zoneout_h, zoneout_c, rate, first_step = rules
    if seed is None and rows is None and reset_h is None and not zoneout_h and not zoneout_c:  # with less host overhead
        flags, limits = _flags_and_limits(kind, int(reset is not None), False, False, False, 0.0, 0.0)
        reset = reset if reset is None or reset.is_contiguous() else reset.contiguous()
        return KernelRules(flags, (reset, None, None, None, None, None), (first_step, *limits))
    reset, reset_h, reset_c, rows = (
        t if t is None or t.is_contiguous() else t.contiguous() for t in (reset, reset_h, reset_c, rows)
    )
    dropout = None if seed is None or rate == 0 else _dropout(seed, rows, rate, batch, hidden)
    kind_of_reset = 0 if reset is None else 1 if reset_h is None else LEARNED.value
    features = kind_of_reset, seed is not None, dropout is not None, rows is not None
    flags, limits = _flags_and_limits(kind, *features, zoneout_h, zoneout_c)
    return KernelRules(flags, (reset, reset_h, reset_c, rows, seed, dropout), (first_step, *limits))


@functools.lru_cache(maxsize=64)
def _flags_and_limits(
    kind: str, reset: int, seeded: bool, dropout: bool, has_rows: bool, zoneout_h: float, zoneout_c: float
) -> tuple[tuple[int, ...], tuple[int, int]]:
    """The values of RULES_FLAGS, and the thresholds of zoneout."""
    zoned_c = zoneout_c > 0 and kind == "lstm"
    masked = seeded and (zoneout_h > 0 or zoned_c)
    flags = (True, reset, zoneout_h > 0, zoned_c, masked, dropout, has_rows)
    return flags, (threshold(zoneout_h), threshold(zoneout_c))


def _dropout(seed: Tensor, rows: Tensor | None, rate: float, batch: int, hidden: int) -> Tensor:
    """The mask of the recurrent dropout, [batch, hidden]."""
    factors = torch.empty(batch, hidden, dtype=torch.float32, device=seed.device)
    grid = -(-batch // _ROWS), -(-hidden // _UNITS)
    _dropout_launcher(rows is not None)(
        grid, (factors, rows, seed, 1.0 / (1.0 - rate)), (threshold(rate), batch, hidden)
    )  # fmt: skip
    return factors


_ROWS, _UNITS = 8, 64


@functools.cache
def _dropout_launcher(has_rows: bool) -> Launcher:
    constants: dict[str, Any] = {"HAS_ROWS": has_rows, "BB": _ROWS, "BU": _UNITS}
    return Launcher(dropout_kernel, constants)
