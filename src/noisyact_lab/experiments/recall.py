"""Associative recall: a list of items, then one of them again; which item came after it?

A Neural Turing Machine (models/ntm.py) reads 2 to 16 items, each of three vectors of six random bits, then one of them
as the query, and answers with the item that followed it. The paper anneals the noise of the controller as in unique
count, and shows curves of the validation error: with annealed noise the machine solves the task, without noise it comes
nowhere near.

The paper says no more than that. From the authors' later NTM code: a feed-forward controller with normal noise and a p
for each unit, its alpha and c, the layout of the sequences, batches of 128, the loss, Adam's decays, the gradient's
norm limited to 10. From Graves et al.: 256 units, 4 heads, a memory of 128 x 20. Chosen here once for all arms: Adam
with a learning rate of 0.001, Glorot's initialisation, all sequences of a batch with the same number of items, drawn
anew for each batch, and the budget: the paper gives no number of updates, and its curves are what is compared. In first
runs of all arms the machine had solved the task in 300 to 2,500 updates, so it is 3,000 with an evaluation every 100,
for every arm; c is then still 7.5. The heads and the memory are the same in all arms; only the controller is noisy.

With Glorot's weights none of the controller's units is saturated at the start and hardly any until the task is solved,
so hardly any noise is drawn. `recall-saturated` begins with weights of the controller 32 times as large, with which 86%
of its units are saturated. The factor was chosen without any noisy arm: at the size of the preset `short`, on a CPU,
86% were saturated over the first 800 updates of the reference and of the hard controller with a factor of 24, and both
were still at 37% wrong bits; with a factor of 8 these were 54% of the units, and 2 and 3% wrong bits.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import noisyact as na
from noisyact_lab.engine.experiment import Arm, Comparison, Experiment, UnknownName, check_at_least, compared_with
from noisyact_lab.engine.task import Task
from noisyact_lab.models.ntm import NTM
from noisyact_lab.tasks.milestones import at_budget_shares, updates_to
from noisyact_lab.tasks.noise_settings import AnnealedNoise

__all__ = ["RECALL", "RECALL_SATURATED", "Recall", "SaturatedSettings", "Settings", "sequences"]

_DELIMITERS = 2
_SHOWN = 5
_MEASURED = 50
"""Sequences on which saturation is measured."""


@dataclasses.dataclass(frozen=True)
class Settings(AnnealedNoise):
    """The defaults are the preset `paper`."""

    min_items: int = 2
    max_items: int = 16
    item_length: int = 3
    """Vectors of an item."""
    bits: int = 6
    """Bits of a vector."""
    controller: str = "feedforward"
    """The only one there is; runs recorded when there were others name it."""
    hidden: int = 256
    """Units of the controller."""
    heads: int = 4
    """Heads that read, and as many that write."""
    rows: int = 128
    """Rows of the memory."""
    width: int = 20
    """Width of a row of the memory."""
    batch: int = 128
    updates: int = 3_000
    evaluate_every: int = 100
    validation: int = 200
    """Validation sequences of each number of items."""
    learning_rate: float = 1e-3
    squares_decay: float = 0.99
    """Decay of Adam's mean of squares; that of its mean is 0.9."""
    max_gradient_norm: float = 10.0
    fused: bool = True
    """On a GPU what the heads do in a step is one kernel."""
    gain: float = 1.0
    """Factor of the controller's weights at the start, beside Glorot's."""


@dataclasses.dataclass(frozen=True)
class SaturatedSettings(Settings):
    """A controller that begins saturated, and time to leave that."""

    gain: float = 32.0
    updates: int = 6_000


