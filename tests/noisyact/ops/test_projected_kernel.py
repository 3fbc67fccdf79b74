"""The C kernel of an LSTM with a projection, h = W_hr (o tanh(c)), against the plain torch reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import noisyact as na
from noisyact.ops.recurrent.cpu import registration

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


def results(module, x, states, lengths=None):
    """The outputs and all gradients of a sum in which every element has its own weight."""
    torch.manual_seed(3)
    leaves = [t.clone().requires_grad_() for t in (x, *states)]
    own_x = leaves[0] if lengths is None else pack_sequence(leaves[0].split(lengths), enforce_sorted=False)
    y, (h, c) = module(own_x, tuple(leaves[1:]) or None)
    outputs = [y if lengths is None else y.data, h, c]
    total = sum((t * torch.linspace(-1, 1, t.numel()).reshape(t.shape).cos()).sum() for t in outputs)
    wanted = [*leaves, *module.parameters()]
    return [*outputs, *torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)]


def assert_close(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-4 * max(b.abs().max().item(), 1e-3))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_drawn_layers_equal_the_reference(data):
    hidden, steps, batch = data.draw(st.integers(2, 70)), data.draw(st.integers(1, 6)), data.draw(st.integers(1, 8))
    options = {
        "proj_size": data.draw(st.integers(1, hidden - 1)),
        # Schemes whose derivative jumps are left to the fuzzer, which can tell a jump from an error.
        "noise": data.draw(st.sampled_from(["nan", "nah", "nan:alpha=0.9", None])),
        "hard": data.draw(st.booleans()),
        "bias": data.draw(st.booleans()),
        "bidirectional": data.draw(st.booleans()),
        "num_layers": data.draw(st.integers(1, 2)),
    }
    torch.manual_seed(data.draw(st.integers(0, 99)))
    kernel = na.NoisyLSTM(5, hidden, backend="cpu", **options)
    reference = na.NoisyLSTM(5, hidden, backend="reference", **options)
    reference.load_state_dict(kernel.state_dict())
    packed = data.draw(st.booleans())
    lengths = data.draw(st.lists(st.integers(1, steps), min_size=batch, max_size=batch)) if packed else None
    x = hidden**0.5 * torch.randn(*((steps, batch) if lengths is None else (sum(lengths),)), 5)
    count = options["num_layers"] * (1 + options["bidirectional"])
    states = [torch.randn(count, batch, n) for n in (options["proj_size"], hidden)] if data.draw(st.booleans()) else []
    found = results(kernel, x, states, lengths)
    assert_close(found, results(reference, x, states, lengths))
    torch.manual_seed(3)
    with torch.no_grad():  # without backward the kernel keeps nothing
        given_x = x if lengths is None else pack_sequence(x.split(lengths), enforce_sorted=False)
        y = kernel(given_x, tuple(states) or None)[0]
    assert torch.equal(y if lengths is None else y.data, found[0])


@pytest.mark.parametrize(("hidden", "projection", "size"), [(300, 200, 7), (200, 33, 300)])
def test_weights_larger_than_the_caches(hidden, projection, size):
    """Threads then divide the units and wait for each other twice in a step."""
    kernel = na.NoisyLSTM(size, hidden, proj_size=projection, backend="cpu")
    reference = na.NoisyLSTM(size, hidden, proj_size=projection, backend="reference")
    reference.load_state_dict(kernel.state_dict())
    x, states = 2 * torch.randn(3, 7, size), [torch.randn(1, 7, projection), torch.randn(1, 7, hidden)]
    threads, found = torch.get_num_threads(), []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            found.append(results(kernel, x, states))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    assert_close(found[0], results(reference, x, states))


def test_without_noise_it_is_torchs_layer():
    ours = na.NoisyLSTM(4, 9, 2, proj_size=3, bidirectional=True, noise=None, hard=False, backend="cpu")
    torchs = nn.LSTM(4, 9, 2, proj_size=3, bidirectional=True)
    torchs.load_state_dict(ours.state_dict())
    x, states = torch.randn(6, 5, 4), [torch.randn(4, 5, 3), torch.randn(4, 5, 9)]
    assert_close(results(ours, x, states), results(torchs, x, states))


def test_the_operator_keeps_torchs_rules():
    def leaf(*shape):
        return torch.randn(*shape).requires_grad_()

    scale = torch.tensor(0.5)
    weights = (leaf(20, 4), leaf(20, 3), leaf(20), leaf(20), leaf(25), leaf(3, 5))
    settings = (torch.tensor(7), "lstm", "nah", "nah", True, scale, scale, False)
    arguments = (leaf(4, 4), torch.tensor([2, 1, 1]), leaf(2, 3), leaf(2, 5), *weights, *settings)
    torch.library.opcheck(registration._layer, arguments)


def test_a_compiled_layer_is_the_same():
    lstm = na.NoisyLSTM(4, 9, proj_size=3, backend="cpu").eval()
    x = 2 * torch.randn(6, 5, 4)
    torch.testing.assert_close(torch.compile(lstm, backend="aot_eager")(x)[0], lstm(x)[0])


def test_only_an_lstm_has_a_projection():
    scale, N = torch.tensor(0.5), torch.randn
    settings = (None, "gru", "nah", "nah", True, scale, scale, False)
    with pytest.raises(ValueError, match=r"w_hr.*only an LSTM"):
        torch.ops.noisyact.recurrent_layer(
            N(4, 4), torch.tensor([2, 2]), N(2, 3), None, N(15, 4), N(15, 3), None, None, None, N(3, 5), *settings
        )
