"""The torch modules and functions that saturate, and those that can be replaced by noisy ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from noisyact.pairs import HARD_SIGMOID, HARD_TANH, HardPair

__all__ = [
    "COMPUTED", "FUNCTIONS", "METHOD_NAMES", "RECURRENT", "SUBCLASS", "holds_weights", "is_activation", "is_saturating",
    "obstacle", "pair_of", "recurrent_obstacle",
]  # fmt: skip

SUBCLASS = "a subclass may compute something else"
COMPUTED = "its weights are computed at every call"

RECURRENT = (nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell)

# Saturating modules that noisify does not replace, and why. An inventory lists them, because they saturate.
_OTHERS: dict[type[nn.Module], str] = {
    nn.GLU: "not elementwise: it multiplies one half of its input by the sigmoid of the other",
    nn.LogSigmoid: "saturates on one side only, and its values are log-probabilities",
}

# Unbounded on at least one side. noisify does not replace them; see NoisyReLU, and harden for those that saturate.
_OPEN = (
    nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish,
    nn.Softplus,
)  # fmt: skip

_PAIRS: dict[type[nn.Module], Callable[[Any], HardPair | None]] = {
    nn.Tanh: lambda module: HARD_TANH,
    nn.Sigmoid: lambda module: HARD_SIGMOID,
    nn.Hardtanh: lambda module: _range_pair(module.min_val, module.max_val),
    nn.Hardsigmoid: lambda module: HardPair(1 / 6, 0.5, 0.0, 1.0),
    nn.ReLU6: lambda module: HardPair(1.0, 0.0, 0.0, 6.0),
    nn.Softsign: lambda module: HARD_TANH,  # x / (1 + |x|) has the slope and the limits of tanh
}


def _range_pair(low: float, high: float) -> HardPair | None:
    """Hardtanh's pair; None if its range is unbounded or excludes 0, the point of the expansion."""
    return HardPair(1.0, 0.0, low, high) if low <= 0 <= high and low < high and min(-low, high) < math.inf else None


def pair_of(module: nn.Module) -> HardPair | None:
    """The hard pair of a saturating activation module; None for any other module.

    Subclasses of torch's modules return None, because they may compute something else.

    >>> pair_of(nn.Hardtanh(-2.0, 2.0))
    HardPair(slope=1.0, offset=0.0, low=-2.0, high=2.0)
    >>> pair_of(nn.ReLU()) is None
    True
    """
    make = _PAIRS.get(type(module))
    return None if make is None else make(module)


def is_saturating(module: nn.Module) -> bool:
    """Whether a torch module, or a subclass of one, computes a saturating function. Recurrent layers and cells do.

    >>> is_saturating(nn.LSTM(2, 2)), is_saturating(nn.Linear(2, 2))
    (True, False)
    """
    if isinstance(module, (nn.RNN, nn.RNNCell)):
        return module.nonlinearity == "tanh"
    return isinstance(module, (*_PAIRS, *_OTHERS, *RECURRENT))


def is_activation(module: nn.Module) -> bool:
    """Whether a module is a torch activation, recurrent layer or cell, or a subclass of one; saturating or not.

    >>> is_activation(nn.GELU()), is_activation(nn.RNN(2, 2, nonlinearity="relu")), is_activation(nn.Linear(2, 2))
    (True, True, False)
    """
    return isinstance(module, (*_PAIRS, *_OTHERS, *_OPEN, *RECURRENT))


def obstacle(module: nn.Module) -> str | None:
    """The reason why noisify does not replace an activation, recurrent layer or cell; None if it does.

    >>> obstacle(nn.Hardswish())
    'does not saturate on both sides'
    >>> obstacle(nn.LSTM(2, 2)) is None
    True
    """
    if isinstance(module, RECURRENT):
        if type(module) in RECURRENT and not is_saturating(module):
            return "does not saturate on both sides; see NoisyRNN with nonlinearity='relu'"
        return recurrent_obstacle(module)
    if type(module) in _PAIRS:
        return None if pair_of(module) is not None else "its range excludes 0 or is unbounded"
    for kind, why in _OTHERS.items():
        if isinstance(module, kind):
            return why
    if isinstance(module, tuple(_PAIRS)):
        return SUBCLASS
    return "does not saturate on both sides" + ("; see NoisyReLU" if isinstance(module, nn.ReLU) else "")


def recurrent_obstacle(module: nn.Module) -> str | None:
    """The reason why a layer or cell of torch has no counterpart with the same weights in noisyact; None if it has.

    >>> recurrent_obstacle(nn.utils.parametrizations.weight_norm(nn.GRU(2, 2), "weight_hh_l0"))
    'its weights are computed at every call'
    """
    if is_parametrized(module):  # which makes it a subclass
        return COMPUTED
    if type(module) not in RECURRENT:
        return SUBCLASS
    if "forward" in vars(module):
        return "its forward method was replaced"
    return None if holds_weights(module) else COMPUTED


def holds_weights(module: nn.Module) -> bool:
    """Whether the weights of a recurrent layer or cell are its parameters.

    Weight normalisation and pruning replace the parameters and recompute the weights at every call.
    """
    cell = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    names = [name for layer in module._all_weights for name in layer] if isinstance(module, nn.RNNBase) else cell
    return set(names) == module._parameters.keys()


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
"""Saturating functions that a forward method may call directly, and their names."""

METHOD_NAMES = frozenset(name.rpartition(".")[2] for name in FUNCTIONS.values())
"""The unqualified names of these functions, as they appear in source code."""
