"""Which of torch's own modules and functions saturate: what can be made noisy, and what to look out for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisyact.pairs import HARD_SIGMOID, HARD_TANH, HardPair

__all__ = ["FUNCTIONS", "METHOD_NAMES", "RECURRENT", "is_saturating", "pair_of"]

RECURRENT = (nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell)

# Saturating, with no noisy version of their own here: they are listed so that nobody believes them noisy.
_OTHERS = (nn.Softsign, nn.ReLU6, nn.GLU, nn.LogSigmoid)

_PAIRS: dict[type[nn.Module], Callable[[Any], HardPair | None]] = {
    nn.Tanh: lambda module: HARD_TANH,
    nn.Sigmoid: lambda module: HARD_SIGMOID,
    nn.Hardtanh: lambda module: _range_pair(module.min_val, module.max_val),
    nn.Hardsigmoid: lambda module: HardPair(1 / 6, 0.5, 0.0, 1.0),
}


def _range_pair(low: float, high: float) -> HardPair | None:
    """Hardtanh's pair, or None where its range has no end, or leaves out 0 and there is nothing to expand about."""
    return HardPair(1.0, 0.0, low, high) if low <= 0 <= high and low < high and min(-low, high) < math.inf else None


def pair_of(module: nn.Module) -> HardPair | None:
    """The hard pair that a saturating activation module stands for; None for any other module.

    Exactly torch's types: a subclass may compute something else.

    >>> pair_of(nn.Hardtanh(-2.0, 2.0))
    HardPair(slope=1.0, offset=0.0, low=-2.0, high=2.0)
    >>> pair_of(nn.ReLU()) is None
    True
    """
    make = _PAIRS.get(type(module))
    return None if make is None else make(module)


def is_saturating(module: nn.Module) -> bool:
    """Whether a module of torch's, or of a subclass, computes a saturating function (a recurrent layer does inside).

    >>> is_saturating(nn.LSTM(2, 2)), is_saturating(nn.Linear(2, 2))
    (True, False)
    """
    if isinstance(module, (nn.RNN, nn.RNNCell)):
        return module.nonlinearity == "tanh"
    return isinstance(module, (*_PAIRS, *_OTHERS, *RECURRENT))


FUNCTIONS: dict[Callable[..., Any], str] = {
    torch.tanh: "torch.tanh",
    torch.tanh_: "torch.tanh_",
    Tensor.tanh: "Tensor.tanh",
    Tensor.tanh_: "Tensor.tanh_",
    torch.sigmoid: "torch.sigmoid",
    torch.sigmoid_: "torch.sigmoid_",
    Tensor.sigmoid: "Tensor.sigmoid",
    Tensor.sigmoid_: "Tensor.sigmoid_",
    torch.special.expit: "torch.special.expit",
    F.hardtanh: "F.hardtanh",
    F.hardtanh_: "F.hardtanh_",
    F.hardsigmoid: "F.hardsigmoid",
    F.softsign: "F.softsign",
    F.logsigmoid: "F.logsigmoid",
    F.relu6: "F.relu6",
    F.glu: "F.glu",
}
"""Functions that a forward method may call without any module, and their names."""

METHOD_NAMES = frozenset(name.rpartition(".")[2] for name in FUNCTIONS.values())
"""The bare names of those functions, as they stand in source code."""
