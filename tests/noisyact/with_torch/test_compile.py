"""torch.compile: full graphs, the gradients of eager mode, new noise at each call, and no recompilation."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch._dynamo
import torch._functorch.config
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import noisyact as na
from noisyact import functional, noise
from noisyact.compiling import constant
from noisyact.ops.activation import op

# Noise strong enough that no call repeats another by chance: NANIL's must carry x back over the threshold to be seen.
SCHEMES = ["nan:c=2.0", "nah:c=2.0", "nani:sigma=1.0", "nanil:c=300.0", "nanis:sigma=2.0"]
PAIRS = {
    "hard tanh": na.HARD_TANH,
    "hard sigmoid": na.HARD_SIGMOID,
    "relu": na.RELU,
    "atan": na.harden(torch.atan),
}
PARTITIONED = "aot_eager_decomp_partition"  # the partitioner of the real compiler, without its code generation


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gradients(y: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    loss = (y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum()
    return list(torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True))


def assert_close(a: list[Tensor], b: list[Tensor]) -> None:
    for s, t in zip(a, b, strict=True):
        torch.testing.assert_close(s, t)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
@pytest.mark.parametrize("scheme", SCHEMES)
def test_functional_forms(scheme: str, pair: na.HardPair) -> None:
    x = (6 * torch.randn(8, 16)).requires_grad_()
    p, xi, seed = torch.randn(16, requires_grad=True), torch.randn(8, 16), torch.tensor(5)

    def all_forms(x: Tensor, p: Tensor, xi: Tensor, seed: Tensor) -> Tensor:
        by_xi = functional.noisy(x, pair, scheme, p, xi)
        by_seed = functional.noisy(x, pair, scheme, p, seed=seed)
        return torch.stack([by_xi, by_seed, functional.noisy(x, pair, scheme, p, training=False)])

    compiled = torch.compile(all_forms, fullgraph=True, backend="aot_eager")
    ours, eager = compiled(x, p, xi, seed), all_forms(x, p, xi, seed)
    assert_close([ours, *gradients(ours, [x, p])], [eager, *gradients(eager, [x, p])])
    assert not torch.equal(eager[0], eager[1])
    assert not torch.equal(eager[0], eager[2])


def test_a_scheme_may_be_a_text_with_settings_or_a_value() -> None:
    x, seed = 3 * torch.randn(100), torch.tensor(4)
    value = na.NANIL(c=2.0)

    def forms(x: Tensor) -> tuple[Tensor, ...]:
        return (
            functional.noisy_hard_tanh(x, "nah:c=0.3,alpha=1.0,clip=True", seed=seed),
            functional.noisy_hard_sigmoid(x, "nan:c=3.0", seed=seed),
            functional.noisy_hard_tanh(x, value, seed=seed),
            functional.noisy_relu(x, na.NANI(sigma=1.0), seed=seed),
            functional.noisy_hard_sigmoid(x, "gumbel:tau=0.5,binary=True", seed=seed),
        )

    assert_close(list(torch.compile(forms, fullgraph=True, backend="aot_eager")(x)), list(forms(x)))
    with pytest.raises(Exception, match="unknown noise scheme 'nanx'"):
        torch.compile(lambda x: functional.noisy_relu(x, "nanx"), fullgraph=True, backend="aot_eager")(x)


def module(kind: str, scheme: str, **settings) -> na.NoisyActivation:
    return {
        "hard tanh": na.NoisyHardTanh,
        "hard sigmoid": na.NoisyHardSigmoid,
        "relu": na.NoisyReLU,
        "atan": lambda noise, **rest: na.NoisyActivation(PAIRS["atan"], noise, **rest),
    }[kind](scheme, **settings)


@pytest.mark.parametrize("kind", PAIRS.keys())
@pytest.mark.parametrize("scheme", SCHEMES)
def test_modules_in_both_modes(scheme: str, kind: str) -> None:
    layer = module(kind, scheme, num_parameters=16)
    x = (6 * torch.randn(8, 16)).requires_grad_()
    inputs = [x, *layer.parameters()]
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for training in (True, False):
        layer.train(training)
        torch.manual_seed(1)
        ours = compiled(x)
        torch.manual_seed(1)
        eager = layer(x)
        assert_close([ours, *gradients(ours, inputs)], [eager, *gradients(eager, inputs)])
        assert torch.equal(compiled(x), ours) == (not training)  # fresh noise in training alone


def network(scheme: str = "nan:c=3.0") -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(3):
        linear = nn.Linear(16, 16)
        nn.init.normal_(linear.weight, std=1.5)
        layers += [linear, na.NoisyHardTanh(scheme, num_parameters=16)]
    return nn.Sequential(*layers)


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["nah", "nanis"])
def test_inductor(scheme: str) -> None:
    """The real compiler: seeds given, it equals eager mode; seeds drawn, torch.manual_seed repeats them."""
    model = network(scheme)
    x = torch.randn(8, 16, requires_grad=True)
    inputs = [x, *model.parameters()]

    def seeded(x: Tensor, seeds: Tensor) -> Tensor:
        for linear, layer, seed in zip(model[::2], model[1::2], seeds, strict=True):
            x = functional.noisy(linear(x), layer.pair, layer.noise, layer.p, seed=seed, scale=layer.scale)
        return x

    seeds = torch.tensor([1, 2, 3])
    ours, eager = torch.compile(seeded, fullgraph=True)(x, seeds), seeded(x, seeds)
    assert_close([ours, *gradients(ours, inputs)], [eager, *gradients(eager, inputs)])

    compiled = torch.compile(model, fullgraph=True)
    torch.manual_seed(7)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(7)
    assert torch.equal(compiled(x), first)
    assert torch.equal(compiled(x), second)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_inductor_with_other_dtypes_and_strides(dtype: torch.dtype) -> None:
    def form(x: Tensor, p: Tensor, seed: Tensor) -> Tensor:
        return functional.noisy_hard_tanh(x * 4, na.NAN(c=2.0), p, seed=seed) * 2 + x

    x = torch.randn(6, 5, dtype=dtype).t().requires_grad_()
    p, seed = torch.randn(6, dtype=dtype, requires_grad=True), torch.tensor(3)
    ours, eager = torch.compile(form, fullgraph=True)(x, p, seed), form(x, p, seed)
    tolerance = {"rtol": 2e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    for a, b in zip([ours, *gradients(ours, [x, p])], [eager, *gradients(eager, [x, p])], strict=True):
        torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_operator_tells_the_compiler_the_strides_and_dtypes(dtype: torch.dtype) -> None:
    x = torch.randn(5, 6, dtype=dtype).t().requires_grad_()  # not contiguous
    settings = (torch.tensor(0.5), torch.tensor(3), "nan:c=0.5", [1.0, 0.0, -1.0, 1.0])
    for p in (None, torch.rand(5, dtype=dtype, requires_grad=True)):
        torch.library.opcheck(op._activation, (x, p, *settings))
        torch.library.opcheck(op._activation_backward, (torch.ones_like(x), x, p, *settings))


def test_annealing_recompiles_nothing() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    model = network()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    x = torch.randn(8, 16)
    scheduler = na.NoiseScheduler(model, na.anneal.linear(30.0, 0.5, steps=30))
    outputs = []
    for _ in range(30):
        torch.manual_seed(0)
        outputs.append(compiled(x))
        scheduler.step()
    assert counter.frame_count == 1
    assert not torch.equal(outputs[0], outputs[-1])  # the scale is no constant of the graph
    na.set_noise_scale(model, 30.0)
    torch.manual_seed(0)
    assert torch.equal(compiled(x), outputs[0])
    assert counter.frame_count == 1

    for _ in range(3):
        model.eval()
        compiled(x)
        model.train()
        compiled(x)
    assert counter.frame_count == 2


def test_batch_sizes_cost_few_graphs() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    model = network()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for batch in (4, 7, 9, 16, 33, 64):
        x = torch.randn(batch, 16)
        torch.manual_seed(2)
        ours = compiled(x)
        torch.manual_seed(2)
        torch.testing.assert_close(ours, model(x))
    assert counter.frame_count <= 2


def region(budget: float):
    return contextlib.nullcontext() if budget == 1.0 else torch.autograd.graph.region_activation_memory_budget(budget)


RECOMPUTING = {
    "budget 1": ({}, 1.0),
    "budget 0.5": ({"activation_memory_budget": 0.5}, 1.0),
    "budget 0": ({"activation_memory_budget": 0.0}, 1.0),
    "aggressive": ({"aggressive_recomputation": True}, 1.0),
    "region budget 0.5": ({}, 0.5),
    "region budget 0": ({}, 0.0),
}


def recomputed(case: str, model: nn.Module, x: Tensor):
    """A compiled function and the configuration it must run under."""
    settings, budget = RECOMPUTING[case]
    if budget < 1.0 and not hasattr(torch.autograd.graph, "region_activation_memory_budget"):
        pytest.skip("this torch has no budgets for regions")

    def forward(x: Tensor) -> Tensor:
        with region(budget):
            return model(x)

    return torch.compile(forward, fullgraph=True, backend=PARTITIONED), torch._functorch.config.patch(settings)


@pytest.mark.parametrize("case", RECOMPUTING)
def test_gradients_are_right_whatever_the_compiler_recomputes(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = network(), torch.randn(8, 16, requires_grad=True)
    inputs = [x, *model.parameters()]
    compiled, configured = recomputed(case, model, x)
    with configured:
        previous = compiled(x)
        replay = noise._CompiledStream()
        replay.state = noise._compiled_stream.state
        torch.manual_seed(3)
        ours = compiled(x)
        found = gradients(ours, inputs)
    assert not torch.equal(previous, ours)
    if case != "budget 1":  # there the seeds come from torch's generator, and eager mode draws the same
        monkeypatch.setattr(functional, "draw_seed", lambda device, generator=None: replay.next(device))
    torch.manual_seed(3)
    eager = model(x)
    assert_close([ours, *found], [eager, *gradients(eager, inputs)])


@pytest.mark.parametrize("case", ["budget 0", "aggressive", "region budget 0"])
def test_draws_that_the_compiler_recomputes_would_be_wrong(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason for the stream: a draw in such a graph gives the right output and a wrong gradient."""

    @torch.compiler.assume_constant_result
    def never() -> bool:
        return False

    monkeypatch.setattr(noise, "_may_recompute_draws", never)
    model, x = network(), torch.randn(8, 16, requires_grad=True)
    compiled, configured = recomputed(case, model, x)
    with configured:
        torch.manual_seed(3)
        ours = compiled(x)
        found = gradients(ours, [x])
    torch.manual_seed(3)
    eager = model(x)
    torch.testing.assert_close(ours, eager)
    with pytest.raises(AssertionError):
        assert_close(found, gradients(eager, [x]))


