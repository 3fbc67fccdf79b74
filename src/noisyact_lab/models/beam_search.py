"""The likeliest sequence of a decoder: beam search, many inputs at once, always with the same shapes.

A decoder is a function of the last tokens and its state; what a state is, is the decoder's business. A hypothesis that
has ended keeps its place in the beam, as in dl4mt: the beam of the others is narrower by one from then on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["BEGIN", "Beam", "Hypothesis", "Step", "beam"]

BEGIN = -1
"""The token before the first."""
_LOOK = 8
"""Steps from one look at whether all have ended to the next: the host waits for the device there."""

Step = Callable[[Tensor, Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, Sequence[Tensor]]]
"""`step(tokens, state, constants)`: the last tokens, int64 [batch, width], and a state, tensors [batch, width, ...], to
log-probabilities of the next token, [batch, width, tokens], and the next state. The constants are the same at every
step and for all hypotheses of an input: tensors [batch, ...]."""


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A sequence that a search has found.

    Args:
        tokens: without the one that ends it.
        log_probability: of the tokens and of the end, if there is one.
        score: that divided by length^power, the end counted; hypotheses are ranked by it.
        ended: False for one that was cut at the greatest length.
    """

    tokens: tuple[int, ...]
    log_probability: float
    score: float
    ended: bool


class Beam:
    """A search for the sequence with the greatest log p / length^power, `width` hypotheses at a time.

    Args:
        step: the decoder, a :data:`Step`. It is called first with tokens that are all :data:`BEGIN`.
        width: hypotheses of each input.
        end: the token that ends a sequence.
        longest: at most so many tokens, the end counted.
        length_power: 0 ranks by log p, 1 by log p a token.
        record: makes one step of the search faster, as a CUDA graph does: it is given a function of tensors that
            returns a tuple of tensors, and returns one that does the same; results may be overwritten by the next call.
    """

    def __init__(
        self, step: Step, *, width: int, end: int, longest: int, length_power: float = 1.0,
        record: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> None:  # fmt: skip
        for name, value in (("width", width), ("longest", longest)):
            if value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        if not length_power >= 0:
            raise ValueError(f"length_power={length_power}: must be at least 0")
        self.step, self.width, self.end, self.longest, self.length_power = step, width, end, longest, length_power
        self._advance = self._next if record is None else record(self._next)
        self._parts = 0

    @torch.no_grad()
    def __call__(self, state: Sequence[Tensor], constants: Sequence[Tensor] = ()) -> list[list[Hypothesis]]:
        """Search from the states before the first token, [batch, 1, ...] each.

        Returns: for each input its hypotheses, best first; none that has probability zero.
        """
        batch, device = state[0].shape[0], state[0].device
        self._parts = len(state)
        shape = (batch, self.width)
        totals = torch.full(shape, -torch.inf, device=device)
        totals[:, 0] = 0.0  # all are the same at first, and count once
        found = [
            torch.zeros(1, dtype=torch.int64, device=device),
            torch.full(shape, BEGIN, device=device),
            torch.zeros(*shape, self.longest, dtype=torch.int64, device=device),
            totals,
            torch.zeros(shape, dtype=torch.int64, device=device),
            *(part.expand(batch, self.width, *part.shape[2:]).contiguous() for part in state),
        ]
        for index in range(self.longest):
            found = self._advance(*found, *constants)
            # An input is done when each place is taken by an end, or by nothing.
            if index % _LOOK == _LOOK - 1 and bool(((found[4] > 0) | (found[3] == -torch.inf)).all()):
                break
        return self._ranked(*(part.cpu() for part in found[2:5]))

    def _next(
        self, place: Tensor, tokens: Tensor, beams: Tensor, totals: Tensor, lengths: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        """One more token, in operations on static tensors. A length is 0 until the hypothesis has ended."""
        log_p, state = self.step(tokens, rest[: self._parts], rest[self._parts :])
        number = log_p.shape[2]
        # What has ended is continued only by its end, and ranks before all others.
        is_end = torch.arange(number, device=log_p.device) == self.end
        kept = torch.where(is_end, torch.inf, -torch.inf)
        ranks = torch.where((lengths > 0)[..., None], kept, totals[..., None] + log_p)
        ranks, chosen = ranks.flatten(1).topk(self.width, dim=1)
        parent, tokens = chosen // number, chosen % number
        had_ended = ranks == torch.inf
        totals = torch.where(had_ended, totals.gather(1, parent), ranks)
        ends = torch.where((tokens == self.end) & (ranks > -torch.inf), place + 1, 0)
        lengths = torch.where(had_ended, lengths.gather(1, parent), ends)
        beams = beams.gather(1, parent[..., None].expand_as(beams))
        beams = beams.scatter(2, place.expand(*tokens.shape, 1), tokens[..., None])
        rows = torch.arange(len(parent), device=parent.device)[:, None]
        return place + 1, tokens, beams, totals, lengths, *(part[rows, parent] for part in state)

    def _ranked(self, beams: Tensor, totals: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        found = []
        for sequences, log_ps, sizes in zip(beams.tolist(), totals.tolist(), lengths.tolist(), strict=True):
            hypotheses = [
                Hypothesis(
                    tuple(sequence[: size - 1] if size else sequence), log_p,
                    log_p / (size or self.longest) ** self.length_power, size > 0,
                )
                for sequence, log_p, size in zip(sequences, log_ps, sizes, strict=True)
                if log_p > -torch.inf
            ]  # fmt: skip
            found.append(sorted(hypotheses, key=lambda hypothesis: -hypothesis.score))
        return found


def beam(
    step: Step, state: Sequence[Tensor], constants: Sequence[Tensor] = (), **settings: Any
) -> list[list[Hypothesis]]:
    """One search; settings as of :class:`Beam`, which finds more with what it has recorded.

    >>> import math
    >>> table = torch.tensor([[0.1, 0.5, 0.4], [0.2, 0.5, 0.3], [0.9, 0.05, 0.05]]).log()  # of the next, by the last
    >>> step = lambda tokens, state, constants: (table[tokens.clamp(min=0)], state)
    >>> [found] = beam(step, [torch.zeros(1, 1)], width=3, end=0, longest=4, length_power=0)
    >>> found[0].tokens, round(found[0].log_probability, 4) == round(math.log(0.4 * 0.9), 4)
    ((2,), True)
    """
    return Beam(step, **settings)(state, constants)
