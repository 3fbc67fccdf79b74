"""A run that reads a text over and over, update by update: what the language experiments share of their training.

The training text is cut into as many columns as a batch has rows, all of one length. An update reads the next `steps`
rows of all columns, from the state that the update before left; at the start of an epoch the state is zero.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisyact_lab.data.text import Corpus
from noisyact_lab.engine.process_group import SINGLE_PROCESS, ProcessGroup
from noisyact_lab.loops.cuda_graph import captured
from noisyact_lab.tasks.language_model import Carried, LanguageModel, columns, continuation

__all__ = ["Reader"]

_PROMPTS = 4
_WORDS = 25
_READ = 5000
"""Symbols of the validation text among which prompts are looked for."""


class Reader:
    """A run that reads a text over and over. An experiment adds its evaluation, and its rate if that changes.

    Args:
        name: of the experiment, for errors.
        corpus: the text.
        model: already on its device.
        optimizer: of its parameters, able to step inside a CUDA graph.
        batch: columns.
        steps: rows of an update.
        epochs: how often the text is read.
        tokens: of the training text, from its start; None for all.
        max_gradient_norm: of the sum over the steps of the mean over the columns.
    """

    tested = "model"
    """The module that is tested in the end, and speaks."""

    def __init__(
        self, name: str, corpus: Corpus, model: LanguageModel, optimizer: torch.optim.Optimizer, *, batch: int,
        steps: int, epochs: int, tokens: int | None, max_gradient_norm: float,
    ) -> None:  # fmt: skip
        for setting, value in (("batch", batch), ("steps", steps), ("epochs", epochs)):
            if value < 1:
                raise ValueError(f"{name}: {setting}={value}: must be at least 1")
        used = len(corpus.train) if tokens is None else tokens
        if not batch * (steps + 1) <= used <= len(corpus.train):
            raise ValueError(
                f"{name}: tokens={used}: must be at least batch * (steps + 1) = {batch * (steps + 1):,} and at most "
                f"{len(corpus.train):,}, the whole training text"
            )
        device = next(model.parameters()).device
        self.name, self.corpus, self.model, self.optimizer, self.device = name, corpus, model, optimizer, device
        self.steps, self.max_gradient_norm = steps, max_gradient_norm
        self.train = columns(corpus.train[:used], batch).to(device)
        self.epoch = (len(self.train) - 1) // steps
        """Updates of an epoch."""
        self.updates = self.evaluate_every = epochs * self.epoch
        self.carried = Carried(model.recurrent, batch).to(device)
        self.modules: dict[str, nn.Module] = {"model": model, "carried": self.carried}
        self.optimizers: dict[str, torch.optim.Optimizer] = {"optimizer": optimizer}
        self.generators: dict[str, torch.Generator] = {}
        self.memory: dict[str, Any] = {}
        self._nll, self._since = torch.zeros((), dtype=torch.float64, device=device), 0
        self.group, self.trained = SINGLE_PROCESS, model
        self._captured = captured(self._step, (self.train,))

    def spread(self, group: ProcessGroup) -> None:
        """Share out the columns: each process reads its own, and carries their state."""
        group.check_even(self.name, self.train.shape[1])
        self.group, self.trained, self._captured = group, group.averaged(self.model), self._step
        self.train = group.share(self.train, dim=1)
        self.carried.spread(group)

    def update(self, index: int) -> dict[str, float]:
        """The next rows, one step of the optimiser."""
        place = index % self.epoch * self.steps
        window = self.train[place : place + self.steps + 1]
        if place == 0:
            self.carried.get_buffer("parts").zero_()
        self._captured(window)
        self._since += 1
        if index + 1 == self.updates or (index + 1) % self.evaluate_every == 0:
            self.carried.gather()  # a checkpoint follows
        return {}

    def _step(self, window: Tensor) -> None:
        """All that an update does, in operations on static tensors alone."""
        logits, state = self.trained(window[:-1], self.carried.state())
        nll = F.cross_entropy(logits.flatten(0, 1), window[1:].flatten())
        self.optimizer.zero_grad()
        self.group.backward(self.steps * nll)  # Zaremba et al. sum over the steps, which matters to the clipping
        nn.utils.clip_grad_norm_(self.model.parameters(), self.max_gradient_norm)
        self.optimizer.step()
        self.carried.keep(state)
        self._nll += nll.detach()

    def train_nll(self) -> float:
        """The mean loss of the updates since the last call, in nats, with the noise and while the weights changed."""
        mean = self.group.mean(self._nll).item() / self._since
        self._nll.zero_()
        self._since = 0
        return mean

    @property
    def final(self) -> LanguageModel:
        """The model that is tested and speaks."""
        model = self.modules[self.tested]
        assert isinstance(model, LanguageModel)
        return model

    def samples(self) -> list[dict[str, Any]]:
        """How the model goes on after the first words of lines of the validation text, twice each."""
        units, symbols = self.corpus.units, self.corpus.vocabulary.symbols
        text = [line for line in units.text(symbols[n] for n in self.corpus.valid[:_READ].tolist()).split("\n") if line]
        prompts = [" ".join(line.split()[:4]) for line in text[:: max(1, len(text) // _PROMPTS)][:_PROMPTS]]
        generator = torch.Generator().manual_seed(0)
        rows = [
            [prompt, str(temperature), continuation(self.final, self.corpus, prompt, _WORDS, temperature, generator)]
            for prompt in prompts
            for temperature in (0.7, 1.0)
        ]
        return [{"title": "text drawn from the model", "columns": ["prompt", "temperature", "goes on"], "rows": rows}]