def test_sampling_without_gradients_leaves_the_stream_usable() -> None:
    """What inference mode makes cannot be saved for backward: the stream's state must not be made there."""
    model, x = network(), torch.randn(8, 16)
    compiled = torch.compile(model, fullgraph=True, backend=PARTITIONED)
    with torch._functorch.config.patch(activation_memory_budget=0.0):
        for quiet in (torch.inference_mode, torch.no_grad):
            with quiet():
                assert not torch.equal(compiled(x), compiled(x))
            compiled(x).sum().backward()


@pytest.mark.parametrize("budget", [1.0, 0.5])
def test_a_generator_is_refused_not_ignored(budget: float) -> None:
    """torch cannot compile a draw from a generator object, and would silently use another generator."""
    generator = torch.Generator()

    def form(x: Tensor) -> Tensor:
        return functional.noisy_hard_tanh(x, na.NAN(), generator=generator)

    with (
        torch._functorch.config.patch(activation_memory_budget=budget),
        pytest.raises(torch._dynamo.exc.Unsupported, match="Generator"),
    ):
        torch.compile(form, fullgraph=True, backend="aot_eager")(torch.randn(8))


def test_settings_that_torch_no_longer_has_count_as_recomputing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not noise._may_recompute_draws()
    monkeypatch.setattr(noise, "_partitioner", None)
    assert noise._may_recompute_draws()


def test_constants_are_marked_as_torch_marks_them() -> None:
    """noisyact sets the mark itself, since torch's own function first imports the compiler."""

    def marked(mark) -> dict:
        def function() -> None: ...

        return vars(mark(function))

    assert marked(constant) == marked(torch.compiler.assume_constant_result)
