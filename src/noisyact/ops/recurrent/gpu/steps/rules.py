"""The rules for the state of a layer in the form that the kernels of a step take: constants and tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from noisyact.noise import threshold
from noisyact.ops.recurrent.gpu.call import StackCall
from noisyact.ops.recurrent.gpu.rules import NO_RULES, KernelRules, kernel_rules

__all__ = ["StepRules", "step_rules"]

_NONE = {
    "RESET": False, "RESET_STATE": False, "ROWS": False, "DROPOUT": False, "DRAW_MASKS": False, "ZONEOUT_H": 0.0,
    "ZONEOUT_C": 0.0, "LIMIT_H": 0, "LIMIT_C": 0,
}  # fmt: skip


class StepRules(NamedTuple):
    """The rules of one layer."""

    kernel: KernelRules
    """The tensors, and what the recurrent product sees."""
    constants: dict[str, Any]
    """The compile-time constants. The rates are among them, because a kernel takes no argument of float64."""
    zoneout_h: float
    zoneout_c: float
    first_step: int


def step_rules(call: StackCall, index: int, x: Tensor, output: int) -> StepRules:
    """The rules of one layer of a call, whose h has the width `output`."""
    if call.rules is None:
        return StepRules(NO_RULES, _NONE, 0.0, 0.0, 0)
    own = call.rules[index]
    kernel = kernel_rules(call.kind, own, call.batch, output)
    reset, reset_h, reset_c, rows, seed, dropout = kernel.tensors
    if dropout is not None and x.dtype is torch.float64:
        dropout = (dropout > 0).double() / (1.0 - own.recurrent_dropout)
        kernel = kernel._replace(tensors=(reset, reset_h, reset_c, rows, seed, dropout))
    zoneout_c = own.zoneout_c if call.kind == "lstm" else 0.0
    masked = seed is not None and (own.zoneout_h > 0 or zoneout_c > 0)
    constants = {
        "RESET": reset is not None, "RESET_STATE": reset_h is not None, "ROWS": rows is not None,
        "DROPOUT": dropout is not None, "DRAW_MASKS": masked, "ZONEOUT_H": own.zoneout_h, "ZONEOUT_C": zoneout_c,
        "LIMIT_H": threshold(own.zoneout_h), "LIMIT_C": threshold(zoneout_c),
    }  # fmt: skip
    return StepRules(kernel, constants, own.zoneout_h, zoneout_c, own.first_step)
