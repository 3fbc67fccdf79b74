"""torch.compile of recurrent layers: six sizes of a batch need two graphs, one for the first size and one for all."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import noisyact as na

SIZES = [(4, 3), (6, 2), (7, 5), (9, 4), (3, 8), (12, 6)]
LAYERS = {"noisy lstm": (lambda: na.NoisyLSTM(3, 4), True), "hard gru": (lambda: na.NoisyGRU(3, 4, noise=None), False)}
"""Each kind of layer and the mode it is compiled in: in the other mode the graph has the same operator."""


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def results(call, layer: nn.Module, x: torch.Tensor, h) -> list:
    torch.manual_seed(0)
    y, _ = call(x, h)
    return [y, *torch.autograd.grad(y.square().sum(), list(layer.parameters()), allow_unused=True)]


@pytest.mark.parametrize("name", LAYERS)
def test_sizes_cost_two_graphs(name: str) -> None:
    make, training = LAYERS[name]
    layer, counter = make().train(training), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    for steps, batch in SIZES:
        x, h = torch.randn(steps, batch, 3), None if layer.mode == "LSTM" else torch.randn(1, batch, 4)
        torch.testing.assert_close(results(compiled, layer, x, h), results(layer, layer, x, h))
    assert counter.frame_count == 2


@pytest.mark.parametrize("with_rows", [False, True])
def test_sizes_of_a_seeded_call_cost_two_graphs(with_rows: bool) -> None:
    """With all that a seed replays: noise, zoneout, recurrent dropout, and dropout between the layers."""
    layer = na.NoisyLSTM(3, 4, 2, dropout=0.4, zoneout=0.2, recurrent_dropout=0.3)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    for steps, batch in SIZES:
        x, reset = torch.randn(steps, batch, 3), torch.rand(steps, batch) < 0.3
        given = {"seed": torch.tensor(batch), "reset": reset, "rows": torch.arange(batch) + 2 if with_rows else None}
        torch.testing.assert_close(compiled(x, **given), layer(x, **given))
    assert counter.frame_count == 2


def test_the_count_counts() -> None:
    """The reference's time loop is unrolled in the graph, and each number of steps needs its own."""
    layer, counter = na.NoisyRNN(3, 4, noise=None, backend="reference"), CompileCounterWithBackend("eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    for steps, batch in SIZES[:3]:
        compiled(torch.randn(steps, batch, 3))
    assert counter.frame_count == 3


def test_a_soft_layer_without_noise_is_left_out_as_torchs_is() -> None:
    """torch.compile cannot train torch.lstm, which computes this layer: it fails, and leaves nn.LSTM out."""

    class Wrapped(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.linear, self.layer = nn.Linear(3, 3), layer

        def forward(self, x: torch.Tensor, h=None):
            return self.layer(self.linear(x), h)

    model, counter = Wrapped(na.NoisyLSTM(3, 4, noise=None, hard=False)), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter)
    for steps, batch in SIZES:
        x = torch.randn(steps, batch, 3)
        torch.testing.assert_close(results(compiled, model, x, None), results(model, model, x, None))
    assert counter.frame_count <= 4  # what is before the layer and what is after it, for one size and for all
    with pytest.raises(torch._dynamo.exc.Unsupported, match="hard=True compiles"):
        torch.compile(na.NoisyLSTM(3, 4, noise=None, hard=False), backend="eager", fullgraph=True)(torch.randn(2, 3, 3))
