"""saturation(): numbers computed by hand, gradient paths that add up to autograd's, and an unchanged model."""

import math

import pytest
import torch
from torch import nn

from noisyact import (
    HARD_SIGMOID,
    HARD_TANH,
    NoisyActivation,
    NoisyHardSigmoid,
    NoisyHardTanh,
    NoisyReLU,
    Pair,
    equations,
    saturation,
)
from noisyact.diagnostics.saturation import SaturationMeter

PATHS = ("linear", "nonlinear", "stochastic")
SMOOTH = Pair(h=torch.tanh, u=lambda x: x, x_t=(-1.0, 1.0), limits=(-1.0, 1.0))


def sigma_by_hand(delta: float, p: float, c: float) -> float:
    return c * (1 / (1 + math.exp(-p * delta)) - 0.5) ** 2


def with_p(module: NoisyActivation, value: float) -> NoisyActivation:
    with torch.no_grad():
        module.p.fill_(value)
    return module


def test_numbers_by_hand():
    x = torch.tensor([[0.0, 0.5, 1.0, 3.0, -2.0]])
    group = saturation(nn.Sequential(with_p(NoisyHardTanh("nah:c=2.0"), 0.7)), x)["0"]
    deltas = [0, 0, 0, -2, 1]  # h - u
    assert group.kind == "NoisyHardTanh"
    assert group.saturated == pytest.approx(3 / 5)  # on the threshold counts
    assert group.depth == pytest.approx(3 / 5)
    assert group.sigma == pytest.approx(sum(sigma_by_hand(d, 0.7, 2.0) for d in deltas) / 5)
    assert all(math.isnan(getattr(group, path)) for path in PATHS)


@pytest.mark.parametrize(
    ("module", "saturated", "depth", "sigma"),
    [
        (NoisyHardSigmoid("nani:sigma=0.3"), 0.5, 0.25, 0.3),  # noise everywhere
        (NoisyHardSigmoid("nanis:sigma=0.3"), 0.5, 0.25, 0.15),  # where saturated alone
        (NoisyReLU("nani:sigma=0.3"), 0.0, 0.0, 0.3),
        (nn.Sigmoid(), 0.5, 0.25, 0.0),  # as its hard version, slope 1/4
        (nn.Hardsigmoid(), 0.5, 1 / 12, 0.0),  # slope 1/6
        (nn.Hardsigmoid(inplace=True), 0.5, 1 / 12, 0.0),
        (nn.Tanh(), 1.0, 2.0, 0.0),
        (nn.Hardtanh(-3.0, 3.0, inplace=True), 0.5, 0.5, 0.0),
        (NoisyActivation(SMOOTH, "nani:sigma=0.1"), 1.0, 3 - (math.tanh(4) + math.tanh(2)) / 2, 0.1),
    ],
    ids=repr,
)
def test_numbers_of_each_kind(module, saturated, depth, sigma):
    x = torch.tensor([4.0, 2.0 - 1e-6])
    report = saturation(module, x.clone())
    assert [group.name for group in report] == [""]
    group = report[""]
    assert (group.saturated, group.depth) == pytest.approx((saturated, depth), abs=1e-5)
    assert group.sigma == pytest.approx(sigma, rel=1e-6)


def one_unit_paths(x, alpha, c, p, epsilon, g):
    """The paper's formulas for one unit of the hard tanh beyond its threshold."""
    delta = math.copysign(1, x) - x
    t = math.tanh(p * delta / 2)
    sigma_prime = c / 4 * t * (1 - t * t) * p * -1.0  # d sigma / d Delta times d Delta / dx
    d = -math.copysign(1, x) * (1 if alpha <= 1 else -1)
    return (1 - alpha) * g, 0.0, d * epsilon * sigma_prime * g


