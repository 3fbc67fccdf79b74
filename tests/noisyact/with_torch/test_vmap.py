"""torch.func: vmap with every kind of randomness, per-sample gradients, Jacobians, ensembles."""

from __future__ import annotations

import copy

import pytest
import torch
import torch._functorch.config
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vmap

import noisyact as na
from noisyact import functional

SCHEMES = ["nan:c=2.0", "nah:c=2.0", "nani:sigma=1.0", "nanil:c=300.0", "nanis:sigma=2.0"]
LAYERS = {  # noisy in every element at x = 3
    "functional": lambda x: functional.noisy_hard_tanh(x, "nan"),
    "module": na.NoisyReLU("nani"),
    "any pair": na.NoisyActivation(na.Pair(torch.tanh, lambda x: x), "nani:sigma=1.0"),
}


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_randomness(layer) -> None:
    x = torch.full((4, 1000), 3.0)
    own = vmap(layer, randomness="different")(x)
    for i in range(4):
        for j in range(i):
            assert (own[i] != own[j]).float().mean() > 0.99
    shared = vmap(layer, randomness="same")(x)
    assert all(torch.equal(member, shared[0]) for member in shared)
    assert shared[0].unique().numel() > 900  # one noise for all members, not one for all elements
    for f in (layer, lambda x: F.dropout(x, 0.5)):
        with pytest.raises(RuntimeError, match="randomness"):
            vmap(f)(x)


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_seeds_and_generators_repeat_the_noise(randomness: str) -> None:
    x = torch.full((4, 100), 5.0)
    generator = torch.Generator()
    drawn = vmap(lambda x: functional.noisy_hard_tanh(x, "nan"), randomness=randomness)
    given = vmap(lambda x: functional.noisy_hard_tanh(x, "nan", generator=generator), randomness=randomness)
    for f, reseed in ((drawn, torch.manual_seed), (given, generator.manual_seed)):
        reseed(1)
        first, second = f(x), f(x)
        reseed(1)
        assert torch.equal(f(x), first)
        assert not torch.equal(first, second)


def test_no_noise_no_randomness_needed() -> None:
    x, xi = 3 * torch.randn(4, 100), torch.randn(4, 100)
    seeds = torch.tensor([1, 2, 3, 4])
    layer = na.NoisyHardTanh("nah").eval()
    torch.testing.assert_close(vmap(layer)(x), layer(x))
    layer.train()
    torch.testing.assert_close(vmap(layer)(x, xi), layer(x, xi))
    by_seed = vmap(lambda x, seed: functional.noisy_hard_tanh(x, "nan", seed=seed))(x, seeds)
    loop = [functional.noisy_hard_tanh(x, "nan", seed=seed) for x, seed in zip(x, seeds, strict=True)]
    torch.testing.assert_close(by_seed, torch.stack(loop))
    shared = vmap(lambda x: functional.noisy_hard_tanh(x, "nan", seed=seeds[0]))(x)
    torch.testing.assert_close(shared[0], loop[0])


def test_nested_vmap_and_other_dimensions() -> None:
    x = torch.full((3, 50, 2), 5.0)
    layer = na.NoisyHardTanh("nan", num_parameters=50)
    nested = vmap(vmap(layer, in_dims=1, out_dims=1, randomness="different"), randomness="different")(x)
    assert nested.shape == x.shape
    assert nested.unique().numel() > 290
    with pytest.raises(ValueError, match="p of shape"):
        vmap(layer, in_dims=1, randomness="different")(x)  # members of shape (3, 2) do not fit 50 parameters


class Network(nn.Module):
    def __init__(self, scheme: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        nn.init.normal_(self.first.weight, std=2.0)
        self.activation = na.NoisyHardTanh(scheme, num_parameters=8)

    def forward(self, x: Tensor, xi: Tensor | None = None) -> Tensor:
        return self.second(self.activation(self.first(x), xi))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_per_sample_gradients_equal_a_loop(scheme: str) -> None:
    model = Network(scheme)
    x, target, xi = torch.randn(5, 6), torch.randn(5, 3), torch.randn(5, 8)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor, target: Tensor, xi: Tensor) -> Tensor:
        return (functional_call(model, parameters, (x, xi)) - target).square().sum()

    found = vmap(grad(loss), in_dims=(None, 0, 0, 0))(parameters, x, target, xi)
    assert found.keys() == parameters.keys()
    for i in range(5):
        model.zero_grad()
        (model(x[i], xi[i]) - target[i]).square().sum().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found[name][i], parameter.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_per_sample_gradients_with_noise_of_their_own(scheme: str) -> None:
    """Drawn inside: equal samples get unequal gradients, and the seeds tell which."""
    model = Network(scheme)
    x = torch.randn(6).expand(4, 6)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, parameters, (x,)).square().sum()

    torch.manual_seed(9)
    found = vmap(grad(loss), in_dims=(None, 0), randomness="different")(parameters, x)["second.weight"]
    assert not torch.equal(found[0], found[1])
    torch.manual_seed(9)
    seeds = vmap(lambda x: torch.randint(2**63 - 1, ()), randomness="different")(x)
    for i in range(4):
        xi = functional.standard_normal(seeds[i], (8,))
        (expected,) = torch.autograd.grad(model(x[i], xi).square().sum(), [model.second.weight])
        torch.testing.assert_close(found[i], expected)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_jacobians_of_every_mode(scheme: str) -> None:
    seed = torch.tensor(5)
    inputs = [4 * torch.randn(12), torch.randn(12)][: 1 + na.scheme(scheme).learns_p]
    places = tuple(range(len(inputs)))

    def form(x: Tensor, p: Tensor | None = None) -> Tensor:
        return functional.noisy_hard_tanh(x, scheme, p, seed=seed)

    leaves = [t.clone().requires_grad_() for t in inputs]
    rows = [torch.autograd.grad(y, leaves, retain_graph=True) for y in form(*leaves)]
    expected = [torch.stack(column) for column in zip(*rows, strict=True)]
    batched = torch.autograd.grad(form(*leaves), leaves, torch.eye(12), is_grads_batched=True)
    for found in (jacrev(form, places)(*inputs), jacfwd(form, places)(*inputs), batched):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)
            assert b.abs().sum() > 0


