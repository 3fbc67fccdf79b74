"""Learning to Execute: an LSTM reads a program, symbol by symbol, and says what it prints.

The paper swaps the functions of the LSTM of Zaremba and Sutskever (2014) and reports one run an arm under the combined
curriculum: 46.45% of the printed symbols right with the reference, 48.09% with NAH. Settings, programs and schedule are
those of the published code of November 2014, the last version before the paper that trains as it is:

- The loss is summed over 50 steps and divided by the 100 columns, its gradient clipped to a norm of 5 in every arm (the
  paper's "from 10" is not in that code), the state carried over windows and programs.
- A round is 100 updates. After it, if more than 95% of the validation symbols are right, or fewer of the round's
  training symbols than 5 rounds before, programs get harder: numbers get another digit or, when they have all, programs
  another operation and numbers one digit again. At the target the learning rate falls by a fifth instead, and below
  0.001 training ends. After a change the rounds are counted from the one that led to it: 5 rounds later the accuracy on
  harder programs is held against that on easier ones, and the curriculum rarely waits longer.
- Two rounds read the same programs, then there are new ones. Every round begins at the top, with a state of zero.

Here, unlike there, the first round is as long as the others, a program at the end of a column is cut rather than left
out, and CRC-32 says which programs are for training, validation and test, a third each.

Right is a symbol that is the likeliest one, given all before it. Test programs have the target's difficulty and choose
nothing. alpha and c are those of the authors' code, with a p for each unit and nonlinearity.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import noisyact as na
from noisyact.ops import triton
from noisyact_lab.engine.experiment import Arm, Experiment, UnknownName, check_at_least
from noisyact_lab.engine.task import ProcessGroup, Task
from noisyact_lab.experiments.execute.programs import CURRICULA, IGNORED, SYMBOLS, Columns, Difficulty, programs
from noisyact_lab.experiments.execute.scores import Score, predictions, sample, score
from noisyact_lab.models.language_model import LanguageModel
from noisyact_lab.tasks.milestones import at_budget_shares
from noisyact_lab.tasks.noise_settings import NoiseSettings
from noisyact_lab.tasks.text_task import CarriedState

__all__ = ["EXECUTE", "Execute", "Settings"]

_SHOWN = 30
"""Programs among the samples."""
_PROBED = 8
"""Columns on which the noise is measured."""


@dataclasses.dataclass(frozen=True)
class Settings(NoiseSettings):
    """The defaults are the preset `paper`."""

    length: int = 6
    """Digits of the target's numbers."""
    nesting: int = 3
    """Operations of the target's programs."""
    curriculum: str = "combined"
    """baseline, naive, mix or combined."""
    hidden: int = 400
    layers: int = 2
    bound: float = 0.08
    """Weights, biases and embeddings begin uniform in [-bound, bound]; p, as in every experiment, in [-1, 1]."""
    batch: int = 100
    """Columns."""
    steps: int = 50
    round: int = 100
    """Updates after which the schedule looks."""
    rounds_of_set: int = 2
    """Rounds that read the same programs."""
    updates: int = 100_000
    """The most updates; the schedule may end a run before."""
    evaluate_every: int = 1000
    learning_rate: float = 0.5
    decay: float = 0.8
    lowest_rate: float = 1e-3
    enough: float = 95.0
    """Per cent of validation symbols right that make programs harder."""
    patience: int = 5
    """Rounds in which the training accuracy must have grown."""
    max_gradient_norm: float = 5.0
    valid_rows: int = 501
    curve_rows: int = 501
    """Rows of the test columns that are read at every evaluation, as in the published code."""
    test_rows: int = 10_001
    """Rows of the test columns that are read at the end: more, for a smaller standard error."""


