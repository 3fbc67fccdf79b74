"""The network of the mixture experiment, and what each of its units does."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

import noisyact as na
from noisyact.functional import noisy, standard_normal

__all__ = ["Network", "Units"]


@dataclasses.dataclass(frozen=True)
class Units:
    """What a layer's units do with a batch, each [batch, units]: their inputs x, phi(x, xi) and dphi/dx."""

    x: Tensor
    phi: Tensor
    dphi: Tensor


class Network(nn.Module):
    """Layers of units, and a linear layer that names the distribution of a point in the plane.

    Args:
        layers: hidden layers.
        units: of each.
        outputs: distributions.
        activation: makes the function of a layer's units.
    """

    def __init__(self, layers: int, units: int, outputs: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        widths = [2] + [units] * layers
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.activations = nn.ModuleList(activation() for _ in self.linears)
        self.head = nn.Linear(widths[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 2] to the logits, [batch, outputs]."""
        for linear, activation in zip(self.linears, self.activations, strict=True):
            x = activation(linear(x))
        return self.head(x)

    def units(self, x: Tensor, seed: int) -> list[Units]:
        """The units of each layer, with the noise that the seed stands for, as in training."""
        found = []
        for layer, (linear, activation) in enumerate(zip(self.linears, self.activations, strict=True)):
            x = linear(x).detach().requires_grad_()
            if isinstance(activation, na.NoisyActivation):
                xi = standard_normal(torch.tensor(seed + layer, device=x.device), x.shape)
                phi = noisy(x, activation.pair, activation.noise, activation.p, xi, scale=activation.scale)
            else:
                phi = activation(x)
            (dphi,) = torch.autograd.grad(phi.sum(), x)
            found.append(Units(x.detach(), phi.detach(), dphi))
            x = phi.detach()
        return found
