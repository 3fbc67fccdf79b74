"""Checks an installed wheel on the machine it was made for: the kernels load, and they equal the equations in torch.

Run it with the Python that noisyact is installed in: `python release/installed.py`. It ends with status 1 if the C
kernels did not load, or differ from the reference.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

import noisyact as na


def results(backend: str, layer: Any, x: Tensor) -> list[Tensor]:
    """The output of a layer and the gradients of its input and weights, with the same noise for every backend."""
    torch.manual_seed(0)
    layer.backend = backend
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y = layer(x)[0]
    y.square().sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)]


def main() -> None:
    """Compare the kernels with the reference."""
    print(na.__file__)
    print(na.backend_info())
    if "compiled C kernels" not in na.backend_info():
        sys.exit("the C kernels did not load")
    for make in (na.NoisyLSTM, na.NoisyGRU, na.NoisyRNN):
        for threads in (1, 2):
            torch.set_num_threads(threads)
            layer, x = make(11, 19, num_layers=2, bidirectional=True), torch.randn(23, 7, 11)
            pairs = zip(results("cpu", layer, x), results("reference", layer, x), strict=True)
            worst = max(((a - b).abs() / (1 + b.abs())).max().item() for a, b in pairs)
            print(f"{make.__name__}, {threads} threads: largest difference from the reference {worst:.1e}")
            if not worst < 1e-4:
                sys.exit("the kernels differ from the reference")


if __name__ == "__main__":
    main()
