"""Soft recurrent layers and cells without noise equal torch's, and errors name a wrong argument."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import noisyact as na
from noisyact.recurrent import functional
from noisyact.recurrent.functional import noisy_lstm

LAYERS = {"lstm": (na.NoisyLSTM, nn.LSTM), "gru": (na.NoisyGRU, nn.GRU), "rnn": (na.NoisyRNN, nn.RNN)}
CELLS = {
    "lstm": (na.NoisyLSTMCell, nn.LSTMCell), "gru": (na.NoisyGRUCell, nn.GRUCell), "rnn": (na.NoisyRNNCell, nn.RNNCell),
}  # fmt: skip


def tensors(result) -> list[torch.Tensor]:
    """Every tensor of a result, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [part for item in result if item is not None for part in tensors(item)]


def values_and_gradients(module, call, leaves):
    """The outputs, and the gradient of a sum in which every element of every output has a weight of its own."""
    outputs = [t for t in tensors(call(module)) if t.is_floating_point()]
    loss = sum((t * torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).reshape(t.shape)).sum() for t in outputs)
    weights = dict(module.named_parameters())
    gradients = torch.autograd.grad(loss, [*leaves, *weights.values()])
    names = [*(f"argument {i}" for i in range(len(leaves))), *weights]
    return outputs, dict(zip(names, gradients, strict=True))