@pytest.mark.parametrize("scheme", ["nan", "nah"])
@pytest.mark.parametrize(("x", "alpha"), [(2.5, 0.8), (2.5, 1.15), (-1.5, 1.15), (-3.0, 1.0)])
def test_one_unit_against_the_papers_formulas(scheme, x, alpha):
    module = with_p(NoisyHardTanh(f"{scheme}:c=4,alpha={alpha}", dtype=torch.float64), 0.9)
    inputs = torch.tensor([x], dtype=torch.float64, requires_grad=True)
    xi = torch.tensor([-0.6], dtype=torch.float64)
    group = saturation(module, inputs, xi, loss=lambda out: 3 * out.sum())[""]
    by_hand = one_unit_paths(x, alpha, 4.0, 0.9, 0.6 if scheme == "nah" else -0.6, 3.0)
    assert [getattr(group, path) for path in PATHS] == pytest.approx([abs(v) for v in by_hand], rel=1e-7, abs=1e-12)
    (3 * module(inputs, xi).sum()).backward()
    assert inputs.grad.item() == pytest.approx(sum(by_hand), rel=1e-7)


SCHEMES = ["nan:c=3", "nah:c=3,alpha=0.9", "nah:c=9,clip=True", "nani:sigma=2", "nanil:c=6", "nanis:sigma=2"]


@pytest.mark.parametrize("noise", SCHEMES)
@pytest.mark.parametrize("pair", [HARD_TANH, HARD_SIGMOID, SMOOTH], ids=["tanh", "sigmoid", "functions"])
@pytest.mark.parametrize("mode", ["train", "sample", "expectation", "hard"])
def test_the_paths_add_up_to_the_gradient(noise, pair, mode):
    """The report has absolute values. For one unit, the paths with their signs sum to autograd's gradient."""
    eval_noise = mode if mode != "train" else "expectation"
    module = NoisyActivation(pair, noise, dtype=torch.float64, eval_noise=eval_noise).train(mode == "train")
    for value in (-2.9, -0.3, 0.7, 1.2, 4.0):
        x = torch.tensor([value], dtype=torch.float64, requires_grad=True)
        xi = torch.randn(1, dtype=torch.float64)
        group = saturation(module, x, xi, loss=lambda out: 2 * out.sum())[""]
        linear, nonlinear, stochastic = (getattr(group, path) for path in PATHS)
        (total,) = torch.autograd.grad(2 * module(x, xi).sum(), x)
        sums = [a * linear + nonlinear + b * stochastic for a in (1, -1) for b in (1, -1)]
        assert any(math.isclose(total.item(), s, rel_tol=1e-6, abs_tol=1e-9) for s in sums), (value, sums, total)
        if pair is not SMOOTH and mode == "train":
            p = 1.0 if module.p is None else module.p.detach()
            d = equations.path_derivatives(x.detach(), pair, module.noise, module.scale.double(), p, xi)
            assert (linear, nonlinear, stochastic) == pytest.approx([2 * abs(v.item()) for v in d[:3]], rel=1e-6)


@pytest.mark.parametrize(("soft", "slope"), [(nn.Tanh(), 1 - math.tanh(0.4) ** 2), (nn.Sigmoid(), 0.2402607)])
def test_a_plain_activation_has_the_nonlinear_path_alone(soft, slope):
    group = saturation(soft, torch.tensor([0.4]), loss=lambda out: 5 * out.sum())[""]
    assert (group.linear, group.nonlinear, group.stochastic) == pytest.approx((0.0, 5 * slope, 0.0), abs=1e-6)


class Net(nn.Module):
    """One activation used twice, one the loss never sees, an in-place operation right after, a dictionary out."""

    def __init__(self, frozen=False):
        super().__init__()
        self.shared = NoisyHardTanh("nan:c=0,alpha=0.5")
        self.unseen = nn.Tanh()
        self.last = nn.Hardtanh()
        self.requires_grad_(not frozen)

    def forward(self, x):
        first = self.shared(x).mul_(10)
        second = self.shared(x=x * 3)
        with torch.no_grad():
            self.unseen(input=second)
        return {"out": (self.last(first * 0.01).add_(1), second), "other": self.unseen(second)}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_shared_modules_in_place_operations_and_parts_that_the_loss_does_not_reach(frozen, training):
    report = saturation(Net(frozen).train(training), torch.tensor([0.5]), loss=lambda out: 2 * out["out"][0].sum())
    assert [group.name for group in report] == ["shared", "unseen", "last"]
    shared, unseen, last = report
    assert last.nonlinear == pytest.approx(2.0)
    assert (unseen.linear, unseen.nonlinear, unseen.stochastic) == (0.0, 0.0, 0.0)
    # 2 * 0.01 * 10 reaches the first call, half of it through u and half through h; nothing reaches the second.
    assert (shared.linear, shared.nonlinear, shared.stochastic) == pytest.approx((0.05, 0.05, 0.0))
    assert shared.saturated == 0.5
    assert shared.depth == pytest.approx(0.25)
    with pytest.raises(KeyError, match="nothing"):
        report["nothing"]


