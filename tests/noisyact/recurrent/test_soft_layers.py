"""Soft layers without noise equal torch's on either path, and the rule chooses the path."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import noisyact as na
from noisyact.ops import native
from noisyact.recurrent import backends

KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}


@pytest.fixture(scope="module", autouse=True)
def always():
    """noisyact's layer runs for every kind and size, whatever is faster."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("why_torch", "why_torch_uncached"):
            patch.setattr(backends, name, lambda *arguments: None)
        yield


def tensors(result) -> list[torch.Tensor]:
    if isinstance(result, PackedSequence):
        return [result.data]
    return [result] if isinstance(result, torch.Tensor) else [t for part in result for t in tensors(part)]


def compare(ours, theirs, x, hx, rtol=1e-4, atol=1e-5):
    """All outputs, and the gradients of the input and of all weights, for the same random stream."""
    found = []
    for layer in (ours, theirs):
        torch.manual_seed(5)
        leaf = (x.data if isinstance(x, PackedSequence) else x).detach().requires_grad_()
        fed = PackedSequence(leaf, *x[1:]) if isinstance(x, PackedSequence) else leaf
        outputs = tensors(layer(fed, hx))
        generator = torch.Generator().manual_seed(1)
        loss = sum((out * torch.randn(out.shape, generator=generator)).sum() for out in outputs)
        found.append([*outputs, *torch.autograd.grad(loss, [leaf, *layer.parameters()])])
    assert [t.dtype for t in found[0]] == [t.dtype for t in found[1]]
    torch.testing.assert_close(*found, rtol=rtol, atol=atol)


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_values_and_gradients_are_torchs(data):
    kind = data.draw(st.sampled_from(list(KINDS)))
    sizes = st.integers(1, 9)
    inputs, hidden, steps, batch = (data.draw(sizes) for _ in range(4))
    options = {
        "num_layers": data.draw(st.integers(1, 3)), "bias": data.draw(st.booleans()),
        "batch_first": data.draw(st.booleans()), "bidirectional": data.draw(st.booleans()),
        "dtype": data.draw(st.sampled_from([torch.float32, torch.float32, torch.float64])),
    }  # fmt: skip
    if options["num_layers"] > 1:
        options["dropout"] = data.draw(st.sampled_from([0.0, 0.4]))  # the same random stream on a CPU
    if kind == "LSTM" and hidden > 1:
        options["proj_size"] = data.draw(st.integers(0, hidden - 1))
    if kind == "RNN":
        options["nonlinearity"] = data.draw(st.sampled_from(["tanh", "relu"]))
    form = data.draw(st.sampled_from(["batched", "unbatched", "packed"]))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    theirs = KINDS[kind](inputs, hidden, **options).train(data.draw(st.booleans()))
    ours = na.accelerate(theirs)
    assert type(ours) is getattr(na, f"Noisy{kind}")
    dtype = options["dtype"]
    shape = [batch, steps] if options["batch_first"] else [steps, batch]
    x = torch.randn(*shape, inputs, dtype=dtype)
    if form == "unbatched":
        x, batch = torch.randn(steps, inputs, dtype=dtype), None
    elif form == "packed":
        lengths = data.draw(st.lists(st.integers(1, steps), min_size=batch, max_size=batch))
        x = pack_sequence([torch.randn(n, inputs, dtype=dtype) for n in lengths], enforce_sorted=False)
    hx = None
    if data.draw(st.booleans()):
        count = options["num_layers"] * (2 if options["bidirectional"] else 1)
        rows = [count] if batch is None else [count, batch]
        hx = torch.randn(*rows, options.get("proj_size", 0) or hidden, dtype=dtype)
        hx = (hx, torch.randn(*rows, hidden, dtype=dtype)) if kind == "LSTM" else hx
    compare(ours, theirs, x, hx)


@pytest.mark.parametrize("kind", KINDS)
def test_torch_features(kind):
    theirs = KINDS[kind](4, 5, 2)
    ours, x = na.accelerate(theirs), torch.randn(6, 3, 4)
    other = {name: value + 0.1 for name, value in theirs.named_parameters()}
    call = torch.func.functional_call
    torch.testing.assert_close(call(ours, other, (x,)), call(copy.deepcopy(theirs), other, (x,)))
    torch.testing.assert_close(ours(x[:, :0])[0].shape, theirs(x[:, :0])[0].shape)

    class Halved(nn.Module):
        def forward(self, weight):
            return weight / 2

    plain = KINDS[kind](4, 5, 2)
    plain.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        plain.weight_hh_l1.div_(2)
    parametrize.register_parametrization(ours, "weight_hh_l1", Halved())
    torch.testing.assert_close(ours(x), plain(x))
    with pytest.warns(UserWarning, match="denoisify left parts of .* unchanged: it: .*, its weights are computed"):
        na.denoisify(ours)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_compiled_it_is_one_operator_and_exported_it_is_torchs():
    theirs = nn.GRU(4, 5, 2)
    ours, x = na.accelerate(theirs), torch.randn(6, 3, 4, requires_grad=True)
    graphs = []
    compiled = torch.compile(ours, fullgraph=True, backend=lambda graph, inputs: graphs.append(graph) or graph)
    torch.testing.assert_close(compiled(x), theirs(x))
    assert str(graphs[0].graph).count("noisyact.recurrent_layer") == 2 * bool(native.library())
    mine, right = (torch.autograd.grad(layer(x)[0].square().sum(), x) for layer in (compiled, theirs))
    torch.testing.assert_close(mine, right)
    longer = torch.randn(9, 2, 4)
    exported = torch.export.export(ours.eval(), (x.detach(),))
    assert not [node for node in exported.graph.nodes if "noisyact" in str(node.target)]
    torch.testing.assert_close(exported.module()(x.detach()), theirs(x))
    torch.testing.assert_close(torch.jit.trace(ours, x.detach())(longer), theirs(longer))


def test_second_derivatives_name_the_way_out():
    gru = na.accelerate(nn.GRU(4, 5))
    if native.library() is None:
        pytest.skip("without compiled kernels torch's operations run, which have second derivatives")
    x = torch.randn(6, 3, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="second derivative of a recurrent layer needs backend='reference'"):
        torch.autograd.grad(gru(x)[0].sum(), x, create_graph=True)
    gru.backend = "reference"
    (g,) = torch.autograd.grad(gru(x)[0].sum(), x, create_graph=True)
    g.square().sum().backward()
    assert gru.weight_hh_l0.grad is not None


class Words(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embedding, self.rnn, self.head = nn.Embedding(7, 8), kind(8, 8), nn.Linear(8, 7)

    def forward(self, words):
        return self.head(self.rnn(self.embedding(words))[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_language_model_trains_alike(kind):
    """200 updates by Adam: each loss agrees, and the model learns."""
    torch.manual_seed(0)
    words = torch.randint(7, (500, 4))
    words[1::2] = (words[::2] * 3 + 1) % 7  # every second word follows from the one before
    models = [Words(KINDS[kind])]
    models.append(na.accelerate(copy.deepcopy(models[0])))
    assert type(models[1].rnn) is getattr(na, f"Noisy{kind}")
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.02) for model in models]
    losses = []
    for step in range(200):
        batch = words[2 * step : 2 * step + 7]
        row = []
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch[:-1]).flatten(0, 1), batch[1:].flatten())
            loss.backward()
            optimizer.step()
            row.append(loss.item())
        losses.append(row)
    theirs, ours = torch.tensor(losses).t()
    torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)
    assert theirs[-20:].mean() < 0.8 * theirs[0]
