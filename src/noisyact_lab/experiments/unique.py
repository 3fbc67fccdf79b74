"""Unique count: how many different integers are in a sequence of 26?

An LSTM reads integers 0 to 10, its outputs are averaged over time, and a one-hidden-layer ReLU network names the count.
The paper anneals the noise of the LSTM's gates here: large at first (c = 30), which smooths the objective, then less
and less. It gives one number an arm; a long enough run solves the task in most arms, so this file also records when.

What the paper leaves open (widths, optimiser, learning rate, batch, the curriculum) is chosen here once for all arms.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import noisyact as na
from noisyact_lab.engine.experiment import Arm, Comparison, Experiment, compared_with
from noisyact_lab.engine.task import Task
from noisyact_lab.models.embedding import Embedding
from noisyact_lab.tasks.batches import RandomBatches
from noisyact_lab.tasks.milestones import at_budget_shares, updates_to
from noisyact_lab.tasks.noise_settings import AnnealedNoise

__all__ = ["UNIQUE", "Counter", "Settings", "Unique", "different", "sequences"]


@dataclasses.dataclass(frozen=True)
class Settings(AnnealedNoise):
    """The defaults are the preset `paper`."""

    length: int = 26
    values: int = 11
    embedding: int = 32
    hidden: int = 64
    mlp: int = 64
    batch: int = 128
    updates: int = 30_000
    evaluate_every: int = 500
    test_sequences: int = 10_000
    learning_rate: float = 2e-3
    max_gradient_norm: float = 1.0
    curriculum: bool = False
    """Sequences grow from 3 integers to the full length."""
    curriculum_updates: int = 1000
    """The number of updates over which sequences grow: half of those that the reference needs to be as far as the
    paper's."""