def sequences(count: int, items: int, item_length: int, bits: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences, [(items + 2) (item_length + 1), count, bits + 2], and their answers, [item_length, count, bits].

    Each item comes after a step with 1 in the channel `bits`; the query, any item but the last, after a step with 1 in
    the last channel, and another such step after it asks for the answer, during which the input is zero.

    >>> x, answer = sequences(1, 2, 1, 3, torch.Generator().manual_seed(0))
    >>> x[:, 0].int().tolist()  # delimiter, item, delimiter, item, delimiter, query, delimiter, silence
    [[0, 0, 0, 1, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 1, 1, 0, 0],
     [0, 0, 0, 0, 1], [0, 1, 1, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]
    >>> answer[:, 0].int().tolist()
    [[0, 1, 1]]
    """
    drawn = torch.randint(2, (items, item_length, count, bits), generator=generator).float()
    query = torch.randint(items - 1, (count,), generator=generator)
    each = torch.arange(count)
    parts = torch.zeros(items + 2, 1 + item_length, count, bits + _DELIMITERS)
    parts[:items, 0, :, bits] = 1.0
    parts[items:, 0, :, bits + 1] = 1.0
    parts[:items, 1:, :, :bits] = drawn
    parts[items, 1:, :, :bits] = drawn[query, :, each].transpose(0, 1)
    return parts.flatten(0, 1), drawn[query + 1, :, each].transpose(0, 1).contiguous()


class Recall(Task[NTM]):
    """One run."""

    spreads = False
    settings: Settings

    def __init__(self, settings: Settings, seed: int, device: torch.device) -> None:
        _check(settings)
        model = NTM(
            settings.bits + _DELIMITERS, settings.bits, hidden=settings.hidden, heads=settings.heads,
            rows=settings.rows, width=settings.width, hard=settings.hard, noise=settings.layer_arguments()["noise"],
            fused=settings.fused,
        ).to(device)  # fmt: skip
        with torch.no_grad():
            model.controller.linear.weight.mul_(settings.gain)
        adam = torch.optim.Adam(
            model.parameters(), settings.learning_rate, (0.9, settings.squares_decay), fused=True,
            capturable=device.type == "cuda",
        )  # fmt: skip
        super().__init__("recall", settings, model, adam)
        self.scheduler = settings.scheduler(model)
        self.generators["data"] = torch.Generator().manual_seed(seed + 1)
        self.valid_x, self.valid_answer = (part.to(device) for part in self._validation())

    def _validation(self) -> tuple[Tensor, Tensor]:
        """The same sequences for every arm and seed, in one batch, those with the fewest items first.

        Silence follows where a sequence is over: [steps of the longest, counts * validation, bits + 2]. The answers:
        [item_length, counts, validation, bits]. Training draws new sequences at every update.
        """
        generator = torch.Generator().manual_seed(20_160_301)
        made = [self._sequences(self.settings.validation, items, generator) for items in self._counts()]
        steps = len(made[-1][0])
        x = [torch.cat([x, x.new_zeros(steps - len(x), *x.shape[1:])]) for x, _ in made]
        return torch.cat(x, dim=1), torch.stack([answer for _, answer in made], dim=1)

    def _counts(self) -> range:
        """The numbers of items."""
        return range(self.settings.min_items, self.settings.max_items + 1)

    def _sequences(self, count: int, items: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return sequences(count, items, self.settings.item_length, self.settings.bits, generator)

    def update(self, index: int) -> dict[str, float]:
        """A batch of new sequences, one step of Adam."""
        settings, generator = self.settings, self.generators["data"]
        if self.scheduler is not None:
            self.scheduler.set_step(index)
        items = int(torch.randint(settings.min_items, settings.max_items + 1, (), generator=generator))
        batch = self._sequences(settings.batch, items, generator)
        if self.device.type == "cuda":  # from pinned memory the host does not wait for the copy
            batch = tuple(part.pin_memory().to(self.device, non_blocking=True) for part in batch)
        loss = self.step(*batch)
        if not self.due(index + 1):
            return {}
        return {"loss": loss.item(), **({} if self.scheduler is None else {"c": self.scheduler.value})}

    def _step(self, x: Tensor, answer: Tensor) -> Tensor:
        """A graph is recorded for each number of items."""
        loss = _nats(self.trained(x, len(answer)), answer)
        self.descend(loss, self.settings.max_gradient_norm)
        return loss.detach()

    def evaluate(self, index: int) -> dict[str, float]:
        """On the validation sequences, with the expectation in place of the noise: wrong bits in per cent, and more."""
        logits = self._answers()
        wrong = (logits > 0) != (self.valid_answer > 0)
        wrong_bits = dict(zip(self._counts(), (100 * wrong.double().mean(dim=(0, 2, 3))).tolist(), strict=True))
        settings = self.settings
        self.model.eval()
        units = na.saturation(self.model, *self.probe()).groups
        self.model.train()
        return {
            "valid_error": sum(wrong_bits.values()) / len(wrong_bits),
            **{f"valid_error_{n}_items": wrong_bits[n] for n in (settings.min_items, settings.max_items)},
            "valid_wrong_answers": 100 * wrong.any(dim=3).any(dim=0).double().mean().item(),
            "valid_nll": _nats(logits, self.valid_answer).item(),
            **({"saturated": 100 * units[0].saturated} if units else {}),
        }

    def probe(self) -> tuple[Tensor, int]:
        """Some of the longest validation sequences."""
        return self.valid_x[:, -self.settings.validation :][:, :_MEASURED], self.settings.item_length

    def _answers(self) -> Tensor:
        """The logits of the answers to all validation sequences, [item_length, counts, validation, bits]."""
        counts, length = torch.tensor(self._counts(), device=self.device), self.settings.item_length
        answered = (counts - counts[0]) * (length + 1)  # steps after the first answer of all
        steps = torch.arange(length, device=self.device).unsqueeze(1) + answered
        self.model.eval()
        with torch.no_grad():
            logits = self.model(self.valid_x, answer=length + (len(counts) - 1) * (length + 1))
        self.model.train()
        return logits.unflatten(1, (len(counts), -1))[steps, counts - counts[0]]

    def result(self, evaluations: list[dict[str, float]]) -> dict[str, float]:
        """The last evaluation, the error at parts of the budget, and the updates until it was first low."""
        last = evaluations[-1]
        return {
            **{name: last[name] for name in last if name.startswith(("valid", "saturated"))},
            "lowest_valid_error": min(line["valid_error"] for line in evaluations),
            **at_budget_shares(evaluations, "valid_error", self.updates),
            **{f"updates_to_{level}%": updates_to(evaluations, "valid_error", level) for level in (25, 10, 1)},
        }

    def samples(self) -> list[dict[str, Any]]:
        """Answers to the longest validation sequences."""
        answer, predicted = (part[:, -1, :_SHOWN].unbind(1) for part in (self.valid_answer, self._answers() > 0))
        rows = [[_text(right), _text(ours)] for right, ours in zip(answer, predicted, strict=True)]
        title = f"Answers after {self.settings.max_items} items"
        return [{"title": title, "columns": ["answer", "predicted"], "rows": rows}]


def _nats(logits: Tensor, answer: Tensor) -> Tensor:
    """The mean over bits and sequences, summed over the answer's steps, as the authors have it: 2.08 by chance."""
    return len(answer) * F.binary_cross_entropy_with_logits(logits, answer)


def _text(vectors: Tensor) -> str:
    return " ".join("".join(str(int(bit)) for bit in vector) for vector in vectors)


def _check(settings: Settings) -> None:
    check_at_least(1, "recall", settings, "item_length", "bits", "hidden", "heads", "width", "batch", "validation")
    if settings.controller != "feedforward":
        raise UnknownName("recall: controller", settings.controller, ["feedforward"])
    if settings.rows < 3:
        raise ValueError(f"recall: rows={settings.rows}: must be at least 3, since heads move to both sides")
    if not 2 <= settings.min_items <= settings.max_items:
        raise ValueError(
            f"recall: min_items={settings.min_items}, max_items={settings.max_items}: the first must be at least 2, "
            "the second not below it"
        )


_NOISY = {"scheme": "nan"}
_PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "max_items": 3, "hidden": 16, "heads": 1, "rows": 8, "width": 8, "batch": 8, "updates": 60,
        "evaluate_every": 20, "validation": 20,
    },
    "short": {
        "max_items": 6, "hidden": 100, "heads": 2, "rows": 32, "width": 16, "batch": 32, "updates": 3000,
        "evaluate_every": 100,
    },
}  # fmt: skip
RECALL = Experiment(
    name="recall",
    title="Recall the item after a given one: a Neural Turing Machine, annealing its controller's noise",
    reproduces="the figure of NTM validation curves on associative recall (section on annealing the noise)",
    settings=Settings,
    presets=_PRESETS,
    arms=(
        Arm("reference", "NTM", {"hard": False}),
        Arm("hard", "hard controller, no noise", {}),
        Arm("leak", "hard controller, the leak alone (c = 0)", {**_NOISY, "c": 0.0}),
        Arm("nan", "NAN", _NOISY),
        Arm("nan-annealed", "NAN, annealed", {**_NOISY, "annealed": True}),
    ),
    metric="valid_error",
    unit="% wrong bits in validation",
    effects_metric="updates_to_1%",
    agreement="The paper has curves and no numbers. Agreement: at the end of the budget NAN annealed answers with at "
    "most 1% wrong bits and the reference with more; NAN annealed is below the reference, and it is at 10% in fewer "
    "updates; each by more than the 95% intervals. What the hard function, the leak alone or noise that is not "
    "annealed do as well is not owed to the annealing.",
    start=Recall,
    comparisons=tuple(
        comparison
        for against in ("reference", "hard", "leak", "nan")
        for comparison in (
            Comparison("nan-annealed", against),
            Comparison("nan-annealed", against, "updates_to_10%", times=True),
        )
    ),
    minutes={"smoke": 0.05, "short": 2.0, "paper": 25.0},
)

