"""Recurrent layers and cells under torch's transforms and tracers: correct, or an error that suggests a workaround."""

import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import noisyact as na

LAYERS = {"lstm": na.NoisyLSTM, "gru": na.NoisyGRU, "rnn": na.NoisyRNN}
CELLS = {"lstm": na.NoisyLSTMCell, "gru": na.NoisyGRUCell, "rnn": na.NoisyRNNCell}
SETTINGS = {"noisy": {"noise": "nah:c=3"}, "hard": {"noise": None}, "soft": {"noise": None, "hard": False}}
BATCHES = torch.randn(2, 6, 3, 4, generator=torch.Generator().manual_seed(3))
X = BATCHES[0]


def first(found):
    """h of a cell, every h of a layer."""
    return found[0] if isinstance(found, tuple) else found


def modules(kind, settings, **more):
    return [LAYERS[kind](4, 5, 2, **SETTINGS[settings], **more), CELLS[kind](4, 5, **SETTINGS[settings], **more)]


def inputs(module, x=X):
    return x if isinstance(module, nn.RNNBase) else x[..., 0, :, :]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", LAYERS)
def test_vmap(kind, settings):
    for module in modules(kind, settings):
        x = inputs(module, BATCHES)
        expected = torch.stack([first(module.eval()(one)) for one in x])
        torch.testing.assert_close(torch.func.vmap(lambda one, m=module: first(m(one)))(x), expected)
    if settings == "noisy":
        same = torch.stack([X, X])
        noisy = LAYERS[kind](4, 5, noise="nah:c=9")
        drawn = torch.func.vmap(lambda one: noisy(5 * one)[0], randomness="different")(same)
        assert not torch.equal(drawn[0], drawn[1])
        drawn = torch.func.vmap(lambda one: noisy(5 * one)[0], randomness="same")(same)
        torch.testing.assert_close(drawn[0], drawn[1])


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_by_torch_func(kind, settings):
    for module in modules(kind, settings):
        x = inputs(module)
        given = {name: p.detach() for name, p in module.named_parameters()}

        def loss(parameters, x, module=module):
            return first(torch.func.functional_call(module, parameters, (x,))).square().sum()

        torch.manual_seed(1)
        found = torch.func.grad(loss)(given, x)
        torch.manual_seed(1)
        first(module(x)).square().sum().backward()
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(
                found[name], torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            )


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_of_each_sample(kind, settings):
    module = LAYERS[kind](4, 5, **SETTINGS[settings]).eval()
    given = {name: p.detach() for name, p in module.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(module, parameters, (x.unsqueeze(1),))[0].square().sum()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 1))(given, X)
    for sample in range(X.shape[1]):
        module.zero_grad()
        module(X[:, sample : sample + 1])[0].square().sum().backward()
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(found[name][sample], parameter.grad)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", LAYERS)
def test_forward_mode(kind, settings):
    for module in modules(kind, settings):
        module = module.double().eval()
        x = inputs(module).double()
        direction, step = torch.randn_like(x), 1e-6
        value, slope = torch.func.jvp(lambda x, m=module: first(m(x)), (x,), (direction,))
        torch.testing.assert_close(value, first(module(x)))
        expected = (first(module(x + step * direction)) - first(module(x - step * direction))) / (2 * step)
        torch.testing.assert_close(slope, expected, rtol=1e-4, atol=1e-5)
        with forward_ad.dual_level():
            dual = first(module(forward_ad.make_dual(x, direction)))
            torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, slope)


@pytest.mark.parametrize("kind", LAYERS)
def test_what_the_kernels_have_not_names_the_reference(kind):
    for module in (LAYERS[kind](4, 5), CELLS[kind](4, 5)):
        x = inputs(module).clone().requires_grad_()
        y = first(module(x)).reshape(-1)[:3]
        if isinstance(module, nn.RNNBase):
            with pytest.raises(RuntimeError, match="backend='reference'"):
                torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True, retain_graph=True)
            with pytest.raises(RuntimeError, match="backend='reference'"):
                torch.func.vmap(lambda v, x=x, y=y: torch.autograd.grad(y, x, v, retain_graph=True)[0])(torch.eye(3))
        with pytest.raises(RuntimeError, match="backend='reference'"):
            torch.autograd.grad(y.sum(), x, create_graph=True)[0].sum().backward()
    forced = LAYERS[kind](4, 5, noise=None, backend="cpu")
    with pytest.raises(RuntimeError, match=r"'cpu' cannot run this: a torch\.func transform"):
        torch.func.vmap(lambda x: forced(x)[0])(BATCHES)


