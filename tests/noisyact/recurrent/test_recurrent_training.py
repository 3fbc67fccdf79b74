"""Recurrent layers in use: training, compilation, checkpointing, precision, copies."""

import copy
import pickle

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import noisyact as na

LAYERS = {"lstm": na.NoisyLSTM, "gru": na.NoisyGRU, "rnn": na.NoisyRNN}
CELLS = {"lstm": na.NoisyLSTMCell, "gru": na.NoisyGRUCell, "rnn": na.NoisyRNNCell}


class Language(nn.Module):
    """Predicts the next of a few letters."""

    def __init__(self, kind="lstm", letters=7, num_layers=2, **settings):
        super().__init__()
        self.embedding = nn.Embedding(letters, 12)
        nn.init.normal_(self.embedding.weight, std=4.0)  # so that units saturate and are noisy from the start
        self.layer = LAYERS[kind](12, 24, num_layers, dropout=0.1 * (num_layers > 1), **settings)
        self.head = nn.Linear(24, letters)

    def forward(self, letters):
        return self.head(self.layer(self.embedding(letters))[0])


@pytest.mark.parametrize("kind", LAYERS)
def test_the_kernel_trains_as_the_reference_does(kind):
    """Every letter is the next of the alphabet but one: losses agree step by step, and fall."""
    letters = (torch.randint(7, (1, 8)) + 2 * torch.arange(15)[:, None]) % 7
    losses = {}
    for backend in ("cpu", "reference"):
        torch.manual_seed(2)
        model = Language(kind, backend=backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        losses[backend] = []
        for _ in range(100):
            loss = F.cross_entropy(model(letters[:-1]).flatten(0, 1), letters[1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses[backend].append(loss.item())
    torch.testing.assert_close(torch.tensor(losses["cpu"]), torch.tensor(losses["reference"]), rtol=1e-3, atol=1e-3)
    assert losses["cpu"][-1] < 0.7 * losses["cpu"][0]


def gradients(model, y):
    return torch.autograd.grad(y.square().sum(), list(model.parameters()), allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("kind", LAYERS)
def test_compiled_whole(kind, backend):
    torch._dynamo.reset()
    # The reference is compiled step by step and layer by layer.
    letters = torch.randint(7, (5 if backend == "cpu" else 2, 3))
    model = Language(kind, num_layers=2 if backend == "cpu" else 1, backend=backend)
    model.layer.dropout = 0.0  # compiled dropout draws in another order
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for training in (True, False):
        model.train(training)
        torch.manual_seed(1)
        eager = model(letters)
        torch.manual_seed(1)
        found = compiled(letters)
        torch.testing.assert_close(found, eager)
        torch.testing.assert_close(gradients(model, found), gradients(model, eager))
    model.train()
    assert not torch.equal(compiled(letters), compiled(letters))
    torch._dynamo.reset()


@pytest.mark.parametrize("preserve", [True, False])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_checkpointed_region_sees_its_noise_again(kind, backend, preserve):
    layer = LAYERS[kind](4, 6, 2, noise="nah:c=9", backend=backend)
    x = 3 * torch.randn(5, 3, 4)

    def gradient(checkpointed):
        torch.manual_seed(3)
        leaf = x.clone().requires_grad_()
        if checkpointed:
            y, _ = checkpoint(layer, leaf, use_reentrant=False, preserve_rng_state=preserve)
        else:
            y, _ = layer(leaf)
        torch.randn(5)  # moves the generator between forward and backward
        return torch.autograd.grad(y.square().sum(), [leaf, *layer.parameters()])

    for a, b in zip(gradient(True), gradient(False), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", LAYERS)
def test_half_precision(kind, dtype):
    """Computed in float32, rounded at the end: near the float32 layer, in the type of the input."""
    layer, cell = LAYERS[kind](4, 6).eval(), CELLS[kind](4, 6).eval()
    x = torch.randn(5, 3, 4).to(dtype)
    exact = layer.to(dtype).float()(x.float())[0]
    layer.to(dtype)
    y, state = layer(x)
    assert {t.dtype for t in (y, *(state if kind == "lstm" else [state]))} == {dtype}
    torch.testing.assert_close(y.float(), exact, rtol=0.01, atol=0.01)
    new = cell.to(dtype)(x[0])
    assert {t.dtype for t in (new if kind == "lstm" else [new])} == {dtype}
    layer.train()(x)[0].sum().backward()
    assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in layer.parameters())
    assert layer.noise.scale.dtype == torch.float32  # a schedule's values must not be rounded


@pytest.mark.parametrize("kind", LAYERS)
def test_autocast(kind):
    layer, cell = LAYERS[kind](4, 6), CELLS[kind](4, 6)
    x = torch.randn(5, 3, 4)
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", torch.bfloat16):
            y, state = layer(x.to(dtype))
            new = cell(x[0].to(dtype))
        states, new = (state, new) if kind == "lstm" else ([state], [new])
        assert {t.dtype for t in (y, *states)} == {torch.bfloat16}  # as nn.LSTM
        assert {t.dtype for t in new} == {dtype}  # as nn.LSTMCell: a float32 state is not carried on in bfloat16
        assert all(t.isfinite().all() for t in (y, *states, *new))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("table", [LAYERS, CELLS], ids=["layers", "cells"])
@pytest.mark.parametrize("kind", LAYERS)
def test_copies(table, kind, duplicate):
    for settings in ({"noise": "nah:c=3", "eval_noise": "sample"}, {"noise": None, "hard": False}):
        module = table[kind](4, 6, **settings)
        na.set_noise_scale(module, 0.7) if settings["noise"] else None
        twin = duplicate(module).eval()
        x = torch.randn(3, 4)
        torch.manual_seed(1)
        found = twin(x)
        torch.manual_seed(1)
        torch.testing.assert_close(found, module(x))
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
        result = twin(x)
        last = result[0] if isinstance(result, tuple) else result
        assert not last.any()  # its own weights are those it computes with, and
        assert all(parameter.any() for parameter in module.parameters())  # nobody else's