_NO_LEAK = {"alpha": 1.0}
RECALL_SATURATED = Experiment(
    name="recall-saturated",
    title="Recall the item after a given one: a Neural Turing Machine whose controller begins saturated",
    reproduces="nothing in the paper: its claim about annealed noise where noise is drawn",
    settings=SaturatedSettings,
    presets={**_PRESETS, "short": {**_PRESETS["short"], "gain": 24.0}},
    arms=(
        Arm("reference", "NTM", {"hard": False}),
        Arm("hard", "hard controller, no noise", {}),
        Arm("leak", "hard controller, the leak alone (c = 0)", {**_NOISY, "c": 0.0}),
        Arm("nan", "NAN", _NOISY),
        Arm("nan-annealed", "NAN, annealed", {**_NOISY, "annealed": True}),
        Arm("nah-mean", "NAH's mean, no randomness", {"scheme": "nah", "draw": "mean"}),
        Arm("nah", "NAH", {"scheme": "nah"}),
        Arm("nah-no-leak-mean", "NAH's mean, alpha = 1", {"scheme": "nah", "draw": "mean", **_NO_LEAK}),
        Arm("nah-no-leak", "NAH, alpha = 1", {"scheme": "nah", **_NO_LEAK}),
    ),
    metric="valid_error",
    unit="% wrong bits in validation",
    agreement="Noise must be drawn in at least half of the controller's units at the end of every noisy arm: "
    "otherwise this is no test. Then the paper's claim holds if NAN annealed is at 10% wrong bits in fewer updates "
    "than the reference, the leak alone and NAN; and randomness helps if NAH is there in fewer than its mean. Each "
    "counts if its p is below 0.05 after Holm's correction over all comparisons of the table.",
    start=Recall,
    comparisons=(
        *compared_with("reference", "hard", "nan-annealed"),
        *compared_with("hard", "leak", "nah-no-leak-mean"),
        *compared_with("leak", "nan", "nan-annealed", "nah-mean"),
        *(
            Comparison(arm, against, "updates_to_10%", times=True)
            for arm, against in (
                ("nan-annealed", "reference"), ("nan-annealed", "leak"), ("nan-annealed", "nan"), ("leak", "hard"),
                ("nah", "nah-mean"), ("nah-no-leak", "nah-no-leak-mean"), ("nah-no-leak-mean", "hard"),
            )
        ),
    ),
    minutes={"smoke": 0.05, "short": 2.0, "paper": 50.0},
)  # fmt: skip
