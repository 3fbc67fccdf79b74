"""TF32 for a while: whether a GPU rounds the factors of float32 products to 10 bits, which is some times as fast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["tf32_products"]


@contextlib.contextmanager
def tf32_products(on: bool) -> Iterator[None]:
    """Within it products of float32 matrices on a GPU are TF32, or are not; after it as before.

    >>> with tf32_products(True):
    ...     torch.backends.cuda.matmul.allow_tf32
    True
    """
    products = torch.backends.cuda.matmul
    before, products.allow_tf32 = products.allow_tf32, on
    try:
        yield
    finally:
        products.allow_tf32 = before
