"""The weights and the noise of a recurrent layer, in the types that all backends take."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from noisyact.pairs import HARD_SIGMOID, HARD_TANH, RELU, HardPair, Pair
from noisyact.schemes import Scheme, scheme

__all__ = ["GATES", "NONLINEARITIES", "CellNoise", "LayerWeights"]

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
NONLINEARITIES = {"lstm": 5, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}

_SOFT_SIGMOID = Pair(h=torch.sigmoid, u=HARD_SIGMOID.u, x_t=(-2.0, 2.0), limits=(0.0, 1.0))
_SOFT_TANH = Pair(h=torch.tanh, u=HARD_TANH.u, x_t=(-1.0, 1.0), limits=(-1.0, 1.0))


class LayerWeights(NamedTuple):
    """The learned tensors of one layer in one direction.

    Args:
        w_ih: [gates * H, input].
        w_hh: [gates * H, H or projection].
        b_ih: [gates * H], or None.
        b_hh: [gates * H], or None.
        p: [nonlinearities * H], or None for p = 1.
        w_hr: [projection, H], or None without a projection.
    """

    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor | None = None
    b_hh: Tensor | None = None
    p: Tensor | None = None
    w_hr: Tensor | None = None


class CellNoise(NamedTuple):
    """The noise of a cell's two kinds of nonlinearity during one call.

    Args:
        state: the scheme of the tanh (or ReLU); None for no noise.
        gate: the scheme of the sigmoids; None for no noise.
        state_scale: c or sigma of the tanh, one element.
        gate_scale: c or sigma of the sigmoids, one element.
        hard: True for the hard functions; False for the soft sigmoid and tanh.
    """

    state: Scheme | None
    gate: Scheme | None
    state_scale: Tensor
    gate_scale: Tensor
    hard: bool = True

    def kept(self) -> CellNoise:
        """A copy with its own scales, so that backward uses the scales of the forward pass."""
        state = self.state_scale.clone()
        gate = state if self.gate_scale is self.state_scale else self.gate_scale.clone()
        return CellNoise(self.state, self.gate, state, gate, self.hard)

    def unwritten(self) -> CellNoise:
        """Like :meth:`kept`, but a GPU kernel writes the scales: an allocation has less host overhead than a copy."""
        state = torch.empty(1, dtype=torch.float32, device=self.state_scale.device)
        gate = state if self.gate_scale is self.state_scale else torch.empty_like(state)
        return CellNoise(self.state, self.gate, state, gate, self.hard)

    def as_text(self) -> tuple[str, str, bool]:
        """The schemes and `hard` in the types that a torch operator takes; "" stands for no scheme."""
        return "" if self.state is None else str(self.state), "" if self.gate is None else str(self.gate), self.hard

    @classmethod
    def from_text(cls, state: str, gate: str, hard: bool, state_scale: Tensor, gate_scale: Tensor) -> CellNoise:
        """The inverse of :meth:`as_text`."""
        return cls(_scheme(state), _scheme(gate), state_scale, gate_scale, hard)

    def state_pair(self, kind: str) -> HardPair | Pair:
        """h and u of the tanh, or of the ReLU in a ReLU network."""
        if kind == "rnn_relu":
            return RELU
        return HARD_TANH if self.hard else _SOFT_TANH

    def gate_pair(self) -> HardPair | Pair:
        """h and u of the sigmoids."""
        return HARD_SIGMOID if self.hard else _SOFT_SIGMOID


@functools.lru_cache(maxsize=64)
def _scheme(text: str) -> Scheme | None:
    return scheme(text) if text else None
