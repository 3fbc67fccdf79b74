"""Mixture of Gaussians: which of three normal distributions in the plane does a point come from?

A network of three hidden layers, 8 units each, solves this almost perfectly with tanh and with noisy tanh alike, says
the paper, and shows what each unit has learned: its activation and its derivative against its input.

What the paper leaves open is chosen here once for all arms: the means and standard deviations (the best possible
classifier is right for 99.9% of the points), Adam, the batch, c = 0.5 and, as in the authors' code, a p for each unit.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import noisyact as na
from noisyact.functional import noisy, standard_normal
from noisyact_lab.engine.experiment import Arm, Comparison, Experiment, check_at_least, compared_with
from noisyact_lab.engine.task import Task
from noisyact_lab.tasks.batches import RandomBatches
from noisyact_lab.tasks.noise_settings import activation_named

__all__ = ["MIXTURE", "Mixture", "Settings", "points"]

MEANS = ((-2.0, -1.0), (2.0, -1.0), (0.0, 2.0))
DEVIATIONS = (0.3, 0.5, 0.7)
_DRAWN = 300
"""Test points in the figure."""
_NOISE_SEED = 7
"""Seed of the noise in the figure: the same run gives the same figure."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The defaults are the preset `paper`."""

    layers: int = 3
    units: int = 8
    activation: str = "tanh"
    """tanh, hard, nan or nah."""
    c: float = 0.5
    alpha: float = 1.0
    """1, as under the paper's figures, leaves no leak."""
    train_points: int = 3000
    test_points: int = 10_000
    batch: int = 64
    updates: int = 10_000
    evaluate_every: int = 500
    learning_rate: float = 5e-3

    def __post_init__(self) -> None:
        check_at_least(1, "mixture", self, "layers", "units", "train_points", "test_points", "batch")


