"""Symbols as vectors, with a gradient that is the same at every repeat."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Embedding", "one_hot_product"]

_MOST = 256
"""Symbols up to which the product is the faster way too."""


class Embedding(nn.Embedding):
    """nn.Embedding, on a GPU and for few symbols as a product with ones and zeros: the same vectors exactly.

    Torch's gradient on a GPU, where more than 3,072 symbols are looked up at once, adds their rows in an order that
    changes from call to call, so no run would repeat to the bit.

    >>> Embedding(3, 2)(torch.tensor([[0, 2, 2]])).shape
    torch.Size([1, 3, 2])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Integers, [...], to vectors, [..., embedding_dim]."""
        if input.is_cuda and self.num_embeddings <= _MOST:
            return one_hot_product(input, self.weight)
        return super().forward(input)


def one_hot_product(x: Tensor, weight: Tensor) -> Tensor:
    """The rows of the weight that the integers x name.

    >>> one_hot_product(torch.tensor([2, 0]), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    tensor([[5., 6.],
            [1., 2.]])
    """
    ones = torch.arange(len(weight), device=x.device) == x.unsqueeze(-1)
    return F.linear(ones.to(weight.dtype), weight.t())
