"""The weights, the noise and the rules for the state of a recurrent layer, in the types that all backends take."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from noisyact.pairs import HARD_SIGMOID, HARD_TANH, RELU, HardPair, Pair
from noisyact.schemes import Scheme, scheme

__all__ = ["GATES", "NONLINEARITIES", "PLAIN_STATE", "CellNoise", "LayerWeights", "StateRules"]

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
        state = self.state_scale.new_empty(1, dtype=torch.float32)
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


class StateRules(NamedTuple):
    """What happens to the state of one layer in one direction between its steps, and the position of its noise.

    A step does, in this order:

    1. reset: ``h, c = reset_h, reset_c`` in the rows b with ``reset[t, b]``. No gradient passes a reset.
    2. the recurrent product: ``W_hh (d h)`` instead of ``W_hh h``, with the mask d of the recurrent dropout. Everything
       else, such as the GRU's ``z h``, uses h without the mask.
    3. the cell (and the projection), which computes h' and c'. The LSTM's ``h' = o tanh(c')`` has c' before zoneout.
    4. zoneout: ``h = m_h h + (1 - m_h) h'`` and ``c = m_c c + (1 - m_c) c'``. The output of the step is this h.

    The masks are functions of `mask_seed`. With w = word w of Philox's counter (unit, row, step, block), a unit is
    chosen where ``w < threshold(rate)`` (:func:`noisyact.noise.threshold`, an integer):

    - m_h = 1 where word 0 of (unit of h, row, step, 2) is chosen with the rate `zoneout_h`;
    - m_c = 1 where word 1 of (unit of c, row, step, 2) is chosen with the rate `zoneout_c`;
    - d = 0 where word 0 of (unit of h, row, 0, 3) is chosen with the rate `recurrent_dropout`, else 1 / (1 - rate).

    If `mask_seed` is None, zoneout uses the expectation, m = rate, and there is no recurrent dropout.

    In the counters of the noise and of the masks, the step is ``first_step + t`` and the row ``rows[b]``, of which
    Philox uses the low 32 bits; without `rows` it is b.

    The fields are tensors and numbers, so that an operator of torch takes them as ``*rules``.

    Args:
        reset: [steps, batch], bool: whether the state of a row is replaced before step t is computed, in either
            direction. A reversed layer gets the user's mask shifted by one step (:func:`noisyact.recurrent.state.
            in_reverse`). Only for a rectangular batch.
        reset_h: [batch, H or projection], in the dtype of the input; None for zeros. It gets a gradient.
        reset_c: [batch, H], the same for the LSTM's c.
        rows: [batch], int64; None for 0, 1, 2, ...
        mask_seed: int64, one element; None for expectations.
        zoneout_h: the probability that a unit of h keeps its value.
        zoneout_c: the probability that a unit of c keeps its value.
        recurrent_dropout: the probability that the recurrent product does not see a unit of h.
        first_step: the position of the first step.
    """

    reset: Tensor | None = None
    reset_h: Tensor | None = None
    reset_c: Tensor | None = None
    rows: Tensor | None = None
    mask_seed: Tensor | None = None
    zoneout_h: float = 0.0
    zoneout_c: float = 0.0
    recurrent_dropout: float = 0.0
    first_step: int = 0

    def in_use(self) -> bool:
        """Whether a call with these rules differs from one without."""
        masked = self.zoneout_h > 0 or self.zoneout_c > 0 or (self.recurrent_dropout > 0 and self.mask_seed is not None)
        return masked or self.reset is not None or self.rows is not None or self.first_step != 0


PLAIN_STATE = StateRules()
"""The rules of a layer without resets, zoneout and recurrent dropout, with the noise of steps 0, 1, ... and all rows.

Every function that takes rules has it as its default and, by identity or `in_use`, does nothing more for it.
"""


@functools.lru_cache(maxsize=64)
def _scheme(text: str) -> Scheme | None:
    return scheme(text) if text else None
