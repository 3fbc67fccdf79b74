"""An LSTM layer by FlashRNN, if it is installed: an independent fast implementation on a GPU, as another baseline."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["FlashLSTM", "installed"]


def installed() -> bool:
    """Whether the package flashrnn can be imported."""
    return importlib.util.find_spec("flashrnn") is not None


class FlashLSTM(nn.LSTM):
    """nn.LSTM with one layer whose time loop is FlashRNN's fused CUDA kernel, with a single head.

    The parameters are those of nn.LSTM. FlashRNN takes the products of the input, which torch computes.
    """

    def forward(self, input: Tensor, hx: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the output, [steps, batch, units], and no state. The first state is zero."""
        flashrnn = importlib.import_module("flashrnn").flashrnn
        gates = (4, 1, self.hidden_size)  # i, f, g, o as in torch, one head, units
        w_ih, w_hh, b_ih, b_hh = self.all_weights[0]
        wx = F.linear(input, w_ih).transpose(0, 1).unflatten(2, gates)
        recurrent, bias = w_hh.reshape(*gates, self.hidden_size), (b_ih + b_hh).reshape(gates)
        dtype = str(input.dtype).removeprefix("torch.")
        states, _ = flashrnn(
            wx.contiguous(), recurrent, bias, function="lstm", backend="cuda_fused", dtype=dtype
        )  # [h and c, batch, steps, head, units]
        return states[0][:, :, 0].transpose(0, 1), None
