"""TF32 products: the GPU rounds the factors of float32 products to 10 bits, which is several times as fast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["tf32_products"]


@contextlib.contextmanager
def tf32_products(on: bool) -> Iterator[None]:
    """Switch TF32 on or off for float32 matrix products on a GPU, and restore the setting on exit.

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