@pytest.mark.parametrize("kind", LAYERS)
def test_the_reference_has_second_derivatives_and_several_gradients_at_once(kind):
    for module in modules(kind, "hard", backend="reference"):
        x = inputs(module).clone().requires_grad_()
        y = first(module(x)).reshape(-1)[:3]
        batched = torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True, retain_graph=True)[0]
        single = [torch.autograd.grad(y[i], x, retain_graph=True)[0] for i in range(3)]
        torch.testing.assert_close(batched, torch.stack(single))
        (gradient,) = torch.autograd.grad(first(module(x)).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()
        assert x.grad.any()


class Own(torch.Tensor):
    """A subclass that changes nothing."""


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", LAYERS)
def test_a_subclass_of_tensor_is_kept(kind, settings):
    for module in modules(kind, settings):
        x = inputs(module)
        found = first(module.eval()(x.as_subclass(Own)))
        assert type(found) is Own
        torch.testing.assert_close(found.as_subclass(torch.Tensor), first(module(x)))


@pytest.mark.parametrize("kind", LAYERS)
def test_modes_of_torch_see_the_layer(kind):
    with FakeTensorMode():
        y = first(LAYERS[kind](4, 5, 2)(torch.randn(6, 3, 4)))
        assert y.shape == (6, 3, 5)
        assert first(CELLS[kind](4, 5)(torch.randn(3, 4))).shape == (3, 5)
    layer = LAYERS[kind](4, 5, backend="reference")
    with FlopCounterMode(display=False) as counter:
        layer(X)
    assert counter.get_total_flops() == 2 * 6 * 3 * layer.weight_ih_l0.shape[0] * (4 + 5)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", LAYERS)
def test_jit_trace(kind, settings, backend):
    for module in modules(kind, settings, backend=backend):
        x = inputs(module)
        for training in (False, True):
            module.train(training)
            traced = torch.jit.trace(module, x, check_trace=False)
            torch.manual_seed(1)
            expected = first(module(x))
            torch.manual_seed(1)
            found = first(traced(x))
            torch.testing.assert_close(found, expected)
            mine = torch.autograd.grad(found.square().sum(), list(module.parameters()), allow_unused=True)
            theirs = torch.autograd.grad(expected.square().sum(), list(module.parameters()), allow_unused=True)
            torch.testing.assert_close(mine, theirs)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("settings", [{}, {"backend": "reference"}, {"noise": None, "hard": False}])
def test_a_trace_of_other_sizes_is_right_or_an_error(settings):
    layer = na.NoisyLSTM(4, 5, 2, **settings).eval()
    traced = torch.jit.trace(layer, X)
    for shape in ((7, 3, 4), (5, 3, 4), (6, 2, 4), (9, 2, 4), (3, 6, 4), (1, 3, 4), (6, 1, 4)):
        x = torch.randn(shape)
        if settings == {"noise": None, "hard": False}:  # torch's own layer
            torch.testing.assert_close(traced(x)[0], layer(x)[0])
        else:
            with pytest.raises(RuntimeError, match="Expected"):
                traced(x)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_tensorboard_draws_the_graph(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_graph(na.NoisyLSTM(4, 5, 2), X)
    assert any(file.stat().st_size > 1000 for file in tmp_path.iterdir())


class Packs(nn.Module):
    """Packs its input, and lets a layer run over it."""

    def __init__(self):
        super().__init__()
        self.layer = na.NoisyLSTM(4, 5)

    def forward(self, x):
        return self.layer(nn.utils.rnn.pack_padded_sequence(x, [6, 4, 2]))[0].data


def test_a_packed_sequence_cannot_be_traced():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="cannot follow a PackedSequence"):
            torch.jit.trace(Packs(), X)