def test_forward_mode_keeps_the_tangent() -> None:
    x, tangent, seed = 4 * torch.randn(12), torch.randn(12), torch.tensor(5)
    layer = na.NoisyHardTanh("nah:c=3.0")

    def form(x: Tensor) -> Tensor:
        return functional.noisy_hard_tanh(x, "nan:c=2.0", seed=seed) + layer.eval()(x)

    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(form(forward_ad.make_dual(x, tangent)))
    expected = jacrev(form)(x) @ tangent
    torch.testing.assert_close(dual.tangent, expected)
    torch.testing.assert_close(jvp(form, (x,), (tangent,))[1], expected)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_derivatives_of_derivatives(scheme: str) -> None:
    """Second and third derivatives with a seed equal those with the same xi, which autograd computes."""
    x, p, seed = (4 * torch.randn(3, 8)).requires_grad_(), torch.randn(8, requires_grad=True), torch.tensor(5)
    xi = functional.standard_normal(seed, x.shape)
    weights = torch.linspace(-1, 1, 24).reshape(3, 8)
    towers = []
    for noise in ({"seed": seed}, {"xi": xi}):
        scalar, tower = (weights * functional.noisy_hard_tanh(x, scheme, p, **noise).exp()).sum(), []
        for _ in range(3):
            found = torch.autograd.grad(scalar, [x, p], create_graph=True, allow_unused=True, materialize_grads=True)
            scalar = (found[0] * weights).sum() + (found[1] * weights[0]).sum()
            tower += found
        towers.append(tower)
    for a, b in zip(*towers, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)

    def scalar_form(x: Tensor) -> Tensor:
        return functional.noisy_hard_tanh(x, scheme, seed=seed).exp().sum()

    flat = x.detach().flatten()
    torch.testing.assert_close(hessian(scalar_form)(flat), jacrev(jacrev(scalar_form))(flat))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ensembles(scheme: str) -> None:
    models = [Network(scheme) for _ in range(3)]
    for strength, model in enumerate(models):
        model.activation.set_scale(100.0 * strength)  # buffers are stacked too
    parameters, buffers = stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to("meta")
    x, xi = torch.randn(5, 6), torch.randn(5, 8)

    def member(parameters: dict, buffers: dict, x: Tensor, *xi: Tensor) -> Tensor:
        return functional_call(skeleton, (parameters, buffers), (x, *xi))

    together = vmap(member, in_dims=(0, 0, None, None))(parameters, buffers, x, xi)
    torch.testing.assert_close(together, torch.stack([model(x, xi) for model in models]))

    drawn = vmap(member, in_dims=(0, 0, None), randomness="different")(parameters, buffers, x)
    again = vmap(member, in_dims=(0, 0, None), randomness="different")(parameters, buffers, x)
    assert torch.equal(drawn[0], again[0])  # the scale of this one is 0
    assert not torch.equal(drawn[2], again[2])
    skeleton.eval()
    for model in models:
        model.eval()
    together = vmap(member, in_dims=(0, 0, None))(parameters, buffers, x)
    torch.testing.assert_close(together, torch.stack([model(x) for model in models]))


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_compiled_transforms(randomness: str) -> None:
    torch._dynamo.reset()
    x, layer = torch.full((4, 100), 5.0), na.NoisyHardTanh("nan:c=2.0")

    def transformed(x: Tensor) -> tuple[Tensor, Tensor]:
        slope = vmap(grad(lambda x: layer(x).sum()), randomness=randomness)(x)
        return slope, vmap(lambda x: layer(x), randomness=randomness)(x)

    compiled = torch.compile(transformed, fullgraph=True, backend="aot_eager")
    torch.manual_seed(1)
    ours = compiled(x)
    torch.manual_seed(1)
    for a, b in zip(ours, transformed(x), strict=True):
        torch.testing.assert_close(a, b)
        assert torch.equal(b[0], b[1]) == (randomness == "same")


def test_vmap_where_draws_may_be_recomputed_is_refused() -> None:
    """The stream does not distinguish members of a vmap: all would get the same noise."""
    torch._dynamo.reset()
    layer = na.NoisyHardTanh("nan")

    def forward(x: Tensor) -> Tensor:
        return torch.vmap(lambda x: layer(x), randomness="different")(x)

    with (
        torch._functorch.config.patch(activation_memory_budget=0.5),
        pytest.raises(Exception, match="activation_memory_budget = 1"),
    ):
        torch.compile(forward, fullgraph=True, backend="aot_eager")(torch.randn(4, 8))
