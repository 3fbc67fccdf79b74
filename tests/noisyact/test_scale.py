"""The noise scale: exact in every dtype, and backward uses the scale of the forward pass."""

import io

import pytest
import torch
from torch import nn

import noisyact as na
from noisyact import functional as F
from noisyact.ops.activation import noisy_activation
from noisyact.pairs import harden

SEED = torch.tensor(2**61 + 987654321)
SCHEMES = ["nan", "nah", "nani", "nanil", "nanis", "nah:clip=true"]
PARTS = [
    lambda dtype: na.NoisyHardTanh(dtype=dtype),
    lambda dtype: na.NoisyLSTM(3, 4, noise="nah", gate_noise="nan", dtype=dtype),
    lambda dtype: na.NoisyGRUCell(3, 4, dtype=dtype),
]


def gradients(module, x, between=lambda: None):
    """Of x and p for the noise of one seed, with something done between forward and backward."""
    torch.manual_seed(1)
    x = x.detach().requires_grad_()
    y = module(x)
    between()
    y.square().sum().backward()
    found = [x.grad, *(p.grad for p in module.parameters())]
    module.zero_grad()
    return found


def scales(module):
    found = [buffer.item() for name, buffer in module.named_buffers() if name.endswith("scale")]
    assert found
    return set(found)


@pytest.mark.parametrize("part", PARTS)
def test_the_scale_is_exact_in_a_float64_module(part):
    """0.3 is no float32: rounded to one it would be off by 1e-8."""
    module, rounded = part(torch.float64), {torch.tensor(0.3).item()}
    na.set_noise_scale(module, 0.3)
    assert scales(module) == {0.3}
    for shorter in (nn.Module.float, nn.Module.half, nn.Module.bfloat16):
        assert scales(shorter(module)) == rounded
        assert scales(module.cpu().double()) == {0.3}
    module = part(torch.float32)
    na.set_noise_scale(module, 0.3)
    assert scales(module.double()) == {0.3}


def test_the_schemes_own_scale_is_exact_too():
    assert na.NoisyHardTanh("nah:c=0.3", dtype=torch.float64).scale.item() == 0.3
    layer = na.NoisyLSTM(3, 4, noise="nah:c=0.3", gate_noise="nan:c=0.7").double()
    assert (layer.noise.scale.item(), layer.noise.gate_scale.item()) == (0.3, 0.7)
    layer.noise.reset_parameters()
    assert (layer.noise.scale.item(), layer.noise.gate_scale.item()) == (0.3, 0.7)


def test_what_was_loaded_is_not_taken_for_what_was_set():
    layer = na.NoisyHardTanh("nah:c=0.3")
    layer.load_state_dict(layer.state_dict() | {"scale": torch.tensor(0.7)})
    assert layer.double().scale.item() == torch.tensor(0.7).item()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_float64_module_is_its_function(scheme):
    layer = na.NoisyHardTanh(scheme, num_parameters=5).double()
    layer.set_scale(0.3)
    x = torch.randn(7, 5, dtype=torch.float64) * 3
    xi = torch.randn(7, 5, dtype=torch.float64)
    exact = F.noisy_hard_tanh(x, na.scheme(scheme).with_scale(0.3), layer.p, xi)
    assert torch.equal(layer(x, xi), exact)


def test_checkpoints_and_pickles_of_earlier_versions_load():
    """In earlier versions every scale was a float32, and its exact value was not stored."""
    layer = na.NoisyHardTanh().double()
    layer.load_state_dict(layer.state_dict() | {"scale": torch.tensor(0.3)})
    assert (layer.scale.dtype, layer.scale.item()) == (torch.float64, torch.tensor(0.3).item())
    layer = na.NoisyHardTanh()
    layer.set_scale(0.3)
    del layer._set_to
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    again = torch.load(file, weights_only=False).double()
    assert again.scale.item() == torch.tensor(0.3).item()
    again.set_scale(0.3)
    assert again.scale.item() == 0.3


def test_buffers_of_a_subclass_are_its_own_affair():
    class Counting(na.NoisyHardTanh):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.int8))
            self.register_buffer("mean", torch.zeros(3))

    module = Counting().half()
    assert (module.calls.dtype, module.mean.dtype, module.scale.dtype) == (torch.int8, torch.float16, torch.float32)


def test_sharing_memory_shares_the_scale():
    layer = na.NoisyHardTanh().share_memory()
    assert layer.scale.is_shared()
    assert layer.p.is_shared()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scale_changed_between_forward_and_backward_does_not_change_the_gradient(scheme, training, dtype):
    layer = na.NoisyHardTanh(scheme, num_parameters=5).to(dtype).train(training)
    x = (torch.randn(40, 5) * 3).to(dtype)
    layer.set_scale(0.3)
    right = gradients(layer, x)
    mine = gradients(layer, x, lambda: layer.set_scale(50.0))
    other = gradients(layer, x)
    for gradient, expected in zip(mine, right, strict=True):
        assert gradient is expected is None or torch.equal(gradient, expected)
    if training and scheme != "nanis":
        assert not torch.equal(other[0], right[0])  # so it could have been another


def test_so_it_is_for_any_pair():
    x, layer = torch.randn(7, 5) * 3, na.NoisyActivation(harden(torch.erf), num_parameters=5)
    right = gradients(layer, x)
    assert all(map(torch.equal, gradients(layer, x, lambda: layer.set_scale(5.0)), right))


@pytest.mark.parametrize("registered", [False, True])
def test_so_it_is_for_the_registered_operation_and_for_second_derivatives(registered):
    x, p, found = (torch.randn(7, 5) * 3).requires_grad_(), torch.ones(5).requires_grad_(), []
    for after in (0.3, 5.0):
        scale = torch.tensor(0.3)
        if registered:
            y, _ = torch.ops.noisyact.activation(x, p, scale, SEED, "nah", [1.0, 0.0, -1.0, 1.0])
        else:
            y = noisy_activation(x, p, scale, SEED, na.NAH(), na.HARD_TANH)
        scale.fill_(after)
        gx, gp = torch.autograd.grad(y.square().sum(), (x, p), create_graph=True)
        found.append([gx, gp, *torch.autograd.grad(gx.square().sum(), (x, p))])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_so_it_is_in_a_compiled_function(backend):
    torch._dynamo.reset()
    layer = na.NoisyHardTanh(num_parameters=5)
    compiled, x = torch.compile(layer, backend=backend, fullgraph=True), torch.randn(7, 5) * 3
    right = gradients(compiled, x)
    mine = gradients(compiled, x, lambda: layer.set_scale(5.0))
    assert all(map(torch.equal, mine, right))
    assert not all(map(torch.equal, gradients(compiled, x), right))


def test_two_forwards_with_two_scales_before_one_backward():
    layer, x = na.NoisyHardTanh(num_parameters=5), torch.randn(7, 5) * 3
    alone = []
    for scale in (0.3, 5.0):
        layer.set_scale(scale)
        alone.append(gradients(layer, x)[1])
    losses = []
    for scale in (0.3, 5.0):
        torch.manual_seed(1)
        layer.set_scale(scale)
        losses.append(layer(x).square().sum())
    sum(losses).backward()
    torch.testing.assert_close(layer.p.grad, sum(alone))
