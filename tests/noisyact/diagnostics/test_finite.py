"""FiniteWatch: the module and the step where things stop being finite, in the order of cause and effect."""

import math

import pytest
import torch
from torch import nn

from noisyact import FiniteWatch, NoisyHardTanh, NoisyLSTM, noisify
from noisyact.diagnostics.finite import NonFinite


class Poison(nn.Module):
    """Multiplies by a number going forward and by another going back."""

    def __init__(self, forth: float = 1.0, back: float = 1.0) -> None:
        super().__init__()
        self.forth, self.back = forth, back

    def forward(self, x):
        y = x * self.forth
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * self.back)
        return y


def chain(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), *middle, nn.Linear(2, 2))


def found(watch: FiniteWatch) -> list[tuple[str, str, int]]:
    return [(finding.module, finding.what, finding.step) for finding in watch.findings()]


def train(model: nn.Module, watch: FiniteWatch, steps: int) -> None:
    for _ in range(steps):
        model.zero_grad()
        model(torch.ones(3, 2)).sum().backward()
        watch.step()


def test_nothing_to_report():
    model = chain(NoisyHardTanh())
    with FiniteWatch(model) as watch:
        train(model, watch, 3)
    assert watch.findings() == []
    assert watch.first() is None
    assert watch.step_number == 3


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("bad_step", [0, 2])
def test_activations_are_named_from_the_cause_on(value, bad_step):
    model = chain(nn.ReLU(), Poison(), NoisyHardTanh("nan:alpha=0.9"))
    with FiniteWatch(model) as watch:
        train(model, watch, bad_step)
        model[2].forth = value
        train(model, watch, 2)
    activations = [name for name, what, step in found(watch) if what == "activation"]
    assert activations == ["2", "3", "4"]
    assert {step for _, _, step in found(watch)} == {bad_step}
    assert watch.first() == NonFinite("2", "activation", bad_step)
    assert str(watch.first()) == f"the activation of 2 stopped being finite at step {bad_step}"


@pytest.mark.parametrize("bad_step", [0, 3])
def test_gradients_are_named_from_the_last_module_backwards(bad_step):
    model = chain(nn.ReLU(), nn.Sequential(nn.Linear(2, 2), Poison()), nn.Linear(2, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    with FiniteWatch(model) as watch:
        train(model, watch, bad_step)
        model[2][1].back = math.inf
        train(model, watch, 1)
    # It breaks at the output of 2.1: module 3, whose own gradient is sound, is not named.
    assert found(watch) == [(name, "gradient", bad_step) for name in ("2.1", "2.0", "1", "0")]


def test_the_first_step_counts_not_the_first_module():
    """What breaks later does not come before, wherever it stands in the model."""
    model = nn.ModuleDict({"a": Poison(), "b": Poison()})
    with FiniteWatch(model) as watch:
        for step, (a, b) in enumerate([(1.0, 1.0), (1.0, math.nan), (math.nan, 1.0)]):
            watch.step(step)
            model["a"].forth, model["b"].forth = a, b
            model["a"](torch.ones(1))
            model["b"](torch.ones(1))
    assert found(watch) == [("b", "activation", 1), ("a", "activation", 2)]


def test_accumulated_gradients_keep_their_order_within_a_step():
    model = nn.ModuleDict({"a": Poison(), "b": Poison(math.nan)})
    with FiniteWatch(model) as watch:
        watch.step(7)
        for name in ("a", "a", "b"):
            model[name](torch.ones(1))
        watch.step(7)
        model["a"].forth = math.inf
        model["a"](torch.ones(1))
    assert found(watch) == [("b", "activation", 7), ("a", "activation", 7)]


def test_a_long_run_with_given_steps_still_names_the_right_one(monkeypatch):
    monkeypatch.setattr("noisyact.diagnostics.finite._PER_STEP", 4)  # room for few modules a step
    module = Poison()
    with FiniteWatch(module) as watch:
        for step in range(40):
            watch.step(step)
            module.forth = math.nan if step == 37 else 1.0
            module(torch.ones(1))
            module(torch.ones(1))
    assert found(watch) == [("", "activation", 37)]


class Outputs(nn.Module):
    def forward(self, x):
        return {"same": x, "nested": (torch.ones(1), [x * math.inf]), "count": 3, "whole": torch.ones(1).long()}


def test_tuples_and_dictionaries_are_looked_into():
    model = Outputs()
    with FiniteWatch(model) as watch:
        model(torch.ones(1))
    assert found(watch) == [("", "activation", 0)]


class HandsOut(nn.Module):
    """Returns its own parameter, a tensor that lives longer than any step."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self):
        return self.weight


def test_closing_leaves_nothing_behind():
    model = nn.ModuleList([HandsOut(), nn.Linear(2, 2), nn.Sequential(NoisyHardTanh())])
    watch = FiniteWatch(model)
    hooked = [name for name, module in model.named_modules() if module._forward_hooks]
    assert hooked == ["0", "1", "2.0"]
    out = model[2](model[1](model[0]()))
    watch.close()
    watch.close()
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(parameter._backward_hooks for parameter in model.parameters())
    (out.sum() * math.nan).backward()  # a graph built under the watch may outlive it
    model[2](torch.full((2,), math.nan))
    assert all(what == "gradient" for _, what, _ in found(watch))


def test_hooks_go_also_when_training_fails():
    model = chain()
    with pytest.raises(RuntimeError, match="shape"), FiniteWatch(model):
        model(torch.ones(3, 5))
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("wrong", [nn.Linear, None, [nn.Linear(1, 1)]])
def test_wrong_model(wrong):
    with pytest.raises(TypeError, match=r"must be an nn\.Module, not"):
        FiniteWatch(wrong)


def blow_up(c: float, lr: float, steps: int = 60) -> FiniteWatch:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    model = noisify(net, f"nan:c={c}")
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    x = torch.randn(64, 4)
    y = x.sum(1, keepdim=True)
    with FiniteWatch(model) as watch:
        for _ in range(steps):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
            watch.step()
    return watch


def test_a_run_that_blows_up_is_named_and_a_sound_one_is_not():
    assert blow_up(c=0.5, lr=0.01).findings() == []
    watch = blow_up(c=1e4, lr=1.0)
    first = watch.first()
    assert first is not None
    names = {"0", "1", "2", "3", "4"}
    assert first.module in names
    assert 0 < first.step < 60
    assert {finding.module for finding in watch.findings()} == names
    steps = [finding.step for finding in watch.findings()]
    assert steps == sorted(steps)
    assert blow_up(c=1e4, lr=1.0, steps=first.step).first() is None  # one step earlier all was finite
    assert blow_up(c=1e4, lr=1.0, steps=first.step + 1).first() == first


def test_recurrent_layers_are_watched():
    """Their noise is a submodule, so they are not innermost; the layer itself must be named all the same."""
    model = nn.Sequential(nn.Linear(3, 3), NoisyLSTM(3, 3))
    with FiniteWatch(model) as watch, torch.no_grad():
        model[1].weight_hh_l0.fill_(float("inf"))
        model(torch.randn(4, 2, 3))
    first = watch.first()
    assert first is not None
    assert first.module == "1"
