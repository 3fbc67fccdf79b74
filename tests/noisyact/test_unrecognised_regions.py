"""Checkpointed regions that noisyact does not recognise: correct if torch restores its generator, else an error."""

from __future__ import annotations

import gc
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch.distributed._composable import checkpoint as composable
from torch.utils import checkpoint as known

import noisyact as na
from noisyact import activation_checkpointing, functional

REENTRANT = pytest.mark.parametrize("reentrant", [True, False])


def torch_with_other_names(**renamed: str) -> ModuleType:
    """A copy of torch's module, as another release might have it: its classes and functions are others."""
    source = Path(known.__file__).read_text()
    for name, other in renamed.items():
        source = source.replace(name, other)
    module = ModuleType(known.__name__)
    exec(compile(source, known.__file__, "exec"), vars(module))
    return module


@pytest.fixture(scope="module")
def unknown() -> ModuleType:
    return torch_with_other_names()


@pytest.fixture(autouse=True)
def _collect():
    """A region that raised holds hooks and generators until it is collected."""
    activation_checkpointing._warn_once.cache_clear()
    yield
    gc.collect()


def model() -> nn.Sequential:
    layers = [nn.Sequential(nn.Linear(8, 8), na.NoisyHardTanh("nan:c=5.0")) for _ in range(3)]
    for layer in layers:
        nn.init.normal_(layer[0].weight, std=2.0)
    return nn.Sequential(*layers)


def gradients(run, network: nn.Module) -> list[Tensor]:
    network.zero_grad()
    torch.manual_seed(3)
    run(torch.linspace(-2, 2, 32).reshape(4, 8).requires_grad_()).square().sum().backward()
    return [parameter.grad.clone() for parameter in network.parameters()]


def assert_same(ours: list[Tensor], right: list[Tensor]) -> None:
    for a, b in zip(ours, right, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@REENTRANT
def test_a_restored_generator_gives_the_same_noise(unknown: ModuleType, reentrant: bool) -> None:
    network = model()
    run = lambda x: unknown.checkpoint(network, x, use_reentrant=reentrant)  # noqa: E731
    assert_same(gradients(run, network), gradients(network, network))


# torch warns that the input of the inner region needs no gradient: in the outer one's first pass nothing does.
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning")
@REENTRANT
def test_regions_nest(unknown: ModuleType, reentrant: bool) -> None:
    network = model()
    inner = lambda x: unknown.checkpoint(network[1], x, use_reentrant=reentrant)  # noqa: E731
    run = lambda x: unknown.checkpoint(lambda x: network[2](inner(network[0](x))), x, use_reentrant=reentrant)  # noqa: E731
    assert_same(gradients(run, network), gradients(network, network))


@REENTRANT
def test_other_noise_is_refused(unknown: ModuleType, reentrant: bool) -> None:
    network = model()
    with pytest.raises(RuntimeError, match=r"would draw different noise.*preserve_rng_state=True"):
        gradients(lambda x: unknown.checkpoint(network, x, use_reentrant=reentrant, preserve_rng_state=False), network)


@REENTRANT
def test_a_generator_of_ones_own_is_refused(unknown: ModuleType, reentrant: bool) -> None:
    network, generator = nn.Linear(8, 8), torch.Generator()

    def forward(x: Tensor) -> Tensor:
        return functional.noisy_hard_tanh(network(x) * 4, "nan:c=5.0", generator=generator)

    with pytest.raises(RuntimeError, match="does not restore a generator of your own"):
        gradients(lambda x: unknown.checkpoint(forward, x, use_reentrant=reentrant), network)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning")
@REENTRANT
def test_noise_without_gradients_needs_nothing(unknown: ModuleType, reentrant: bool) -> None:
    network = model()
    with torch.no_grad():
        unknown.checkpoint(network, torch.ones(4, 8), use_reentrant=reentrant, preserve_rng_state=False)


@REENTRANT
def test_a_warning_where_even_the_flag_has_another_name(reentrant: bool) -> None:
    torch_of_the_future = torch_with_other_names(preserve_rng_state="keep_random_state")
    network = model()
    run = lambda x: torch_of_the_future.checkpoint(network, x, use_reentrant=reentrant)  # noqa: E731
    with pytest.warns(RuntimeWarning, match="correct only with checkpoint") as warned:
        ours = gradients(run, network)
    assert len(warned) == 1
    assert_same(ours, gradients(network, network))


@pytest.mark.filterwarnings("ignore:noise in a checkpointed region:RuntimeWarning")
@pytest.mark.parametrize("preserve", [True, False])
@REENTRANT
def test_a_torch_without_the_private_functions(
    monkeypatch, unknown: ModuleType, reentrant: bool, preserve: bool
) -> None:
    monkeypatch.setattr(activation_checkpointing, "graph_task", lambda: None)
    monkeypatch.setattr(activation_checkpointing, "saved_tensor_hooks", lambda _: ())
    network = model()
    right = gradients(network, network)
    run = lambda x: unknown.checkpoint(network, x, use_reentrant=reentrant, preserve_rng_state=preserve)  # noqa: E731
    if preserve:
        assert_same(gradients(run, network), right)
    else:
        with pytest.raises(RuntimeError, match="preserve_rng_state=True"):
            gradients(run, network)


@pytest.mark.parametrize("inner", [True, False])
def test_composable_checkpoints(inner: bool) -> None:
    network = model()
    right = gradients(network, network)
    composable(network)
    if inner:
        composable(network[1])
    assert_same(gradients(network, network), right)


def test_composable_checkpoints_that_restore_nothing_are_refused() -> None:
    network = composable(model(), preserve_rng_state=False)
    with pytest.raises(RuntimeError, match="preserve_rng_state=True"):
        gradients(network, network)
