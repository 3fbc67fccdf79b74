"""Tasks that read a text over and over: what the language experiments share of their training.

The training text is cut into as many columns as a batch has rows, all of one length. An update reads the next `steps`
rows of all columns, from the state that the update before left; at the start of an epoch the state is zero.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisyact.recurrent.layers import NoisyRecurrent
from noisyact_lab.data.text import Corpus
from noisyact_lab.engine.experiment import check_at_least
from noisyact_lab.engine.task import SINGLE_PROCESS, ProcessGroup, Task
from noisyact_lab.models.language_model import LanguageModel, continuation

__all__ = ["CarriedState", "TextTask", "columns"]

_PROBED = 8
"""Columns on which the noise is measured."""
_PROMPTS = 4
_WORDS = 25
_READ = 5000
"""Symbols of the validation text among which prompts are looked for."""


def columns(text: Tensor, count: int) -> Tensor:
    """A sequence as columns of one length, [length // count, count], that begin at equal distances.

    >>> columns(torch.arange(11), 3)
    tensor([[0, 4, 7],
            [1, 5, 8],
            [2, 6, 9]])
    """
    starts = (2 * torch.arange(count) * len(text) + count) // (2 * count)
    return text[starts + torch.arange(len(text) // count)[:, None]]


class CarriedState(nn.Module):
    """The state of recurrent layers from one update to the next; a module, so that a checkpoint has it.

    In a group each process has the whole state, but writes only that of its own columns until all is gathered.
    """

    def __init__(self, recurrent: NoisyRecurrent, batch: int) -> None:
        super().__init__()
        parts = 2 if recurrent.kind == "lstm" else 1
        self.register_buffer("parts", torch.zeros(parts, recurrent.num_layers, batch, recurrent.hidden_size))
        self._group = SINGLE_PROCESS

    def spread(self, group: ProcessGroup) -> None:
        """From now on carry the state of this process's columns."""
        self._group = group

    def reset(self) -> None:
        """Set the state to zero."""
        self.get_buffer("parts").zero_()

    def gather(self) -> None:
        """Put the columns of the whole group into their places, as a checkpoint must have them."""
        self.get_buffer("parts").copy_(self._group.all_gather(self._mine(), dim=2))

    def _mine(self) -> Tensor:
        return self._group.share(self.get_buffer("parts"), dim=2)  # a view: what is written there is in its place

    def state(self) -> Any:
        """The state as the layers take it: (h, c), or h."""
        parts = self._mine().unbind()
        return parts if len(parts) == 2 else parts[0]

    def keep(self, state: Any) -> None:
        """Carry this state from now on, without its gradient."""
        parts = state if isinstance(state, tuple) else (state,)
        for mine, new in zip(self._mine(), parts, strict=True):
            mine.copy_(new.detach())


class TextTask(Task[LanguageModel]):
    """A run that reads a text over and over. An experiment adds its evaluation, and its rate if that changes.

    Args:
        name: of the experiment, for errors.
        settings: of the run; has `batch`, the columns; `steps`, the rows of an update; `epochs`; `tokens`, how many of
            the training text are read, None for all; and `max_gradient_norm`, for the gradient of the loss summed over
            the steps.
        corpus: the text.
        model: already on its device.
        optimizer: of its parameters, able to step inside a CUDA graph.
        evaluate_every: the number of updates from one evaluation to the next; None for an epoch.
    """

    def __init__(
        self, name: str, settings: Any, corpus: Corpus, model: LanguageModel, optimizer: torch.optim.Optimizer,
        evaluate_every: int | None = None,
    ) -> None:  # fmt: skip
        check_at_least(1, name, settings, "batch", "steps", "epochs")
        batch, steps = settings.batch, settings.steps
        used = len(corpus.train) if settings.tokens is None else settings.tokens
        if not batch * (steps + 1) <= used <= len(corpus.train):
            raise ValueError(
                f"{name}: tokens={used}: must be at least batch * (steps + 1) = {batch * (steps + 1):,} and at most "
                f"{len(corpus.train):,}, the whole training text"
            )
        train = columns(corpus.train[:used], batch)
        self.epoch = (len(train) - 1) // steps
        """The number of updates of an epoch."""
        super().__init__(
            name, settings, model, optimizer, "optimizer", updates=settings.epochs * self.epoch,
            evaluate_every=self.epoch if evaluate_every is None else evaluate_every,
        )  # fmt: skip
        self.corpus, self.steps = corpus, steps
        self.train = train.to(self.device)
        self.carried = CarriedState(model.recurrent, batch).to(self.device)
        self.modules["carried"] = self.carried

    def spread(self, group: ProcessGroup) -> None:
        """Share out the columns: each process reads its own, and carries their state."""
        super().spread(group)
        self.train = group.share(self.train, dim=1)
        self.carried.spread(group)

    def update(self, index: int) -> dict[str, float]:
        """Read the next rows and step the optimiser."""
        place = index % self.epoch * self.steps
        if place == 0:
            self.carried.reset()
        self.step(self.train[place : place + self.steps + 1])
        if self.due(index + 1):
            self.carried.gather()  # a checkpoint follows
        return {}

    def _step(self, window: Tensor) -> None:
        logits, state = self.trained(window[:-1], self.carried.state())
        nll = F.cross_entropy(logits.flatten(0, 1), window[1:].flatten())
        # Zaremba et al. sum over the steps, which matters to the clipping.
        self.descend(self.steps * nll, self.settings.max_gradient_norm)
        self.carried.keep(state)
        self.add_loss(nll)

    def probe(self) -> tuple[Tensor]:
        """The first steps of some columns of the training text, from a state of zeros."""
        return (self.train[: self.steps, :_PROBED],)

    @property
    def final(self) -> LanguageModel:
        """The model that is tested, and from which text is drawn."""
        model = self.modules[self.tested]
        assert isinstance(model, LanguageModel)
        return model

    def vocabularies(self) -> dict[str, tuple[str, ...]]:
        """The symbols of the text."""
        return {"symbols": self.corpus.vocabulary.symbols}

    def samples(self) -> list[dict[str, Any]]:
        """Continuations of the first words of lines of the validation text, two of each."""
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
