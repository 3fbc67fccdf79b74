"""Noise that is annealed: large at first, which smooths the objective, then less and less.

The paper has it in two experiments, unique count and associative recall, with one schedule.
"""

from __future__ import annotations

import dataclasses

import noisyact as na

__all__ = ["AnnealedNoise"]


@dataclasses.dataclass(frozen=True)
class AnnealedNoise:
    """Settings of the nonlinearities of a recurrent network; the numbers are those of the authors' code."""

    hard: bool = True
    scheme: str | None = None
    """nan, nah or nanil."""
    c: float = 0.5
    annealed: bool = False
    """c falls as 30 / sqrt(t + 1), t counting every 200 updates, and not below 0.5."""
    alpha: float = 1.15
    """Of the tanhs."""
    gate_alpha: float = 1.1
    """Of the sigmoids."""
    clip: bool = True
    """Outputs of the tanhs are clipped to [-1, 1], as in the authors' code of the paper's time. Without it half-normal
    noise, which points outwards for alpha > 1, makes an LSTM's c overflow at c = 30."""
    gate_clip: bool = False
    """Outputs of the sigmoids are clipped to [0, 1]; not so in the authors' code."""

    def schemes(self, experiment: str) -> tuple[na.Scheme | None, na.Scheme | None]:
        """Those of the tanhs and of the sigmoids.

        >>> AnnealedNoise(scheme="nan").schemes("unique")[1]
        NAN(c=0.5, alpha=1.1, clip=False)
        """
        if self.scheme is None:
            return None, None
        if self.scheme == "nanil":
            return na.NANIL(c=self.c), na.NANIL(c=self.c)
        kind = {"nan": na.NAN, "nah": na.NAH}.get(self.scheme)
        if kind is None:
            raise ValueError(f"{experiment}: scheme={self.scheme!r}: allowed are 'nan', 'nah', 'nanil', 'none'")
        return kind(self.c, self.alpha, self.clip), kind(self.c, self.gate_alpha, self.gate_clip)

    def c_at(self, update: int) -> float:
        """The c of an update.

        >>> noise = AnnealedNoise(scheme="nan", annealed=True)
        >>> [noise.c_at(update) for update in (0, 199, 600, 10**6)]
        [30.0, 30.0, 15.0, 0.5]
        """
        return na.anneal.inverse_sqrt(30.0, 0.5, every=200)(update) if self.annealed else self.c