class Careless(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.act = NoisyHardTanh()
        self.drop = nn.Dropout()
        self.register_buffer("average", torch.zeros(3))

    def forward(self, x):
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return self.drop(self.act(self.norm(x)))


def test_nothing_changes():
    model = Careless()
    calls = []
    handle = model.act.register_forward_hook(lambda module, args, out: calls.append(out))
    model(torch.randn(6, 3)).sum().backward()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    average, x = model.average, torch.randn(6, 3)
    rng = torch.get_rng_state()
    for loss in (None, lambda out: out.sum()):
        saturation(model, x, loss=loss)
    with pytest.raises(RuntimeError):
        saturation(model, torch.randn(6, 4, generator=torch.Generator()), loss=lambda out: out.sum())
    assert torch.equal(torch.get_rng_state(), rng)
    assert model.average is average
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))
    assert all(module.training for module in model.modules())
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    assert sum(hooks) == 1
    assert len(calls) == 3
    handle.remove()


def test_the_cause_of_what_is_not_finite_comes_first(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    model = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1), NoisyHardTanh())
    with torch.no_grad():
        model[2].weight.fill_(math.inf)
    report = saturation(model, torch.ones(2, 1), loss=lambda out: out.sum())
    assert (report.nonfinite[0].module, report.nonfinite[0].what) == ("2", "activation")
    assert str(report).splitlines()[3] == "the activation of 2 stopped being finite at step 0"
    assert saturation(nn.Tanh(), torch.ones(1)).nonfinite == ()


@pytest.mark.parametrize(
    ("loss", "error", "named"),
    [
        (lambda out: out, ValueError, "one number"),
        (lambda out: out.sum().item(), ValueError, "one number.*2"),
        (lambda out: None, ValueError, "None"),
        (lambda out: out.detach().sum(), ValueError, "no gradient"),
        (torch.ones(()), TypeError, "tensor"),
        ("mse", TypeError, "'mse'"),
    ],
)
def test_wrong_loss(loss, error, named):
    with pytest.raises(error, match=named):
        saturation(NoisyHardTanh("nan:c=0,alpha=1.0"), torch.ones(2), loss=loss)


def test_wrong_model_and_no_saturating_module():
    with pytest.raises(TypeError, match="Tanh"):
        saturation(nn.Tanh, torch.ones(2))
    assert str(saturation(nn.ReLU(), torch.ones(2), loss=torch.sum)) == "no noisy or saturating module"


def test_prints_as_a_table(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    model = nn.Sequential(with_p(NoisyHardTanh("nan:c=0,alpha=0.5"), 1.0))
    assert str(saturation(model, torch.tensor([3.0]), loss=torch.sum)).split("\n") == [
        "module  type           saturated  at limits  |Delta|  sigma  grad u  grad h  grad sigma",
        "0       NoisyHardTanh  1          0          2        0      0.5     0       0",
    ]


def test_meter_sees_training_alone_and_only_when_switched_on():
    model = nn.Sequential(NoisyHardTanh(), nn.Tanh())
    meter = SaturationMeter(model)
    beyond, within = torch.full((4,), 3.0), torch.zeros(4)
    model(beyond)
    assert meter.read() == {}
    meter.active = True
    model(beyond)
    model[0](x=within)
    model.eval()(beyond)
    assert meter.read() == {"0": 0.5}
    assert meter.read() == {}
    meter.close()
    model.train()(beyond)
    assert meter.read() == {}
    assert not model[0]._forward_hooks
