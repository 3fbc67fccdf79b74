"""The language model: an embedding, recurrent layers, and the logits of the next symbol."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisyact.recurrent.layers import NoisyRecurrent
from noisyact_lab.models.embedding import Embedding

__all__ = ["LanguageModel"]


class LanguageModel(nn.Module):
    """Embedding, recurrent layers, logits of the next symbol.

    Args:
        symbols: how many there are.
        recurrent: the layers; their dropout is also that of what enters the first and leaves the last.
        bound: weights, biases and embeddings begin uniform in [-bound, bound].
        seed: of these weights, which are therefore the same whether or not the layers have a p.
    """

    def __init__(self, symbols: int, recurrent: NoisyRecurrent, bound: float, seed: int) -> None:
        super().__init__()
        self.embedding = Embedding(symbols, recurrent.input_size)
        self.recurrent = recurrent
        self.output = nn.Linear(recurrent.hidden_size, symbols)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if ".noise." not in name:
                nn.init.uniform_(parameter, -bound, bound, generator)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Symbols, [steps, batch], to logits, [steps, batch, symbols], and the state after them."""
        dropout = self.recurrent.dropout
        y, state = self.recurrent(F.dropout(self.embedding(x), dropout, self.training), state)
        return self.output(F.dropout(y, dropout, self.training)), state