def points(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points, [count, 2], of the three distributions, each equally likely, and the one each is of.

    >>> x, label = points(4, torch.Generator().manual_seed(0))
    >>> x.shape, label.tolist()
    (torch.Size([4, 2]), [2, 0, 2, 0])
    """
    label = torch.randint(len(MEANS), (count,), generator=generator)
    xi = torch.randn(count, 2, generator=generator)
    return torch.tensor(MEANS)[label] + torch.tensor(DEVIATIONS)[label, None] * xi, label


class Units(NamedTuple):
    """What a layer's units do with a batch, each [batch, units]: their inputs x, phi(x, xi) and dphi/dx."""

    x: Tensor
    phi: Tensor
    dphi: Tensor


class Network(nn.Module):
    """Layers of units, and a linear one that names the distribution."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        widths = [2] + [settings.units] * settings.layers
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.activations = nn.ModuleList(
            activation_named(settings.activation, settings.units, ("nan", "nah"), c=settings.c, alpha=settings.alpha)
            for _ in self.linears
        )
        self.head = nn.Linear(widths[-1], len(MEANS))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 2] to the logits, [batch, 3]."""
        for linear, activation in zip(self.linears, self.activations, strict=True):
            x = activation(linear(x))
        return self.head(x)

    def units(self, x: Tensor, seed: int) -> list[Units]:
        """The units of each layer, with the noise that the seed stands for, as in training."""
        found = []
        for layer, (linear, activation) in enumerate(zip(self.linears, self.activations, strict=True)):
            x = linear(x).detach().requires_grad_()
            if isinstance(activation, na.NoisyActivation):
                xi = standard_normal(torch.tensor(seed + layer, device=x.device), x.shape)
                phi = noisy(x, activation.pair, activation.noise, activation.p, xi, scale=activation.scale)
            else:
                phi = activation(x)
            (dphi,) = torch.autograd.grad(phi.sum(), x)
            found.append(Units(x.detach(), phi.detach(), dphi))
            x = phi.detach()
        return found


class Mixture(Task[Network]):
    """One run."""

    spreads = False
    settings: Settings

    def __init__(self, settings: Settings, seed: int, device: torch.device) -> None:
        model, on_gpu = Network(settings).to(device), device.type == "cuda"
        adam = torch.optim.Adam(
            model.parameters(), settings.learning_rate, capturable=on_gpu, fused=True if on_gpu else None
        )
        super().__init__("mixture", settings, model, adam)
        self.generators["data"] = torch.Generator().manual_seed(seed + 1)
        # The training points differ from seed to seed and are the same for every arm; the test points never change.
        self.train = self._points(settings.train_points, self.generators["data"])
        self.test = self._points(settings.test_points, torch.Generator().manual_seed(20_160_301))
        self.chosen = RandomBatches(self._draw, self.updates, self.evaluate_every, device)

    def _points(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x, label = points(count, generator)
        return x.to(self.device), label.to(self.device)

    def update(self, index: int) -> dict[str, float]:
        """A batch of training points, one step of Adam."""
        loss = self.step(self.chosen.at(index))
        return {"loss": loss.item()} if self.due(index + 1) else {}

    def _step(self, chosen: Tensor) -> Tensor:
        x, label = self.train
        loss = F.cross_entropy(self.trained(x[chosen]), label[chosen])
        self.descend(loss)
        return loss.detach()

    def _draw(self, first: int, last: int) -> Tensor:
        """The training points of several updates, [updates, batch]."""
        shape = (last - first, self.settings.batch)
        return torch.randint(len(self.train[0]), shape, generator=self.generators["data"])

    def evaluate(self, index: int) -> dict[str, float]:
        """Accuracy in per cent and NLL in nats on both sets, with the expectation in place of the noise."""
        self.model.eval()
        measured = {}
        with torch.no_grad():
            for name, (x, label) in {"train": self.train, "test": self.test}.items():
                logits = self.model(x)
                measured[f"{name}_accuracy"] = 100 * int((logits.argmax(dim=1) == label).sum()) / len(label)
                measured[f"{name}_nll"] = F.cross_entropy(logits, label).item()
        self.model.train()
        return measured

    def probe(self) -> tuple[Tensor]:
        """Some of the test points."""
        return (self.test[0][:256],)

    def result(self, evaluations: list[dict[str, float]]) -> dict[str, float]:
        """The last evaluation."""
        return {
            f"{s}_{what}": evaluations[-1][f"{s}_{what}"] for s in ("train", "test") for what in ("accuracy", "nll")
        }

    def pictures(self) -> dict[str, Any]:
        """Activation and derivative of every unit against its input, with noise as in training."""
        from noisyact_lab.experiments.mixture.figures import draw

        return {"units": draw(self.model.units(self.test[0][:_DRAWN], _NOISE_SEED), _title(self.settings))}


def _title(settings: Settings) -> str:
    plain = {"tanh": "tanh", "hard": "hard tanh"}
    noisy = rf"{settings.activation.upper()} ($\alpha = {settings.alpha:g}$, $c = {settings.c:g}$)"
    return plain.get(settings.activation, noisy)


_LEAK = {"activation": "nan", "alpha": 1.15}
MIXTURE = Experiment(
    name="mixture",
    title="Tell three Gaussians apart: what each unit learns",
    reproduces="the figures of each unit's derivative and activation at each layer (small-scale experiments)",
    settings=Settings,
    presets={
        "smoke": {"updates": 60, "evaluate_every": 20, "train_points": 500, "test_points": 500},
        "short": {"updates": 1500, "evaluate_every": 250, "test_points": 3000},
    },
    arms=(
        Arm("tanh", "tanh", {}),
        Arm("hard", "hard tanh, no noise", {"activation": "hard"}),
        # alpha = 1, as in the paper's figures, has no leak; with c = 0 it would be the arm above. So the leak has the
        # alpha of the authors' code, and a noisy arm with that alpha beside it.
        Arm("leak", "hard tanh, the leak alone (c = 0, alpha = 1.15)", {**_LEAK, "c": 0.0}),
        Arm("nan", "NAN, alpha = 1", {"activation": "nan"}),
        Arm("nah", "NAH, alpha = 1", {"activation": "nah"}),
        Arm("nan-leak", "NAN, alpha = 1.15", _LEAK),
    ),
    metric="test_accuracy",
    unit="% test accuracy",
    higher_is_better=True,
    agreement="Solved almost perfectly by tanh and by noisy tanh, as the paper says: at preset `paper` the mean test "
    "accuracy of tanh, NAN and NAH is at least 99% each (the best possible is 99.9%), and neither noisy mean is more "
    "than 0.5 points below that of tanh. The figures agree if noise shows where |x| > 1 and nowhere else.",
    start=Mixture,
    comparisons=(
        Comparison("nan", "tanh", margin=0.5),
        Comparison("nah", "tanh", margin=0.5),
        *compared_with("hard", "leak", "nan", "nah"),
        Comparison("nan-leak", "leak"),
    ),
    minutes={"smoke": 0.02, "short": 0.05, "paper": 0.25},
)