class Execute(Task[LanguageModel]):
    """One run."""

    end_key = "updates"
    settings: Settings

    def __init__(self, settings: Settings, seed: int, device: torch.device) -> None:
        _check(settings)
        self.target = Difficulty(settings.length, settings.nesting).checked("execute: target")
        lstm = na.NoisyLSTM(
            settings.hidden, settings.hidden, settings.layers, **settings.layer_arguments(),
            # Also for the soft functions: the arms differ in their functions, not in their kernels.
            backend="auto" if triton.obstacle(device) else "triton",
        )  # fmt: skip
        model = LanguageModel(len(SYMBOLS), lstm, settings.bound, seed).to(device)
        self.rate = torch.tensor(settings.learning_rate, device=device)  # read anew by a CUDA graph at every update
        sgd = torch.optim.SGD(model.parameters(), self.rate, fused=device.type == "cuda")
        super().__init__("execute", settings, model, sgd)
        self.seed, self.carried = seed, CarriedState(lstm, settings.batch).to(device)
        # SGD keeps nothing; the rate is in the memory, and the carried state is zero where a checkpoint is made.
        self.optimizers.clear()
        self.memory |= {
            "length": 1, "nesting": 1, "rate": settings.learning_rate, "accuracies": [], "changes": 0, "set": 0,
            "rounds": 0,
        }  # fmt: skip
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)  # of the round: loss, symbols right, symbols
        self.ahead = device.type == "cuda"
        """Write the next programs while a GPU is at the last ones; a CPU would only do it earlier."""
        # Programs, each with what they follow from: those being read, those written last, those for validation.
        self._read: Any = None
        self._written: tuple[Any, Any] = (None, None)
        self._valid: tuple[Any, Any] = (None, None)
        # The same test programs for every arm and seed.
        drawn = programs("test", "0", "baseline", self.target, self.target)
        self.test_x, self.test_y = Columns(drawn, settings.test_rows, settings.batch).packed()

    def spread(self, group: ProcessGroup) -> None:
        """Share out the columns. Their state is not gathered: it is zero where a checkpoint is made."""
        super().spread(group)
        self.carried.spread(group)

    @property
    def current(self) -> Difficulty:
        """The difficulty reached."""
        return Difficulty(self.memory["length"], self.memory["nesting"])

    def update(self, index: int) -> dict[str, float]:
        """A window of all columns, one step of SGD; at the end of a round, the schedule."""
        place = index % self.settings.round
        if place == 0:
            self._begin_round()
        rows = slice(place * self.settings.steps, (place + 1) * self.settings.steps)
        self.step(self.group.share(self.x[rows], dim=1), self.group.share(self.y[rows], dim=1))
        if self.ahead:
            self._write_ahead(place)
        return self._end_round(index + 1) if place + 1 == self.settings.round else {}

    def _step(self, x: Tensor, y: Tensor) -> None:
        logits, state = self.trained(x.long(), self.carried.state())
        asked, logits = y.flatten().long(), logits.flatten(0, 1)
        loss = F.cross_entropy(logits, asked, ignore_index=IGNORED, reduction="sum")
        self.descend(loss / x.shape[1], self.settings.max_gradient_norm)
        self.carried.keep(state)
        right = (logits.detach().argmax(dim=1) == asked).sum()
        self._sums += torch.stack([loss.detach(), right, (asked != IGNORED).sum()])

    def _begin_round(self) -> None:
        key = (self.memory["set"], self.current)
        if self._read != key:
            self._read = key
            self.x, self.y = (part.to(self.device) for part in self._training_set(self.memory["set"]).packed())
        self.rate.fill_(self.memory["rate"])
        self.carried.reset()
        self._sums.zero_()

    def _training_set(self, number: int) -> Columns:
        """Programs of the difficulty reached; they follow from seed and number, so a resumed run sees the same."""
        key, settings = (number, self.current), self.settings
        if self._written[0] != key:
            drawn = programs("train", f"{self.seed} {number}", settings.curriculum, self.current, self.target)
            self._written = key, Columns(drawn, settings.round * settings.steps + 1, settings.batch)
        return self._written[1]

    def _valid_set(self) -> tuple[Tensor, Tensor]:
        key = self.memory["changes"]
        if self._valid[0] != key:
            drawn = programs("valid", f"{self.seed} {key}", "naive", self.current, self.target)
            self._valid = key, Columns(drawn, self.settings.valid_rows, self.settings.batch).packed()
        return self._valid[1]

    def _write_ahead(self, place: int) -> None:
        """Write some of the next set, the whole by the time this one has been read."""
        rounds, updates = self.memory["rounds"], self.settings.round
        due = self.settings.batch * (rounds * updates + place + 1) // (self.settings.rounds_of_set * updates)
        self._training_set(self.memory["set"] + 1).write(due)

    def _end_round(self, count: int) -> dict[str, float]:
        memory = self.memory
        memory["rounds"] += 1
        if memory["rounds"] == self.settings.rounds_of_set:
            memory["set"], memory["rounds"] = memory["set"] + 1, 0
        loss, right, symbols = self.group.all_gather(self._sums[None]).sum(dim=0).tolist()
        # The schedule goes by it, so all must have the same number, to the bit.
        valid = self.group.on_first(lambda: self._scored(*self._valid_set()).accuracy)
        train = 100 * right / max(1, symbols)
        line = {
            "loss": loss / max(1, symbols), "train_accuracy": train, "valid_accuracy": valid,
            "length": memory["length"], "nesting": memory["nesting"], "learning_rate": memory["rate"],
        }  # fmt: skip
        self._schedule(train, valid, count)
        return line

    def _schedule(self, train: float, valid: float, count: int) -> None:
        """After a round: harder programs, a lower rate or the end, if it is time."""
        memory, settings = self.memory, self.settings
        before: list[float] = memory["accuracies"]
        stuck = len(before) >= settings.patience and before[-settings.patience] > train
        if stuck or valid > settings.enough:
            if memory["length"] < self.target.length:
                memory["length"] += 1
            elif memory["nesting"] < self.target.nesting:
                memory["length"], memory["nesting"] = 1, memory["nesting"] + 1
            else:
                memory["rate"] *= settings.decay
                if memory["rate"] < settings.lowest_rate:
                    self.end(count)
            memory["changes"] += 1
            if memory["rounds"]:
                memory["set"], memory["rounds"] = memory["set"] + 1, 0
            before = []
        memory["accuracies"] = [*before, train][-settings.patience :]

    def _scored(self, x: Tensor, y: Tensor) -> Score:
        return score(x, y, predictions(self.model, x.to(self.device), self.settings.steps))

    def evaluate(self, index: int) -> dict[str, float]:
        """The test accuracy on the first rows, with the expectation in place of the noise."""
        rows = self.settings.curve_rows
        return {"test_accuracy": self._scored(self.test_x[:rows], self.test_y[: rows - 1]).accuracy}

    def probe(self) -> tuple[Tensor]:
        """The first steps of some of the test columns."""
        return (self.test_x[: self.settings.steps, :_PROBED].long().to(self.device),)

    def result(self, evaluations: list[dict[str, float]]) -> dict[str, float]:
        """The accuracy of the last weights on all test rows, and that on the first rows at parts of the budget."""
        last, test = evaluations[-1], self._scored(self.test_x, self.test_y)
        return {
            "test_accuracy": test.accuracy, "standard_error": test.standard_error, "programs_right": test.whole,
            "valid_accuracy": last["valid_accuracy"], "train_accuracy": last["train_accuracy"],
            **at_budget_shares(evaluations, "test_accuracy", self.settings.updates),
            "updates": last["update"], "learning_rate": self.memory["rate"],
        }  # fmt: skip

    def samples(self) -> list[dict[str, Any]]:
        """Test programs, what they print, and what is predicted of it symbol by symbol."""
        x = self.test_x[:, :1]
        predicted = predictions(self.model, x.to(self.device), self.settings.steps)
        return [sample("Test programs", x[:, 0], predicted[:, 0].cpu(), _SHOWN)]


