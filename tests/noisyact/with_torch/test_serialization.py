"""Modules as torch expects them: saved, copied, moved, frozen, hooked, printed."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn

import noisyact as na
from noisyact import functional

SCHEMES = ["nan", "nah:c=2.0,alpha=1.0", "nani", "nanil:c=3.0", "nanis:sigma=0.5"]
KINDS = {
    "hard tanh": na.NoisyHardTanh,
    "hard sigmoid": na.NoisyHardSigmoid,
    "relu": na.NoisyReLU,
    "wide": lambda noise, **rest: na.NoisyHardTanh(noise, min_val=-2.0, max_val=3.0, **rest),
    "atan": lambda noise, **rest: na.NoisyActivation(na.harden(torch.atan), noise, **rest),
}
x = torch.linspace(-6, 6, 8 * 5).reshape(5, 8)


def network(scheme: str = "nah") -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), na.NoisyHardTanh(scheme, num_parameters=8), na.NoisyHardSigmoid(scheme))


def both_modes(model: nn.Module, x: Tensor = x) -> list[Tensor]:
    """What the model gives in training, with the noise of one seed, and in evaluation."""
    was = model.training
    torch.manual_seed(5)
    outputs = [model.train()(x).detach(), model.eval()(x).detach()]
    model.train(was)
    return outputs


def assert_same(a: nn.Module, b: nn.Module) -> None:
    for ours, theirs in zip(both_modes(a), both_modes(b), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_state_dict_round_trip_with_the_annealed_scale(scheme: str) -> None:
    model, other = network(scheme), network(scheme)
    na.set_noise_scale(model, 0.3)
    learned = {"1.p", "2.p"} if na.scheme(scheme).learns_p else set()
    assert model.state_dict().keys() == {"0.weight", "0.bias", "1.scale", "2.scale"} | learned
    assert not torch.equal(both_modes(model)[0], both_modes(other)[0])
    assert other.load_state_dict(model.state_dict(), strict=True) == ([], [])
    assert other[1].scale.item() == pytest.approx(0.3)
    assert_same(model, other)


def test_a_state_dict_that_does_not_fit_is_refused() -> None:
    model = network("nah")
    state = model.state_dict()
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"1\.p"'):
        network("nani").load_state_dict(state)
    with pytest.raises(RuntimeError, match=r'Missing key.*"1\.p"'):
        model.load_state_dict(network("nanis").state_dict())
    del state["1.scale"]
    with pytest.raises(RuntimeError, match=r'Missing key.*"1\.scale"'):
        model.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"size mismatch for p"):
        na.NoisyHardTanh(num_parameters=3).load_state_dict(na.NoisyHardTanh(num_parameters=4).state_dict())


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("scheme", SCHEMES)
def test_copies_behave_alike_and_apart(scheme: str, kind) -> None:
    layer = kind(scheme, num_parameters=8)
    layer.set_scale(0.7)
    state, whole = io.BytesIO(), io.BytesIO()
    torch.save(layer.state_dict(), state)
    torch.save(layer, whole)
    state.seek(0), whole.seek(0)
    loaded = kind(scheme, num_parameters=8)
    loaded.load_state_dict(torch.load(state, weights_only=True))
    copies = [
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(whole, weights_only=False),
        loaded,
    ]
    for other in copies:
        assert_same(layer, other)
        assert (other.noise, other.pair) == (layer.noise, layer.pair)
        other.set_scale(0.1)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(1.0)
    assert layer.scale.item() == pytest.approx(0.7)
    assert all((parameter.abs() <= 1).all() for parameter in layer.parameters())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_meta_device(scheme: str) -> None:
    with torch.device("meta"):
        model = network(scheme)
    assert all(t.is_meta for t in (*model.parameters(), *model.buffers()))
    assert model(torch.empty(3, 8, device="meta")).shape == (3, 8)
    model.to_empty(device="cpu")
    for module in model:
        module.reset_parameters()
    assert [part.scale.item() for part in model[1:]] == pytest.approx([na.scheme(scheme).scale] * 2)
    for p in na.noise_parameters(model):
        assert (p.abs() <= 1).all()
        assert p.unique().numel() == p.numel()
    assert all(output.isfinite().all() for output in both_modes(model))

    with torch.device("meta"):
        other = network(scheme)
    other.load_state_dict(model.state_dict(), assign=True)
    assert_same(model, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_dtypes_round_trip(scheme: str, dtype: torch.dtype) -> None:
    layer = na.NoisyHardTanh(scheme, num_parameters=8)
    layer.set_scale(0.3)
    before = copy.deepcopy(layer)
    layer.to(dtype)
    assert all(parameter.dtype == dtype for parameter in layer.parameters())
    # A schedule's value is not rounded.
    assert layer.scale.item() == (0.3 if dtype == torch.float64 else before.scale.item())
    for given in (dtype, torch.float32):
        for output in both_modes(layer, x.to(given)):
            assert output.dtype == given
    layer.set_scale(0.7)
    assert layer.float().scale.item() == torch.tensor(0.7).item()
    layer.set_scale(0.3)
    tolerance = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float64: 0.0}[dtype]
    for ours, theirs in zip(both_modes(layer), both_modes(before), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_hooks_fire_once() -> None:
    layer, fired = na.NoisyHardTanh("nah"), []
    layer.register_forward_pre_hook(lambda *_: fired.append("before"))
    layer.register_forward_hook(lambda *_: fired.append("after"))
    layer.register_full_backward_hook(lambda *_: fired.append("backward"))
    layer(x.clone().requires_grad_()).sum().backward()
    assert fired == ["before", "after", "backward"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_training_and_evaluation_differ(scheme: str) -> None:
    layer = na.NoisyHardTanh(scheme)
    layer.set_scale(50.0)  # NANIL's noise must carry x back over the threshold to be seen
    for p in layer.parameters():
        nn.init.ones_(p)
    noisy, quiet = both_modes(layer)
    assert not torch.equal(noisy, quiet)
    assert torch.equal(layer.eval()(x), layer(x))
    layer.eval_noise = "sample"
    assert not torch.equal(layer(x), layer(x))
    with pytest.raises(ValueError, match="eval_noise='none'"):
        na.NoisyHardTanh(scheme, eval_noise="none")


@pytest.mark.parametrize("scheme", ["nan", "nah", "nanil"])
def test_frozen_parameters_get_no_gradient(scheme: str) -> None:
    layer = na.NoisyHardTanh(scheme, num_parameters=8)
    given = x.clone().requires_grad_()
    layer.requires_grad_(False)
    layer(given).sum().backward()
    assert layer.p.grad is None
    assert given.grad is not None
    assert not layer(x).requires_grad
    layer.requires_grad_(True)
    layer(x).sum().backward()
    assert layer.p.grad.shape == (8,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scheme", ["nan", "nah", "nanil"])
def test_in_evaluation_p_has_a_gradient_where_it_has_a_part(scheme: str, dtype: torch.dtype) -> None:
    """NAH's expectation depends on p. The others' does not: no gradient then, rather than zeros on some paths."""
    layer = na.NoisyHardTanh(scheme, num_parameters=8)
    layer.eval()(x.to(dtype).requires_grad_()).sum().backward()
    assert (layer.p.grad is not None) == (scheme == "nah")


def test_printing_says_what_matters() -> None:
    assert repr(na.NoisyHardTanh("nah:c=0.3", num_parameters=4)) == (
        "NoisyHardTanh(NAH(c=0.3, alpha=1.15, clip=False), num_parameters=4)"
    )
    assert repr(na.NoisyReLU("nani", eval_noise="hard")) == (
        "NoisyReLU(NANI(sigma=0.05), num_parameters=1, eval_noise='hard')"
    )


@pytest.mark.parametrize("kind", ["hard tanh", "hard sigmoid", "relu"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_module_and_function_agree(scheme: str, kind: str) -> None:
    layer = KINDS[kind](scheme, num_parameters=8)
    function = {
        "hard tanh": functional.noisy_hard_tanh,
        "hard sigmoid": functional.noisy_hard_sigmoid,
        "relu": functional.noisy_relu,
    }[kind]
    noisy, quiet = both_modes(layer)
    torch.manual_seed(5)
    assert torch.equal(function(x, scheme, layer.p), noisy)
    assert torch.equal(function(x, scheme, layer.p, training=False), quiet)
    xi = torch.randn_like(x)
    assert torch.equal(layer(x, xi), function(x, scheme, layer.p, xi))
    assert torch.equal(layer.eval()(x, xi), quiet)  # in evaluation there is no noise to replace
