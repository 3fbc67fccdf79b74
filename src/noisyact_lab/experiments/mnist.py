"""MNIST: a network with one hidden layer learns to read digits, with every kind of noise.

The paper shows learning curves and says in words what they show: networks with noisy activations learn faster than with
tanh and hard tanh, and to a lower negative log-likelihood (NLL) than with tanh. It names RMSProp and a single layer.

What it leaves open is chosen here once for all arms: 500 units and Glorot's uniform initialisation (the usual tanh
network of the time; the same weights in every arm of a seed), batches of 128, a learning rate of 0.001, c, alpha and
sigma of the authors' code, a p for each unit. The last 10,000 of the 60,000 training images are for validation; the
test images are read once, at the end, with the weights that were best in validation.
"""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import noisyact as na
from noisyact_lab.data import idx
from noisyact_lab.data.catalog import dataset
from noisyact_lab.data.locate import file_in, find
from noisyact_lab.data.verify import verify
from noisyact_lab.engine.experiment import Arm, Experiment
from noisyact_lab.engine.process_group import SINGLE_PROCESS, ProcessGroup
from noisyact_lab.loops.cuda_graph import captured
from noisyact_lab.tasks.milestones import updates_to

__all__ = ["MNIST", "Digits", "Settings", "images_and_labels"]

_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Settings:
    """The defaults are the preset `paper`."""

    activation: str = "tanh"
    """tanh, hard, nan, nah, nani, nanil or nanis."""
    c: float = 0.5
    """Of NAN, NAH and NANIL."""
    alpha: float = 1.15
    """Of NAN and NAH."""
    sigma: float = 0.05
    """Of NANI and NANIS."""
    hidden: int = 500
    batch: int = 128
    updates: int = 20_000
    evaluate_every: int = 200
    learning_rate: float = 1e-3
    decay: float = 0.9
    """Of RMSProp's mean of squares."""
    validation: int = 10_000
    measured: int = 10_000
    """Training images on which the training NLL is measured."""
    verified: bool = True
    """The files must be MNIST's own, by their checksums."""


def images_and_labels(part: str, verified: bool = True) -> tuple[Tensor, Tensor]:
    """The images, uint8 [count, pixels], and labels, int64 [count], of "train" or "t10k"."""
    folder = find("mnist")
    if verified and (problems := verify("mnist")):
        raise ValueError(f"data set 'mnist' is not what it should be: {'; '.join(problems)}")
    images_path, labels_path = (
        _path(folder, f"{part}-images-idx3-ubyte.gz"),
        _path(folder, f"{part}-labels-idx1-ubyte.gz"),
    )
    images, labels = idx.read(images_path, 3), idx.read(labels_path, 1)
    if len(images) != len(labels):
        raise ValueError(f"{images_path} has {len(images):,} images, but {labels_path} has {len(labels):,} labels")
    if int(labels.max()) >= _CLASSES:
        raise ValueError(f"{labels_path} has a label {int(labels.max())}; allowed are 0 to {_CLASSES - 1}")
    return images.flatten(1), labels.long()


def _path(folder: Path, name: str) -> Path:
    file = next(file for file in dataset("mnist").files if file.name == name)
    path = file_in(folder, file)
    assert path is not None  # find() has seen it
    return path


class Network(nn.Module):
    """One hidden layer."""

    def __init__(self, pixels: int, settings: Settings) -> None:
        super().__init__()
        self.hidden = nn.Linear(pixels, settings.hidden)
        self.output = nn.Linear(settings.hidden, _CLASSES)
        for layer in (self.hidden, self.output):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.activation = _activation(settings)  # last: the weights of a seed are the same whether it draws a p or not

    def forward(self, images: Tensor) -> Tensor:
        """uint8 [batch, pixels] to logits, [batch, 10]."""
        return self.output(self.activation(self.hidden(images / 255)))


def _activation(settings: Settings) -> nn.Module:
    c, alpha, sigma = settings.c, settings.alpha, settings.sigma
    schemes = {
        "nan": na.NAN(c, alpha), "nah": na.NAH(c, alpha), "nani": na.NANI(sigma), "nanil": na.NANIL(c),
        "nanis": na.NANIS(sigma),
    }  # fmt: skip
    if settings.activation in schemes:
        return na.NoisyHardTanh(schemes[settings.activation], num_parameters=settings.hidden)
    plain = {"tanh": nn.Tanh, "hard": nn.Hardtanh}
    if settings.activation not in plain:
        allowed = ", ".join(map(repr, [*plain, *schemes]))
        raise ValueError(f"mnist: activation={settings.activation!r}: allowed are {allowed}")
    return plain[settings.activation]()


