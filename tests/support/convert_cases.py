"""Models to convert: chains, nests, shared and tied parts, what must stay as it is."""

import math

import torch
from torch import nn
from torch.nn.utils import spectral_norm
from torch.nn.utils.parametrizations import weight_norm


class Layer(nn.Module):
    def __init__(self, activation: nn.Module | None) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.activation = activation
        self.skip = None
        self.register_module("dropout", None)

    def forward(self, x):
        x = self.linear(x)
        return x if self.activation is None else self.activation(x)


class Branches(nn.Module):
    def __init__(self, parts: nn.ModuleList | nn.ModuleDict) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.parts = parts

    def forward(self, x):
        parts = self.parts.values() if isinstance(self.parts, nn.ModuleDict) else self.parts
        return sum(part(self.linear(x)) for part in parts)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.head = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x):
        return self.head(self.lstm(x[None])[0])


class OwnTanh(nn.Tanh):
    """Computes something else than its base: conversion must not touch it."""

    def forward(self, input):
        return super().forward(input) + input


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


def shared_in_one_parent() -> nn.Module:
    act = nn.Tanh()
    return nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4), act)


def shared_across_parents() -> nn.Module:
    act = nn.Sigmoid()
    return nn.Sequential(Layer(act), nn.Sequential(Layer(act), nn.Tanh()))


def used_spectral_norm() -> nn.Module:
    model = nn.Sequential(spectral_norm(nn.Linear(4, 4)), nn.Tanh())
    model(torch.ones(1, 4))  # from here on its weight is the result of a computation, which deepcopy refuses
    return model


def small(*activations: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), *activations)


# The model, and the dotted names that must turn noisy.
MODELS = {
    "the model is a tanh": (nn.Tanh, [""]),
    "the model is a hardsigmoid": (nn.Hardsigmoid, [""]),
    "chain": (lambda: small(nn.Tanh(), nn.Linear(4, 4), nn.Sigmoid()), ["1", "3"]),
    "nested": (lambda: small(small(nn.Tanh(), small(nn.Sigmoid()))), ["1.1", "1.2.1"]),
    "ModuleList": (lambda: Branches(nn.ModuleList([nn.Tanh(), nn.ReLU(), nn.Sigmoid()])), ["parts.0", "parts.2"]),
    "ModuleDict": (lambda: Branches(nn.ModuleDict({"a": nn.Tanh(), "b": nn.GELU()})), ["parts.a"]),
    "shared in one parent": (shared_in_one_parent, ["1"]),
    "shared across parents": (shared_across_parents, ["0.activation", "1.1"]),
    "tied weights": (tied, ["1"]),
    "Hardtanh with a range": (lambda: small(nn.Hardtanh(-2.0, 0.5, inplace=True)), ["1"]),
    "one-sided Hardtanh": (lambda: small(nn.Hardtanh(-1.0, math.inf)), ["1"]),
    "Hardsigmoid": (lambda: small(nn.Hardsigmoid()), ["1"]),
    "attribute": (lambda: Layer(nn.Tanh()), ["activation"]),
    "empty slots": (lambda: Layer(None), []),
    "batch norm": (lambda: small(nn.BatchNorm1d(4), nn.Tanh()), ["2"]),
    "convolution": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2), nn.Tanh(), nn.Flatten()),
        ["2"],
    ),
    "LSTM inside": (Recurrent, ["lstm", "head.1"]),
    "the model is a GRU cell": (lambda: nn.GRUCell(4, 4), [""]),
    "transformer layer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, activation=nn.Tanh()), ["activation"]),
    "transformer layer with a function": (lambda: nn.TransformerEncoderLayer(4, 2, 8), []),
    "nothing saturates": (lambda: small(nn.ReLU(), nn.GELU()), []),
    "evaluation mode": (lambda: small(nn.Tanh()).eval(), ["1"]),
    "partly evaluation mode": (lambda: small(nn.Tanh().eval(), nn.Sigmoid()), ["1", "2"]),
    "float64": (lambda: small(nn.Tanh()).double(), ["1"]),
    "bfloat16": (lambda: small(nn.Sigmoid()).bfloat16(), ["1"]),
    "frozen": (lambda: small(nn.Tanh()).requires_grad_(False), ["1"]),
    "subclass of Tanh": (lambda: small(OwnTanh(), nn.Tanh()), ["2"]),
    "range without zero": (lambda: small(nn.Hardtanh(1.0, 2.0)), []),
    "range without an end": (lambda: small(nn.Hardtanh(-math.inf, math.inf)), []),
    "ReLU6 and Softsign": (lambda: small(nn.ReLU6(), nn.Softsign(), nn.LogSigmoid()), ["1", "2"]),
    "LogSigmoid": (lambda: small(nn.LogSigmoid()), []),
    "weight norm": (lambda: nn.Sequential(weight_norm(nn.Linear(4, 4)), nn.Tanh()), ["1"]),
    "used spectral norm": (used_spectral_norm, ["1"]),
}
