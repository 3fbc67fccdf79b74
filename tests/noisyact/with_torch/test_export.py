"""Deployment: what is exported in evaluation mode is plain torch, and runs elsewhere."""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import noisyact as na

SCHEMES = ["nan", "nah", "nani", "nanil", "nanis"]
ACTIVATIONS = {"hard tanh": na.NoisyHardTanh, "hard sigmoid": na.NoisyHardSigmoid}


class Network(nn.Module):
    """A layer on its own, so that the test decides what saturates it, and one inside a network."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.activation(x), self.linear(self.activation(4 * self.linear(torch.tanh(x))))


class Networks(nn.Module):
    """A network of each activation, side by side."""

    def __init__(self, activations: Iterable[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(map(Network, activations))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [y for network in self.networks for y in network(x)]


def inputs(batch: int) -> Tensor:
    """From the linear part to deep saturation, both sides, the kinks and the infinities among them."""
    x = torch.randn(batch, 8) * torch.logspace(-1, 4, 8)
    x[0] = torch.tensor([0.0, 1.0, -1.0, 2.0, -2.0, 1e30, torch.inf, -torch.inf])
    return x


def operators(program: torch.export.ExportedProgram) -> set[str]:
    return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}


def exported(model: nn.Module, batch: int = 4, **settings) -> torch.export.ExportedProgram:
    sizes = ({0: torch.export.Dim("batch", min=2, max=4096)},)
    return torch.export.export(model, (inputs(batch),), dynamic_shapes=sizes, **settings)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS.keys())
@pytest.mark.parametrize("scheme", SCHEMES)
def test_export_is_plain_torch_with_a_dynamic_batch(scheme: str, activation: type, strict: bool) -> None:
    model = Network(activation(scheme, num_parameters=8)).eval()
    program = exported(model, strict=strict)
    assert operators(program)
    assert all(name.startswith("aten.") for name in operators(program)), operators(program)
    assert not any("rand" in name for name in operators(program))
    for batch in (2, 4, 33):
        x = inputs(batch)
        for ours, eager in zip(program.module()(x), model(x), strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)


def test_training_mode_is_another_program() -> None:
    """The check above can fail: noise in training is drawn."""
    program = torch.export.export(Network(na.NoisyHardTanh("nah")), (inputs(4),))
    assert any("rand" in name for name in operators(program))


@pytest.mark.parametrize("eval_noise", ["hard", "expectation"])
def test_the_rule_for_evaluation_is_exported(eval_noise: str) -> None:
    model = Network(na.NoisyHardTanh("nah:c=2.0", eval_noise=eval_noise)).eval()
    x = inputs(4)
    found = exported(model).module()(x)[0]
    torch.testing.assert_close(found, model(x)[0])
    assert torch.equal(found, na.functional.hard_tanh(x)) == (eval_noise == "hard")


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # torch.export.load in torch 2.9
def test_the_annealed_scale_is_exported_and_saved() -> None:
    model = Network(na.NoisyHardTanh("nah:c=30.0")).eval()
    na.set_noise_scale(model, 0.25)
    program, buffer, x = exported(model), io.BytesIO(), inputs(4)
    assert program.state_dict["activation.scale"].item() == 0.25
    torch.export.save(program, buffer)
    buffer.seek(0)
    again = torch.export.load(buffer).module()(x)
    for ours, eager in zip(again, model(x), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)
    na.set_noise_scale(model, 30.0)
    assert not torch.allclose(again[0], model(x)[0])


# torch's own exporter copies a deprecated kind of tree specification.
@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning")
def test_onnx_runs_elsewhere() -> None:
    """All schemes and activations in one graph, because each export takes a second."""
    model = Networks(kind(scheme, num_parameters=8) for kind in ACTIVATIONS.values() for scheme in SCHEMES).eval()
    sizes = ({0: torch.export.Dim("batch", min=2, max=4096)},)
    program = torch.onnx.export(model, (inputs(4),), dynamo=True, dynamic_shapes=sizes, verbose=False)
    assert program is not None
    buffer = io.BytesIO()
    program.save(buffer)
    session = onnxruntime.InferenceSession(buffer.getvalue(), providers=["CPUExecutionProvider"])
    (name,) = (tensor.name for tensor in session.get_inputs())
    for batch in (2, 4, 33):
        x = inputs(batch)
        for ours, eager in zip(session.run(None, {name: x.numpy()}), model(x), strict=True):
            np.testing.assert_allclose(ours, eager.detach().numpy(), rtol=1e-5, atol=1e-5)
