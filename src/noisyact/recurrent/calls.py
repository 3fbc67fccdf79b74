"""The signatures of calls of layers and cells, for type checkers: nn.Module declares that a call returns Any."""

from __future__ import annotations

from typing import Protocol, overload

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

__all__ = ["CellCall", "LSTMCall", "LSTMCellCall", "LSTMState", "LayerCall"]

LSTMState = tuple[Tensor, Tensor]
"""h and c of an LSTM."""


class LSTMCall(Protocol):
    """A call of NoisyLSTM: the output, packed if the input is, and the final h and c."""

    @overload
    def __call__(
        self, input: Tensor, hx: LSTMState | None = None, *, reset: Tensor | None = None,
        reset_to: LSTMState | None = None, seed: int | Tensor | None = None, first_step: int = 0,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, LSTMState]: ...  # fmt: skip
    @overload
    def __call__(
        self, input: PackedSequence, hx: LSTMState | None = None, *, seed: int | Tensor | None = None,
        first_step: int = 0, rows: Tensor | None = None,
    ) -> tuple[PackedSequence, LSTMState]: ...  # fmt: skip


class LayerCall(Protocol):
    """A call of NoisyGRU or NoisyRNN: the output, packed if the input is, and the final h."""

    @overload
    def __call__(
        self, input: Tensor, hx: Tensor | None = None, *, reset: Tensor | None = None, reset_to: Tensor | None = None,
        seed: int | Tensor | None = None, first_step: int = 0, rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...  # fmt: skip
    @overload
    def __call__(
        self, input: PackedSequence, hx: Tensor | None = None, *, seed: int | Tensor | None = None,
        first_step: int = 0, rows: Tensor | None = None,
    ) -> tuple[PackedSequence, Tensor]: ...  # fmt: skip


class LSTMCellCall(Protocol):
    """A call of NoisyLSTMCell: the new h and c."""

    def __call__(
        self, input: Tensor, hx: LSTMState | None = None, xi: Tensor | None = None, *, reset: Tensor | None = None,
        reset_to: LSTMState | None = None, seed: int | Tensor | None = None, step: int = 0, rows: Tensor | None = None,
    ) -> LSTMState:  # fmt: skip
        """Compute one step."""
        ...


class CellCall(Protocol):
    """A call of NoisyGRUCell or NoisyRNNCell: the new h."""

    def __call__(
        self, input: Tensor, hx: Tensor | None = None, xi: Tensor | None = None, *, reset: Tensor | None = None,
        reset_to: Tensor | None = None, seed: int | Tensor | None = None, step: int = 0, rows: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Compute one step."""
        ...