def sequences(count: int, length: int, values: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences, [length, count], of integers below `values`, and how many different ones each has.

    >>> x, unique = sequences(2, 3, 11, torch.Generator().manual_seed(0))
    >>> x.T.tolist(), unique.tolist()
    ([[10, 1, 8], [7, 3, 3]], [3, 2])
    """
    x = torch.randint(values, (length, count), generator=generator)
    return x, different(x, values)


def different(x: Tensor, values: int) -> Tensor:
    """How many different integers each sequence has: [length, count] to [count].

    >>> different(torch.tensor([[10, 7], [1, 3], [8, 3]]), 11)
    tensor([3, 2])
    """
    return (x.unsqueeze(-1) == torch.arange(values, device=x.device)).any(dim=0).sum(dim=1)


class Counter(nn.Module):
    """Embedding, LSTM, mean over time, ReLU network."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.embedding = Embedding(settings.values, settings.embedding)
        self.lstm = na.NoisyLSTM(settings.embedding, settings.hidden, **settings.layer_arguments())
        self.head = nn.Sequential(
            nn.Linear(settings.hidden, settings.mlp), nn.ReLU(), nn.Linear(settings.mlp, settings.values + 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[length, batch] to the logits of the count, [batch, values + 1]."""
        return self.head(self.lstm(self.embedding(x))[0].mean(dim=0))


class Unique(Task[Counter]):
    """One run."""

    settings: Settings

    def __init__(self, settings: Settings, seed: int, device: torch.device) -> None:
        model, on_gpu = Counter(settings).to(device), device.type == "cuda"
        adam = torch.optim.Adam(
            model.parameters(), settings.learning_rate, capturable=on_gpu, fused=True if on_gpu else None
        )
        super().__init__("unique", settings, model, adam)
        self.scheduler = settings.scheduler(model)
        self.generators["data"] = torch.Generator().manual_seed(seed + 1)
        # The same test sequences for every arm and seed; training draws new ones at every update.
        test = torch.Generator().manual_seed(20_160_301)
        x, unique = sequences(settings.test_sequences, settings.length, settings.values, test)
        self.test_x, self.test_unique = x.to(device), unique.to(device)
        self.batches = RandomBatches(self._draw, self.updates, self.evaluate_every, device)

    def update(self, index: int) -> dict[str, float]:
        """A batch of new sequences, one step of Adam."""
        scheduler = self.scheduler
        if scheduler is not None and scheduler.schedule(index) != scheduler.value:  # else nothing is launched
            scheduler.set_step(index)
        loss = self.step(self.group.share(self.batches.at(index), dim=1))
        if not self.due(index + 1):
            return {}
        return {"loss": self.group.mean(loss).item(), "c": self.settings.c if scheduler is None else scheduler.value}

    def _step(self, x: Tensor) -> Tensor:
        loss = F.cross_entropy(self.trained(x), different(x, self.settings.values))
        self.descend(loss, self.settings.max_gradient_norm)
        return loss.detach()

    def _draw(self, first: int, last: int) -> Tensor:
        """Sequences for several updates, [updates, length, batch], as far as their length is the same."""
        settings, length = self.settings, self._length(first)
        last = next((index for index in range(first, last) if self._length(index) != length), last)
        shape = (last - first, length, settings.batch)
        return torch.randint(settings.values, shape, generator=self.generators["data"])

    def _length(self, index: int) -> int:
        full = self.settings.length
        if not self.settings.curriculum:
            return full
        return min(full, 3 + (full - 3) * index // max(1, self.settings.curriculum_updates))

    def evaluate(self, index: int) -> dict[str, float]:
        """The test error in per cent, with the expectation in place of the noise."""
        self.model.eval()
        with torch.no_grad():
            wrong = [
                (self.model(x).argmax(dim=1) != unique).sum()
                for x, unique in zip(self.test_x.split(2000, dim=1), self.test_unique.split(2000), strict=True)
            ]
        self.model.train()
        return {"test_error": 100 * int(sum(wrong)) / len(self.test_unique)}

    def probe(self) -> tuple[Tensor]:
        """Some of the test sequences."""
        return (self.test_x[:, :64],)

    def result(self, evaluations: list[dict[str, float]]) -> dict[str, float]:
        """The error at the end and at parts of the budget, and the updates until it was first at most 1%."""
        return {
            "test_error": evaluations[-1]["test_error"],
            **at_budget_shares(evaluations, "test_error", self.updates),
            "updates_to_1%": updates_to(evaluations, "test_error", 1.0),
        }


_NOISY = {"scheme": "nan"}
_SMOKE = {
    "updates": 60, "evaluate_every": 20, "test_sequences": 500, "hidden": 16, "batch": 16, "curriculum_updates": 30,
}  # fmt: skip
UNIQUE = Experiment(
    name="unique",
    title="Count the different integers of a sequence: annealing the noise",
    reproduces="the table of unique-count test errors (section on annealing the noise)",
    settings=Settings,
    presets={
        "smoke": _SMOKE,
        "short": {"updates": 2000, "evaluate_every": 200, "test_sequences": 2000},
    },
    arms=(
        Arm("reference", "LSTM", {"hard": False}, paper=33.28),
        Arm("hard", "hard LSTM, no noise", {}),
        Arm("leak", "hard LSTM, the leak alone (c = 0)", {**_NOISY, "c": 0.0}),
        Arm("nan", "NAN", _NOISY, paper=31.12),
        Arm("curriculum", "LSTM, curriculum", {"hard": False, "curriculum": True}, paper=14.83),
        Arm("nan-annealed", "NAN, annealed", {**_NOISY, "annealed": True}, paper=9.53),
        Arm("nanil-annealed", "NANIL, annealed", {"scheme": "nanil", "annealed": True}, paper=20.94),
        Arm("nah-annealed", "NAH, annealed", {"scheme": "nah", "annealed": True}),
        Arm("nan-annealed-curriculum", "NAN, annealed, curriculum", {**_NOISY, "annealed": True, "curriculum": True}),
    ),
    metric="test_error",
    unit="% test error",
    effects_metric="updates_to_1%",
    agreement="The paper's order of arms at the budget where the reference still fails: NAN annealed below curriculum, "
    "NANIL annealed, NAN and the reference; each by more than the 95% intervals.",
    start=Unique,
    matched="reference",
    comparisons=(
        *compared_with("reference", "hard", "leak", "nan", "curriculum", "nan-annealed"),
        *compared_with("hard", "leak", "nan", "nan-annealed"),
        *compared_with("leak", "nan", "nan-annealed"),
        *(Comparison("nan-annealed", against) for against in ("nan", "curriculum", "nanil-annealed")),
        *(
            Comparison("nan-annealed", against, "updates_to_1%", times=True)
            for against in ("reference", "hard", "leak")
        ),
    ),
    minutes={"smoke": 0.05, "short": 0.5, "paper": 6.0},
)
