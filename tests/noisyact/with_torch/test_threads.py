"""Draws of seeds: which generator they come from, that they repeat, and that threads do not interfere."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

import noisyact as na
from noisyact import functional

SCHEMES = ["nan", "nah", "nani", "nanil:c=300.0", "nanis:sigma=3.0"]
PAIRS = {"hard pair": na.HARD_TANH, "any pair": na.Pair(torch.tanh, lambda x: x, x_t=(-1, 1), limits=(-1, 1))}
saturated = torch.full((40, 50), 3.0)


def moves_the_generator(run) -> bool:
    before = torch.get_rng_state()
    run()
    return not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
@pytest.mark.parametrize("scheme", SCHEMES)
def test_who_draws(scheme: str, pair) -> None:
    layer = na.NoisyActivation(pair, scheme)
    generator = torch.Generator()
    xi, seed = torch.randn_like(saturated), torch.tensor(3)

    def form(**noise) -> Tensor:
        return functional.noisy(saturated, pair, scheme, **noise)

    assert moves_the_generator(lambda: layer(saturated))
    assert moves_the_generator(form)
    assert not moves_the_generator(lambda: layer(saturated, xi))
    assert not moves_the_generator(lambda: form(xi=xi))
    assert not moves_the_generator(lambda: form(seed=seed))
    assert not moves_the_generator(lambda: form(generator=generator))
    assert not moves_the_generator(lambda: form(training=False))
    layer.eval()
    assert not moves_the_generator(lambda: layer(saturated))
    layer.eval_noise = "hard"
    assert not moves_the_generator(lambda: layer(saturated))
    layer.eval_noise = "sample"
    assert moves_the_generator(lambda: layer(saturated))
    with pytest.raises(ValueError, match="xi or seed, not both"):
        form(xi=xi, seed=seed)
    with pytest.raises(TypeError, match="seed must be a tensor"):
        form(seed=3)
    with pytest.raises(ValueError, match="seed must be one int64"):
        form(seed=torch.tensor(3.0))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_backward_draws_nothing(scheme: str) -> None:
    x = saturated.clone().requires_grad_()
    y = functional.noisy_hard_tanh(x, scheme)
    assert not moves_the_generator(y.sum().backward)


def test_a_generator_isolates_and_repeats() -> None:
    generator, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)

    def draw(generator: torch.Generator) -> Tensor:
        return functional.noisy_hard_tanh(saturated, "nan", generator=generator)

    first, second, apart = draw(generator), draw(generator), draw(other)
    assert not torch.equal(first, second)
    assert not torch.equal(first, apart)
    torch.manual_seed(99)
    generator.manual_seed(1)
    assert torch.equal(draw(generator), first)
    assert torch.equal(draw(generator), second)


# Where h swallows noise at the input, two seeds may give one value: these are the schemes that show every draw.
@pytest.mark.parametrize(("scheme", "x"), [("nan", saturated), ("nah", saturated), ("nah:alpha=1.0", -saturated)])
def test_seeds(scheme: str, x: Tensor) -> None:
    def draw(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return functional.noisy_hard_tanh(x, scheme)

    assert torch.equal(draw(1), draw(1))
    assert (draw(1) != draw(2)).float().mean() > 0.99


def test_the_number_of_draws_depends_on_shapes_only() -> None:
    """Data, schemes, scales and modes of differentiation change nothing in what comes after."""
    left = set()
    for scheme in SCHEMES:
        for x in (saturated, torch.zeros_like(saturated), torch.full_like(saturated, torch.inf)):
            for grad in (True, False):
                torch.manual_seed(1)
                with torch.set_grad_enabled(grad):
                    functional.noisy_hard_tanh(x.clone().requires_grad_(), scheme)
                left.add(torch.rand(()).item())
    layer = na.NoisyHardTanh("nah")
    layer.set_scale(0.0)
    torch.manual_seed(1)
    layer(saturated.bfloat16())
    left.add(torch.rand(()).item())
    assert len(left) == 1


class Work(threading.Thread):
    """Forwards, and a backward each, with a generator of its own."""

    def __init__(self, model: nn.ModuleList, number: int, barrier: threading.Barrier) -> None:
        super().__init__()
        self.model, self.number, self.barrier = model, number, barrier
        self.found: list[Tensor] = []

    def run(self) -> None:
        generator = torch.Generator().manual_seed(self.number)
        x = torch.linspace(-4, 4, 300).reshape(6, 50).requires_grad_()
        self.barrier.wait()
        for i in range(100):
            layer = self.model[i % len(self.model)]
            y = functional.noisy(x, layer.pair, layer.noise, layer.p, generator=generator, scale=layer.scale)
            self.found += [y.detach(), *torch.autograd.grad(y.sum(), [x])]


def test_threads_reproduce_serial_results() -> None:
    model = nn.ModuleList(na.NoisyActivation(pair, scheme) for pair in PAIRS.values() for scheme in SCHEMES)
    together, alone = threading.Barrier(8), threading.Barrier(1)
    threads = [Work(model, number, together) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for thread in threads:
        serial = Work(model, thread.number, alone)
        serial.run()
        assert len(thread.found) == len(serial.found) == 200
        assert all(torch.equal(a, b) for a, b in zip(thread.found, serial.found, strict=True))
    assert not torch.equal(threads[0].found[0], threads[1].found[0])