def assert_equal_behaviour(ours, torchs, call, leaves):
    torchs.load_state_dict(ours.state_dict())
    (y, dy), (expected, expected_dy) = (values_and_gradients(m, call, leaves) for m in (ours, torchs))
    for a, b in zip(y, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert dy.keys() == expected_dy.keys()
    for name, gradient in dy.items():
        torch.testing.assert_close(gradient, expected_dy[name], rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


@st.composite
def layer_cases(draw):
    kind = draw(st.sampled_from(list(LAYERS)))
    hidden = draw(st.integers(2, 6))
    settings_ = {
        "input_size": draw(st.integers(1, 5)), "hidden_size": hidden, "num_layers": draw(st.integers(1, 3)),
        "bidirectional": draw(st.booleans()), "bias": draw(st.booleans()), "batch_first": draw(st.booleans()),
    }  # fmt: skip
    if kind == "lstm":
        settings_["proj_size"] = draw(st.integers(0, hidden - 1))
    if kind == "rnn":
        settings_["nonlinearity"] = draw(st.sampled_from(["tanh", "relu"]))
    form = draw(st.sampled_from(["batched", "unbatched", "packed sorted", "packed unsorted"]))
    batch = 1 if form == "unbatched" else draw(st.integers(1, 5))
    lengths = draw(st.lists(st.integers(1, 6), min_size=batch, max_size=batch))
    return kind, settings_, form, lengths, draw(st.booleans()), draw(st.integers(0, 10**6))


@pytest.mark.parametrize("backend", ["auto", "reference"])
@given(case=layer_cases())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_layers_are_torchs(backend, case):
    kind, sizes, form, lengths, with_state, seed = case
    torch.manual_seed(seed)
    mine, theirs = LAYERS[kind]
    ours = mine(**sizes, dtype=torch.float64, hard=False, noise=None, backend=backend)
    torchs = theirs(**sizes, dtype=torch.float64)
    batch, count = len(lengths), sizes["num_layers"] * (1 + sizes["bidirectional"])
    states = []
    if with_state:
        width = [sizes.get("proj_size") or sizes["hidden_size"], sizes["hidden_size"]]
        for w in width[: 2 if kind == "lstm" else 1]:
            shape = (count, w) if form == "unbatched" else (count, batch, w)
            states.append(torch.randn(shape, dtype=torch.float64, requires_grad=True))
    hx = None if not states else tuple(states) if kind == "lstm" else states[0]
    if form.startswith("packed"):
        if form.endswith(" sorted"):
            lengths = sorted(lengths, reverse=True)
        inputs = [torch.randn(n, sizes["input_size"], dtype=torch.float64, requires_grad=True) for n in lengths]

        def call(module):
            return module(pack_sequence(inputs, enforce_sorted=form.endswith(" sorted")), hx)
    else:
        shape = (lengths[0], batch) if not sizes["batch_first"] else (batch, lengths[0])
        shape = (lengths[0],) if form == "unbatched" else shape
        inputs = [torch.randn(*shape, sizes["input_size"], dtype=torch.float64, requires_grad=True)]

        def call(module):
            return module(inputs[0], hx)

    assert_equal_behaviour(ours, torchs, call, [*inputs, *states])


@pytest.mark.parametrize("backend", ["auto", "reference"])
@given(
    kind=st.sampled_from(list(CELLS)), batch=st.integers(0, 5), size=st.integers(1, 5), hidden=st.integers(1, 6),
    bias=st.booleans(), with_state=st.booleans(), relu=st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None, derandomize=True)
def test_cells_are_torchs(backend, kind, batch, size, hidden, bias, with_state, relu):
    mine, theirs = CELLS[kind]
    extra = {"nonlinearity": "relu" if relu else "tanh"} if kind == "rnn" else {}
    ours = mine(size, hidden, bias, **extra, dtype=torch.float64, hard=False, noise=None, backend=backend)
    torchs = theirs(size, hidden, bias, **extra, dtype=torch.float64)
    rows = () if batch == 0 else (batch,)  # 0 stands for an input without a batch
    x = torch.randn(*rows, size, dtype=torch.float64, requires_grad=True)
    states = [torch.randn(*rows, hidden, dtype=torch.float64, requires_grad=True) for _ in range(1 + (kind == "lstm"))]
    hx = None if not with_state else tuple(states) if kind == "lstm" else states[0]
    assert_equal_behaviour(ours, torchs, lambda module: module(x, hx), [x, *states] if with_state else [x])


@pytest.mark.parametrize("kind", LAYERS)
def test_relu_and_hard_layers_without_noise(kind):
    """Hard layers without noise differ from torch's soft ones. A ReLU layer is already hard, so it equals torch's."""
    x = 3 * torch.randn(5, 2, 4)
    mine, theirs = LAYERS[kind]
    ours, torchs = mine(4, 3, noise=None), theirs(4, 3)
    torchs.load_state_dict(ours.state_dict())
    assert not torch.allclose(ours(x)[0], torchs(x)[0], atol=1e-3)
    if kind == "rnn":
        ours, torchs = na.NoisyRNN(4, 3, nonlinearity="relu", noise=None), nn.RNN(4, 3, nonlinearity="relu")
        torchs.load_state_dict(ours.state_dict())
        torch.testing.assert_close(ours(x), torchs(x))


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("noise", [None, "nah"])
@pytest.mark.parametrize("hard", [True, False])
def test_an_empty_batch_gives_an_empty_output(backend, noise, hard):
    for kind, (mine, theirs) in LAYERS.items():
        ours = mine(4, 3, num_layers=2, noise=noise, hard=hard, backend=backend)
        for a, b in zip(
            tensors(ours(torch.randn(5, 0, 4))), tensors(theirs(4, 3, 2)(torch.randn(5, 0, 4))), strict=True
        ):
            assert a.shape == b.shape, kind


@pytest.mark.parametrize("noise", [None, "nah", "nani"])
@pytest.mark.parametrize("table", [LAYERS, CELLS], ids=["layers", "cells"])
@pytest.mark.parametrize("kind", LAYERS)
def test_checkpoints_go_both_ways(table, kind, noise):
    mine, theirs = table[kind]
    shape = {"num_layers": 2, "bidirectional": True} if table is LAYERS else {}
    shape |= {"proj_size": 2} if kind == "lstm" and table is LAYERS else {}
    ours, torchs = mine(4, 3, **shape, noise=noise), theirs(4, 3, **shape)
    extra = ours.state_dict().keys() - torchs.state_dict().keys()
    assert torchs.state_dict().keys() <= ours.state_dict().keys()
    assert all(key.startswith("noise.") for key in extra)
    assert bool(extra) == (noise is not None)
    before = {key: value.clone() for key, value in ours.state_dict().items() if key.startswith("noise.")}
    ours.load_state_dict(torchs.state_dict(), strict=True)
    after = ours.state_dict()
    assert all(torch.equal(after[key], value) for key, value in torchs.state_dict().items())
    assert all(torch.equal(after[key], value) for key, value in before.items())  # a plain checkpoint says nothing of p
    other = theirs(4, 3, **shape)
    other.load_state_dict({k: v for k, v in mine(4, 3, **shape, noise=noise).state_dict().items() if k not in extra})
    if noise == "nah":  # one p missing of a noisy checkpoint is an error, not a plain checkpoint
        broken = dict(ours.state_dict())
        del broken[next(key for key in broken if key.startswith("noise.p"))]
        with pytest.raises(RuntimeError, match=r"Missing key.*noise\.p"):
            ours.load_state_dict(broken)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [na.NoisyLSTM, na.NoisyGRU, na.NoisyRNN])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_state_can_be_detached_in_place(kind, layers, backend):
    """As in truncated backpropagation through time."""
    layer, state, gradients = kind(4, 3, layers, backend=backend), None, []
    for seed in range(2):
        y, state = layer(torch.ones(5, 2, 4), state, seed=seed)
        gradients += torch.autograd.grad(y.sum() + sum(t.sum() for t in tensors((y, state))), [*layer.parameters()])
        for part in tensors((y, state))[1:]:
            part.detach_()
            assert not part.requires_grad
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_what_recurrent_layers_of_torch_offer_is_there():
    ours, torchs = na.NoisyLSTM(4, 3, 2, bidirectional=True), nn.LSTM(4, 3, 2, bidirectional=True)
    ours.flatten_parameters()
    assert [[w.shape for w in ws] for ws in ours.all_weights] == [[w.shape for w in ws] for ws in torchs.all_weights]
    assert ours.all_weights[1][0] is ours.weight_ih_l0_reverse
    named = {name for name, _ in torchs.named_parameters()}
    assert {name for name, _ in ours.named_parameters() if not name.startswith("noise.")} == named
    assert repr(ours).startswith("NoisyLSTM(\n  4, 3, num_layers=2, bidirectional=True")
    bound = 3**-0.5
    assert all(w.abs().max() <= bound for name, w in ours.named_parameters() if not name.startswith("noise."))


X, PACKED = torch.randn(5, 2, 4), pack_sequence([torch.randn(3, 4), torch.randn(2, 4)])
STATE = torch.zeros(1, 2, 3)


def with_backend(module: nn.Module, backend: str) -> nn.Module:
    module.backend = backend
    return module


WRONG = {
    "input size": (lambda: na.NoisyLSTM(4, 3)(torch.randn(5, 2, 7)), RuntimeError, "4, got 7"),
    "packed input size": (lambda: na.NoisyGRU(6, 3)(PACKED), RuntimeError, "6, got 4"),
    "packed input type": (lambda: na.NoisyGRU(4, 3)(PACKED.to(torch.float64)), ValueError, "float64"),
    "input type": (lambda: na.NoisyLSTM(4, 3)(X.double()), ValueError, "float64.*float32"),
    "p of another size": (
        lambda: noisy_lstm(X, None, torch.ones(12, 4), torch.ones(12, 3), p=torch.ones(7)), ValueError, "15.*7",
    ),
    "integer input": (lambda: na.NoisyGRU(4, 3)(torch.ones(5, 2, 4, dtype=torch.int64)), TypeError, "int64"),
    "1-D input": (lambda: na.NoisyRNN(4, 3)(torch.randn(4)), ValueError, r"\(4,\)"),
    "4-D input": (lambda: na.NoisyRNN(4, 3)(torch.randn(1, 2, 3, 4)), ValueError, r"\(1, 2, 3, 4\)"),
    "a list": (lambda: na.NoisyRNN(4, 3)([X]), TypeError, "list"),
    "no steps": (lambda: na.NoisyRNN(4, 3)(X[:0]), RuntimeError, "larger than 0"),
    "h of another batch": (lambda: na.NoisyGRU(4, 3)(X, STATE[:, :1]), RuntimeError, r"\(1, 2, 3\), got \[1, 1, 3\]"),
    "h of another size": (
        lambda: na.NoisyLSTM(4, 3)(X, (STATE[..., :2], STATE)), RuntimeError, r"hx\[0\].*\[1, 2, 2\]",
    ),
    "c of another size": (
        lambda: na.NoisyLSTM(4, 3)(X, (STATE, STATE[..., :2])), RuntimeError, r"hx\[1\].*\[1, 2, 2\]",
    ),
    "h without c": (lambda: na.NoisyLSTM(4, 3)(X, STATE), TypeError, r"\(h, c\), not Tensor"),
    "a tuple of one": (lambda: na.NoisyLSTM(4, 3)(X, (STATE,)), TypeError, r"\(h, c\), not tuple of Tensor"),
    "a tuple of none": (lambda: na.NoisyLSTM(4, 3)(X[:, 0], (None, None)), TypeError, "tuple of NoneType, NoneType"),
    "a tuple for a GRU": (lambda: na.NoisyGRU(4, 3)(X, (STATE, STATE)), TypeError, "a tensor, not tuple"),
    "batched state, unbatched input": (lambda: na.NoisyGRU(4, 3)(X[:, 0], STATE), RuntimeError, "got 3-D"),
    "projection": (lambda: na.NoisyLSTM(4, 3, proj_size=3), ValueError, "proj_size"),
    "hidden size": (lambda: na.NoisyGRU(4, 0), ValueError, "hidden_size"),
    "dropout": (lambda: na.NoisyGRU(4, 3, 2, dropout=1.5), ValueError, "dropout"),
    "backend": (lambda: na.NoisyLSTM(4, 3, backend="gpu"), ValueError, "backend='gpu'"),
    "cell's backend": (lambda: na.NoisyGRUCell(4, 3, backend="CPU"), ValueError, "backend='CPU'"),
    "backend that was set": (lambda: with_backend(na.NoisyLSTM(4, 3), "gpu")(X), ValueError, "backend='gpu'"),
    "cell's backend that was set": (
        lambda: with_backend(na.NoisyGRUCell(4, 3), "gpu")(X[0]), ValueError, "backend='gpu'"
    ),
    "eval_noise": (lambda: na.NoisyLSTM(4, 3, eval_noise="mean"), ValueError, "eval_noise='mean'"),
    "nonlinearity": (lambda: na.NoisyRNN(4, 3, nonlinearity="sine"), ValueError, "nonlinearity='sine'"),
    "cell's nonlinearity": (lambda: na.NoisyRNNCell(4, 3, nonlinearity="elu"), ValueError, "nonlinearity='elu'"),
    "scheme": (lambda: na.NoisyLSTM(4, 3, noise="nax"), ValueError, "'nax'"),
    "gate scheme": (lambda: na.NoisyGRU(4, 3, gate_noise=0.5), TypeError, "0.5"),
    "triton": (lambda: na.NoisyLSTM(4, 3, backend="triton")(X), RuntimeError, "'triton'.*input is on cpu"),
    "cpu, given xi": (
        lambda: functional.noisy_rnn(
            X, None, torch.ones(3, 4), torch.ones(3, 3), xi=torch.ones(5, 2, 1, 3), backend="cpu"
        ),
        RuntimeError, "'cpu'.*xi is given",
    ),
    "cell input": (lambda: na.NoisyGRUCell(4, 3)(X[0, :, :3]), ValueError, r"4.*\(2, 3\)"),
    "cell integers": (lambda: na.NoisyGRUCell(4, 3)(torch.ones(2, 4, dtype=torch.int32)), TypeError, "int32"),
    "cell h": (lambda: na.NoisyGRUCell(4, 3)(X[0], STATE[0, :1]), ValueError, r"h must.*\(2, 3\), not \(1, 3\)"),
    "cell c": (lambda: na.NoisyLSTMCell(4, 3)(X[0], (STATE[0], STATE)), ValueError, r"c must.*\(1, 2, 3\)"),
    "cell state": (lambda: na.NoisyLSTMCell(4, 3)(X[0], STATE[0, 0]), TypeError, r"not a tensor of shape \(3,\)"),
    "cell's tuple of one": (lambda: na.NoisyLSTMCell(4, 3)(X[0], STATE[:1].unbind()), TypeError, "not tuple of Tensor"),
    "cell's numbers": (lambda: na.NoisyLSTMCell(4, 3)(X[0], (0, 0)), TypeError, "h must be a tensor, not int"),
    "a tuple for a GRU cell": (lambda: na.NoisyGRUCell(4, 3)(X[0], (STATE[0],)), TypeError, "a tensor, not tuple"),
    "cell xi of a number": (lambda: na.NoisyGRUCell(4, 3)(X[0], xi=1.0), TypeError, "xi must be a tensor, not float"),
    "cell xi": (lambda: na.NoisyLSTMCell(4, 3)(X[0], xi=torch.ones(2, 3)), ValueError, r"\(2, 5, 3\), not \(2, 3\)"),
    "cell xi, GRU": (lambda: na.NoisyGRUCell(4, 3)(X[0], xi=torch.ones(2, 5, 3)), ValueError, r"\(2, 3, 3\), not"),
    "function's xi": (
        lambda: functional.noisy_rnn(X, None, torch.ones(3, 4), torch.ones(3, 3), xi=torch.ones(5, 2, 3)), ValueError,
        r"\(5, 2, 1, 3\), not \(5, 2, 3\)",
    ),
    "function's x": (
        lambda: functional.noisy_rnn(X[0], None, torch.ones(3, 4), torch.ones(3, 3)), ValueError, r"\(2, 4\)",
    ),
    "function's nonlinearity": (
        lambda: functional.noisy_rnn(X, None, torch.ones(3, 4), torch.ones(3, 3), nonlinearity="sine"), ValueError,
        "'sine'",
    ),
    "backend of what": (lambda: na.backend_info(nn.Linear(4, 3)), TypeError, "Linear"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case):
    call, error, named = WRONG[case]
    with pytest.raises(error, match=named):
        call()


def test_the_backend_is_explained():
    assert "the C kernel" in na.backend_info(na.NoisyLSTM(4, 3))
    assert "the C kernel" in na.backend_info(na.NoisyLSTM(4, 3).double())
    assert "the C kernel" in na.backend_info(na.NoisyLSTM(4, 3, proj_size=2))
    assert "torch's own layer" in na.backend_info(na.NoisyGRU(4, 3, hard=False, noise=None))
    assert "backend='reference'" in na.backend_info(na.NoisyRNNCell(4, 3, backend="reference"))


def test_a_packed_result_is_packed_alike():
    packed = pack_sequence([torch.randn(2, 4), torch.randn(5, 4), torch.randn(3, 4)], enforce_sorted=False)
    y, _ = na.NoisyLSTM(4, 3)(packed)
    assert isinstance(y, PackedSequence)
    assert torch.equal(y.batch_sizes, packed.batch_sizes)
    assert torch.equal(y.unsorted_indices, packed.unsorted_indices)