class Digits:
    """One run."""

    def __init__(self, settings: Settings, seed: int, device: torch.device) -> None:
        self.settings, self.seed, self.device = settings, seed, device
        self.updates, self.evaluate_every = settings.updates, settings.evaluate_every
        images, labels = images_and_labels("train", settings.verified)
        count = len(images) - settings.validation
        if settings.validation < 1 or count < settings.batch or settings.batch < 1:
            raise ValueError(
                f"mnist: validation={settings.validation}, batch={settings.batch}: both must be at least 1 and "
                f"together at most the {len(images):,} training images"
            )
        images, labels = images.to(device), labels.to(device)
        self.train, self.valid = (images[:count], labels[:count]), (images[count:], labels[count:])
        self.model = Network(images.shape[1], settings).to(device)
        self.optimizer = torch.optim.RMSprop(
            self.model.parameters(), settings.learning_rate, alpha=settings.decay, capturable=device.type == "cuda"
        )
        self.modules: dict[str, nn.Module] = {"model": self.model, "best": copy.deepcopy(self.model)}
        self.optimizers: dict[str, torch.optim.Optimizer] = {"rmsprop": self.optimizer}
        self.generators: dict[str, torch.Generator] = {}
        self.memory: dict[str, Any] = {}
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))
        self.group, self.trained = SINGLE_PROCESS, self.model
        self.step = captured(self._step, [labels])

    def spread(self, group: ProcessGroup) -> None:
        """Share out the images of each batch."""
        group.check_even("mnist", self.settings.batch)
        self.group, self.trained, self.step = group, group.averaged(self.model), self._step

    def _batch(self, index: int) -> Tensor:
        """Which images update `index` sees. Follows from seed and index alone, so a resumed run sees the same."""
        size, count = self.settings.batch, len(self.train[1])
        epoch, place = divmod(index, count // size)
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed((self.seed + 1) * 1_000_003 + epoch)
            self._order = epoch, torch.randperm(count, generator=generator).to(self.device)
        return self._order[1][place * size : (place + 1) * size]

    def update(self, index: int) -> dict[str, float]:
        """A batch, one step of RMSProp."""
        loss = self.step(self.group.share(self._batch(index)))
        recorded = index + 1 == self.updates or (index + 1) % self.evaluate_every == 0
        return {"loss": self.group.mean(loss).item()} if recorded else {}

    def _step(self, chosen: Tensor) -> Tensor:
        images, labels = self.train
        loss = F.cross_entropy(self.trained(images[chosen]), labels[chosen])
        self.optimizer.zero_grad()
        self.group.backward(loss)
        self.optimizer.step()
        return loss.detach()

    def evaluate(self, index: int) -> dict[str, float]:
        """NLL on training and validation images, with the expectation in place of the noise."""
        measured = self.settings.measured
        train_nll, _ = _measured(self.model, self.train[0][:measured], self.train[1][:measured])
        valid_nll, valid_error = _measured(self.model, *self.valid)
        if valid_nll < self.memory.get("valid_nll", float("inf")):
            self.memory["valid_nll"] = valid_nll
            self.modules["best"].load_state_dict(self.model.state_dict())
        return {"train_nll": train_nll, "valid_nll": valid_nll, "valid_error": valid_error}

    def result(self, evaluations: list[dict[str, float]]) -> dict[str, float]:
        """The lowest validation NLL, the test numbers there, the last training NLL, and how fast it fell."""
        best = min(evaluations, key=lambda line: line["valid_nll"])
        images, labels = images_and_labels("t10k", self.settings.verified)
        test_nll, test_error = _measured(self.modules["best"], images.to(self.device), labels.to(self.device))
        reached = {
            f"updates_to_train_nll_{level}": updates_to(evaluations, "train_nll", level) for level in (0.2, 0.1, 0.05)
        }
        return {
            "valid_nll": best["valid_nll"], "valid_error": best["valid_error"], "best_update": float(best["update"]),
            "test_nll": test_nll, "test_error": test_error, "train_nll": evaluations[-1]["train_nll"], **reached,
        }  # fmt: skip


def _measured(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Mean NLL, and the error in per cent."""
    training = model.training
    model.eval()
    nll, wrong = 0.0, 0
    with torch.no_grad():
        for some, known in zip(images.split(5000), labels.split(5000), strict=True):
            logits = model(some)
            nll += F.cross_entropy(logits, known, reduction="sum").item()
            wrong += int((logits.argmax(dim=1) != known).sum())
    model.train(training)
    return nll / len(labels), 100 * wrong / len(labels)


MNIST = Experiment(
    name="mnist",
    title="Read digits with one hidden layer: every kind of noise",
    reproduces="the figure of MNIST learning curves (exploratory analysis)",
    settings=Settings,
    presets={
        "smoke": {"updates": 60, "evaluate_every": 20, "hidden": 32, "measured": 1000},
        "short": {"updates": 4000, "evaluate_every": 100, "measured": 5000},
    },
    arms=(
        Arm("tanh", "tanh", {}),
        Arm("hard", "hard tanh, no noise", {"activation": "hard"}),
        Arm("leak", "hard tanh, the leak alone (c = 0)", {"activation": "nan", "c": 0.0}),
        Arm("nan", "NAN", {"activation": "nan"}),
        Arm("nah", "NAH", {"activation": "nah"}),
        Arm("nani", "NANI", {"activation": "nani", "sigma": 0.05}),
        Arm("nanil", "NANIL", {"activation": "nanil"}),
        Arm("nanis", "NANIS", {"activation": "nanis", "sigma": 0.25}),
    ),
    metric="valid_nll",
    unit="nats, lowest validation NLL",
    agreement="The paper has curves and no numbers. Agreement: noisy arms reach a training NLL of 0.1 in fewer updates "
    "than tanh and than hard tanh, and their lowest validation NLL is below that of tanh; each by more than the 95% "
    "intervals. An arm that does what the leak alone does as well owes it to the leak and not to the noise.",
    start=Digits,
    data=("mnist",),
    minutes={"smoke": 0.05, "short": 0.4, "paper": 2.0},
)