def _check(settings: Settings) -> None:
    check_at_least(1, "execute", settings, "batch", "steps", "round", "rounds_of_set", "patience")
    check_at_least(2, "execute", settings, "valid_rows", "curve_rows", "test_rows")
    for name in ("updates", "evaluate_every"):
        if getattr(settings, name) % settings.round:
            raise ValueError(
                f"execute: {name}={getattr(settings, name)}: must be a multiple of round, {settings.round}"
            )
    if settings.curve_rows > settings.test_rows:
        raise ValueError(f"execute: curve_rows={settings.curve_rows}: must be at most test_rows, {settings.test_rows}")
    if not 0 < settings.decay < 1:
        raise ValueError(f"execute: decay={settings.decay}: must be between 0 and 1")
    if settings.curriculum not in CURRICULA:
        raise UnknownName("execute: curriculum", settings.curriculum, CURRICULA)


_SMOKE = {
    "length": 2, "nesting": 1, "hidden": 16, "batch": 10, "steps": 20, "round": 10, "updates": 60, "evaluate_every": 20,
    "valid_rows": 101, "curve_rows": 101, "test_rows": 201,
}  # fmt: skip
_SHORT = {
    "length": 3, "nesting": 2, "hidden": 96, "batch": 50, "round": 40, "decay": 0.5, "updates": 8000,
    "evaluate_every": 200, "test_rows": 2001,
}  # fmt: skip
EXECUTE = Experiment(
    name="execute",
    title="Say what a program prints: an LSTM with a curriculum",
    reproduces="the table of Learning to Execute accuracies, and its figure of training curves",
    settings=Settings,
    presets={"smoke": _SMOKE, "short": _SHORT},
    arms=(
        Arm("reference", "LSTM", {"hard": False}, paper=46.45),
        Arm("hard", "hard LSTM, no noise", {}),
        Arm("leak", "hard LSTM, the leak alone (c = 0)", {"scheme": "nan", "c": 0.0, "gate_c": 0.0}),
        Arm("nan", "NAN", {"scheme": "nan"}),
        Arm("nah", "NAH", {"scheme": "nah"}, paper=48.09),
        Arm("reference-baseline", "LSTM, target difficulty alone", {"hard": False, "curriculum": "baseline"}),
        Arm("reference-naive", "LSTM, naive curriculum", {"hard": False, "curriculum": "naive"}),
        Arm("reference-mix", "LSTM, all difficulties mixed", {"hard": False, "curriculum": "mix"}),
    ),
    metric="test_accuracy",
    unit="% of printed symbols right, test",
    higher_is_better=True,
    agreement="The reference's 46.45% within 2 points (its test set gives a standard error of 0.6), and NAH above the "
    "reference by more than the 95% intervals. What of the gain the leak alone has too is the leak's. The paper has "
    "one run of each arm, 1.64 points apart: less than two standard errors of a difference.",
    start=Execute,
    minutes={"smoke": 0.05, "short": 3.0, "paper": 400.0},
)
