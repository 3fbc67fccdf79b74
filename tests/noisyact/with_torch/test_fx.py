"""torch.fx.symbolic_trace: a noisy module is one node, as a module of torch.nn is, and so is a noisy function."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import noisyact as na
from noisyact import functional
from noisyact.recurrent.functional import noisy_gru, noisy_lstm, noisy_rnn

X, H = torch.randn(4, 3, 5), torch.randn(2, 3, 6)


class Network(nn.Module):
    """Layers, cells and activations, called in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.activation = nn.Linear(5, 5), na.NoisyHardTanh(num_parameters=5)
        self.lstm, self.gru = na.NoisyLSTM(5, 6, 2), na.NoisyGRU(6, 6, bidirectional=True)
        self.lstm_cell, self.gru_cell, self.rnn_cell = (
            kind(6, 6) for kind in (na.NoisyLSTMCell, na.NoisyGRUCell, na.NoisyRNNCell)
        )
        self.start = nn.Parameter(torch.randn(3, 6))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        y, (h_n, c_n) = self.lstm(self.activation(self.linear(x)), (h, h))
        z, _ = self.gru(y)
        h, c = self.lstm_cell(z[0, :, :6], (h_n[0], c_n[0]))
        return z, self.rnn_cell(self.gru_cell(self.start, h)), c  # a tensor as input, a traced state


def test_a_traced_network_is_the_network() -> None:
    model = Network()
    traced = torch.fx.symbolic_trace(model)
    leaves = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    assert leaves == ["linear", "activation", "lstm", "gru", "lstm_cell", "gru_cell", "rnn_cell"]
    for same in (traced, copy.deepcopy(traced), pickle.loads(pickle.dumps(traced))):
        for training in (True, False):
            model.train(training)
            same.train(training)
            torch.manual_seed(1)
            right = model(X, H)
            torch.manual_seed(1)
            found = same(X, H)
            torch.testing.assert_close(found, right)
            assert torch.equal(same(X, H)[0], found[0]) != training  # new noise at each call, in training alone


def test_nodes_have_what_nodes_of_torch_modules_have() -> None:
    """An argument that was not given is not in the node."""
    ours, torchs = (
        [(node.op, node.args, node.kwargs) for node in torch.fx.symbolic_trace(nn.Sequential(layer)).graph.nodes]
        for layer in (na.NoisyLSTM(5, 6), nn.LSTM(5, 6))
    )
    assert str(ours) == str(torchs)


def test_a_cell_is_a_node_whatever_argument_is_traced() -> None:
    reset, names = torch.tensor([True, False, False]), ("reset", "reset_to", "seed", "step", "rows")

    class Steps(nn.Module):
        """A step of each kind of cell, of which one argument is an input."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.cells = nn.ModuleList(kind(5, 6) for kind in (na.NoisyLSTMCell, na.NoisyGRUCell, na.NoisyRNNCell))
            self.given = {"reset": reset, "seed": 3}
            self.name = name

        def forward(self, value) -> list:
            lstm, *others = self.cells
            pair = (value, value) if self.name == "reset_to" else value
            return [
                lstm(X[0], **{**self.given, self.name: pair}),
                *(cell(X[0], **{**self.given, self.name: value}) for cell in others),
            ]

    for name, value in zip(names, (reset, H[0], 4, 2, torch.tensor([4, 0, 9])), strict=True):
        model = Steps(name)
        traced = torch.fx.symbolic_trace(model)
        assert [node.op for node in traced.graph.nodes].count("call_module") == 3
        torch.testing.assert_close(traced(value), model(value))


@pytest.mark.parametrize("training", [True, False])
def test_functions_are_nodes(training: bool) -> None:
    w, u, p = torch.randn(24, 5), torch.randn(24, 6), torch.rand(5)
    seed, own = torch.tensor(4), na.harden(torch.atan)

    class Functions(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return (
                functional.noisy_hard_tanh(x, na.NAH(c=2.0), p, seed=seed, training=training),
                functional.noisy(x, own, "nan:c=0.3", seed=seed, training=training),
                functional.hard_sigmoid(x),
                noisy_lstm(x, None, w, u, seed=seed, training=training)[0],
                noisy_gru(x=x, hx=None, w_ih=w[:18], w_hh=u[:18], seed=seed, training=training)[0],
                noisy_rnn(x, None, w[:6], u[:6], nonlinearity="relu", seed=seed, training=training)[0],
            )

    model = Functions()
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(X), model(X))
