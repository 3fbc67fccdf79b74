"""The rules for the state of a recurrent layer in the form that the C kernels take: StateRules as a C structure."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from noisyact.noise import threshold
from noisyact.ops.native.unit import address
from noisyact.ops.recurrent.types import StateRules

__all__ = ["CallRules", "RulesStructure", "previous_h", "take_resets"]


class RulesStructure(ctypes.Structure):
    """The structure `rules` of layer.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("reset", "reset_h", "reset_c", "rows")),
        ("first_step", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("drawn", ctypes.c_int32),
        *((name, ctypes.c_uint32) for name in ("limit_h", "limit_c", "limit_dropout")),
        *((name, ctypes.c_double) for name in ("zoneout_h", "zoneout_c", "rate")),
        *((name, ctypes.c_void_p) for name in ("dropout", "seen_h0", "seen_reset", "seen")),
        *((name, ctypes.c_void_p) for name in ("held", "reset_held", "reset_carry")),
    )


class CallRules:
    """The numbers of the rules, read once, so that backward uses those of the forward pass.

    Args:
        rules: the rules of a layer, or with only `rows` and `first_step` those of a cell.
        sizes: the number of rows at each step.
        output: the width of h.
        hidden: the width of c.
        dtype: the kernel's dtype.
    """

    def __init__(self, rules: StateRules, sizes: Sequence[int], output: int, hidden: int, dtype: torch.dtype) -> None:
        *_, seed, zoneout_h, zoneout_c, rate, first_step = rules
        drawn, self._sizes, self._output, self._hidden, self._dtype = seed is not None, sizes, output, hidden, dtype
        self.zoneout_h, self.zoneout_c, self.dropout = zoneout_h > 0, zoneout_c > 0, drawn and rate > 0
        self._numbers = {
            "first_step": first_step, "seed": 0 if seed is None else int(seed), "drawn": drawn,
            "limit_h": threshold(zoneout_h), "limit_c": threshold(zoneout_c), "limit_dropout": threshold(rate),
            "zoneout_h": zoneout_h, "zoneout_c": zoneout_c, "rate": rate,
        }  # fmt: skip

    def structure(
        self, reset: Tensor | None = None, reset_h: Tensor | None = None, reset_c: Tensor | None = None,
        rows: Tensor | None = None, **others: Tensor | None,
    ) -> RulesStructure:  # fmt: skip
        """The structure with the addresses of contiguous tensors, which are checked. The caller keeps them alive.

        Args:
            reset, reset_h, reset_c, rows: as in :class:`StateRules`.
            others: further tensors by the names in layer.h.
        """
        batch = self._sizes[0]
        counts = {"reset_carry": batch * self._hidden, "seen": sum(self._sizes) * self._output}
        addresses = {
            name: address(tensor, counts.get(name, batch * self._output), self._dtype)
            for name, tensor in {"reset_h": reset_h, **others}.items()
        }
        return RulesStructure(
            reset=address(reset, len(self._sizes) * batch, torch.bool), rows=address(rows, batch, torch.int64),
            reset_c=address(reset_c, batch * self._hidden, self._dtype), **addresses, **self._numbers,
        )  # fmt: skip


def take_resets(reset: Tensor, dgates: Tensor, wanted: bool) -> Tensor | None:
    """Set the dgates of the steps after resets to zero, because they do not belong to the h of the step before.

    Args:
        reset: [steps, batch].
        dgates: [steps * batch, width], the recurrent side.
        wanted: whether to return what was there.

    Returns: the sum of each sequence's dgates at its resets, [batch, width]; None if it is not wanted.
    """
    chosen, batch = reset.flatten().nonzero().squeeze(1), reset.shape[1]
    total = dgates.new_zeros(batch, dgates.shape[1]) if wanted else None
    if total is not None and batch:
        total.index_add_(0, chosen % batch, dgates[chosen])
    dgates.index_fill_(0, chosen, 0.0)
    return total


def previous_h(h: Tensor, first: Tensor | None, sizes: Sequence[int], reverse: bool, factors: Tensor | None) -> Tensor:
    """The h before every row as the recurrent product saw it without resets, [rows, H].

    Args:
        h: [rows, H], at every step.
        first: [batch, H], the initial h; None for zeros.
        factors: [batch, H], the mask of the recurrent dropout; None for none.
    """
    batch, parts, begin = sizes[0], [], 0
    first = h.new_zeros(batch, h.shape[1]) if first is None else first
    if sizes[-1] == batch:  # a rectangular batch
        parts = [h[batch:], first] if reverse else [first, h[: len(h) - batch]]
    else:
        steps = h.split(list(sizes))
        for t, size in enumerate(sizes):
            other = t + 1 if reverse else t - 1
            known = min(size, sizes[other]) if 0 <= other < len(sizes) else 0
            parts += [steps[other][:known], first[known:size]] if known else [first[:size]]
    before = torch.cat(parts)
    if factors is not None:
        for size in sizes:
            before[begin : begin + size] *= factors[:size]
            begin += size
    return before
