"""How likely a language model finds a text: its mean negative log-likelihood (NLL) and its perplexity."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from noisyact_lab.models.language_model import LanguageModel

__all__ = ["mean_nll", "perplexity"]

_AT_ONCE = 20_000_000
"""Logits that are computed at once: 80 MB, which with 10,000 words is 2,000 predictions."""


def mean_nll(model: LanguageModel, text: Tensor) -> float:
    """The mean of -log p over all symbols of a text but the first row, in nats; the noise is its expectation.

    Args:
        model: of the language.
        text: in columns, [rows, columns]; the state is zero at their first row.
    """
    training, size = model.training, max(1, _AT_ONCE // (text.shape[1] * model.output.out_features))
    total, state = torch.zeros((), dtype=torch.float64, device=text.device), None
    model.eval()
    with torch.no_grad():
        for start in range(0, len(text) - 1, size):
            piece = text[start : start + size + 1]
            logits, state = model(piece[:-1], state)
            total += F.cross_entropy(logits.flatten(0, 1), piece[1:].flatten(), reduction="sum")
    model.train(training)
    return total.item() / text[1:].numel()


def perplexity(nll: float) -> float:
    """exp(nll), infinite where that is too large.

    >>> round(perplexity(math.log(115.6)), 6), perplexity(1e9)
    (115.6, inf)
    """
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf
