"""MNIST: a network with one hidden layer learns to read digits, with every kind of noise.

The paper shows learning curves and says in words what they show: networks with noisy activations learn faster than with
tanh and hard tanh, and to a lower negative log-likelihood (NLL) than with tanh. It names RMSProp and a single layer.

What it leaves open is chosen here once for all arms: 500 units and Glorot's uniform initialisation (the usual tanh
network of the time; the same weights in every arm of a seed), batches of 128, a learning rate of 0.001, c, alpha and
sigma of the authors' code, a p for each unit. The last 10,000 of the 60,000 training images are for validation; the
test images are read once, at the end, with the weights that were best in validation.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisyact_lab.data import idx
from noisyact_lab.data.catalog import dataset
from noisyact_lab.data.locate import file_in, find
from noisyact_lab.data.verify import verify
from noisyact_lab.engine.experiment import Arm, Comparison, Experiment, compared_with
from noisyact_lab.engine.task import Task
from noisyact_lab.tasks.batches import EpochBatches
from noisyact_lab.tasks.best_weights import BestWeights
from noisyact_lab.tasks.milestones import updates_to
from noisyact_lab.tasks.noise_settings import activation_named

__all__ = ["MNIST", "Digits", "Settings", "images_and_labels"]

_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Settings:
    """The defaults are the preset `paper`."""

    activation: str = "tanh"
    """tanh, hard, nan, nah, nani, nanil or nanis."""
    c: float = 0.5
    """c of NAN, NAH and NANIL."""
    alpha: float = 1.15
    """alpha of NAN and NAH."""
    sigma: float = 0.05
    """sigma of NANI and NANIS."""
    hidden: int = 500
    batch: int = 128
    updates: int = 20_000
    evaluate_every: int = 200
    learning_rate: float = 1e-3
    decay: float = 0.9
    """Decay of RMSProp's mean of squares."""
    validation: int = 10_000
    """Images of the training set that are kept for validation, its last ones."""
    measured: int = 10_000
    """Training images on which the training NLL is measured."""
    verified: bool = True
    """The files must be MNIST's own, by their checksums."""


def images_and_labels(part: str, verified: bool = True) -> tuple[Tensor, Tensor]:
    """The images, uint8 [count, pixels], and labels, int64 [count], of "train" or "t10k"."""
    folder = find("mnist")
    if verified and (problems := verify("mnist")):
        raise ValueError(f"data set 'mnist' is not what it should be: {'; '.join(problems)}")
    images_path, labels_path = (_path(folder, f"{part}-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1"))
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
        # Last: the weights of a seed are the same whether it draws a p or not.
        self.activation = activation_named(
            settings.activation, settings.hidden, c=settings.c, alpha=settings.alpha, sigma=settings.sigma
        )

    def forward(self, images: Tensor) -> Tensor:
        """uint8 [batch, pixels] to logits, [batch, 10]."""
        return self.output(self.activation(self.hidden(images / 255)))


class Digits(Task[Network]):
    """One run."""

    settings: Settings

    def __init__(self, settings: Settings, seed: int, device: torch.device) -> None:
        images, labels = images_and_labels("train", settings.verified)
        count = len(images) - settings.validation
        if settings.validation < 1 or count < settings.batch or settings.batch < 1:
            raise ValueError(
                f"mnist: validation={settings.validation}, batch={settings.batch}: both must be at least 1 and "
                f"together at most the {len(images):,} training images"
            )
        images, labels = images.to(device), labels.to(device)
        self.train, self.valid = (images[:count], labels[:count]), (images[count:], labels[count:])
        model = Network(images.shape[1], settings).to(device)
        rmsprop = torch.optim.RMSprop(
            model.parameters(), settings.learning_rate, alpha=settings.decay, capturable=device.type == "cuda"
        )
        super().__init__("mnist", settings, model, rmsprop, "rmsprop")
        self.best = BestWeights(self, model, "valid_nll")
        self.batches: EpochBatches[Tensor] = EpochBatches(self._epoch, count // settings.batch, (seed + 1) * 1_000_003)

    def _epoch(self, generator: torch.Generator) -> Tensor:
        """The images that each update of an epoch sees, [updates, batch]; what would not fill a batch is left out."""
        size, count = self.settings.batch, len(self.train[1])
        order = torch.randperm(count, generator=generator)
        return order[: count // size * size].view(-1, size).to(self.device)

    def update(self, index: int) -> dict[str, float]:
        """A batch, one step of RMSProp."""
        loss = self.step(self.group.share(self.batches.at(index)))
        return {"loss": self.group.mean(loss).item()} if self.due(index + 1) else {}

    def _step(self, chosen: Tensor) -> Tensor:
        images, labels = self.train
        loss = F.cross_entropy(self.trained(images[chosen]), labels[chosen])
        self.descend(loss)
        return loss.detach()

    def evaluate(self, index: int) -> dict[str, float]:
        """NLL on training and validation images, with the expectation in place of the noise."""
        measured = self.settings.measured
        train_nll, _ = _measured(self.model, self.train[0][:measured], self.train[1][:measured])
        valid_nll, valid_error = _measured(self.model, *self.valid)
        self.best.offer(valid_nll, index)
        return {"train_nll": train_nll, "valid_nll": valid_nll, "valid_error": valid_error}

    def probe(self) -> tuple[Tensor]:
        """Some of the validation images."""
        return (self.valid[0][:128],)

    def result(self, evaluations: list[dict[str, float]]) -> dict[str, float]:
        """The lowest validation NLL, the test numbers there, the last training NLL, and how fast it fell."""
        best = min(evaluations, key=lambda line: line["valid_nll"])
        images, labels = images_and_labels("t10k", self.settings.verified)
        test_nll, test_error = _measured(self.best.model, images.to(self.device), labels.to(self.device))
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
    comparisons=(
        *compared_with("tanh", "nan", "nah", "nani", "nanil", "nanis"),
        *compared_with("hard", "leak", "nan", "nah"),
        *compared_with("leak", "nan", "nah"),
        *(
            Comparison(arm, against, "updates_to_train_nll_0.1", times=True)
            for arm in ("nan", "nah")
            for against in ("tanh", "hard", "leak")
        ),
    ),
    minutes={"smoke": 0.05, "short": 0.4, "paper": 2.0},
)
