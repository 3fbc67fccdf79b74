"""Observers of the nonlinearities that the reference computes. The kernels do not support observers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from noisyact.pairs import HardPair, Pair
from noisyact.schemes import Scheme

__all__ = ["Observer", "observed", "observers"]


class Observer(Protocol):
    """An object that is notified of every nonlinearity that the reference evaluates."""

    def begins(self) -> None:
        """Called when a layer begins, once for each direction. A single cell does not call it."""

    def sees(
        self, n: int, x: Tensor, y: Tensor, pair: HardPair | Pair, scheme: Scheme | None, scale: Tensor,
        p: Tensor | None, xi: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Called when nonlinearity n has computed y from x. Returns the value that replaces y."""
        ...


observers: list[Observer] = []
"""The active observers, in the order in which they are called."""


@contextlib.contextmanager
def observed(observer: Observer, alone: bool = False) -> Iterator[None]:
    """Notify the observer of everything that the reference computes inside the context.

    Args:
        alone: suspend all other observers inside the context.
    """
    others = observers.copy() if alone else []
    for other in others:
        observers.remove(other)
    observers.append(observer)
    try:
        yield
    finally:
        observers.remove(observer)
        observers.extend(others)
