"""Text from a trained language model: from the folder of its run, or from one of the checkpoints in it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import torch

from noisyact_lab.data.text import Corpus
from noisyact_lab.engine.experiment import Experiment, experiment_names, load_experiment
from noisyact_lab.models.language_model import LanguageModel, continuation
from noisyact_lab.tasks.text_task import TextTask
from noisyact_lab.tasks.trained_run import of_this_version, state_of_run

__all__ = ["Generated", "Speaker", "generate", "speaker_of"]


@dataclasses.dataclass(frozen=True)
class Generated:
    """A text, and what it came from: the run, the updates its model had seen, and how the text was drawn."""

    experiment: str
    arm: str
    run_seed: int
    update: int
    prompt: str
    text: str
    """What was drawn, without the prompt."""
    words: int
    temperature: float
    seed: int
    whole: str
    """The prompt and what follows it."""


@dataclasses.dataclass(frozen=True)
class Speaker:
    """A trained language model with its words, and what it came from."""

    experiment: str
    arm: str
    run_seed: int
    update: int
    model: LanguageModel
    corpus: Corpus
    """Of which only the units and the vocabulary are used."""

    def generate(self, prompt: str = "", *, words: int = 50, temperature: float = 1.0, seed: int = 0) -> Generated:
        """Continue a prompt; runs where the model is.

        Args:
            prompt: the beginning of a line; may be empty.
            words: how many to draw.
            temperature: 1 draws by the model's probabilities, less is safer, 0 always takes the likeliest.
            seed: of the draws.
        """
        if words < 1:
            raise ValueError(f"words={words}: must be at least 1")
        if not (math.isfinite(temperature) and temperature >= 0):
            raise ValueError(f"temperature={temperature}: must be finite and at least 0")
        if seed < 0:
            raise ValueError(f"seed={seed}: must be at least 0")
        generator = torch.Generator().manual_seed(seed)
        text = continuation(self.model, self.corpus, prompt, words, temperature, generator)
        space = " " if prompt and self.corpus.units.apart(text) else ""
        return Generated(
            self.experiment, self.arm, self.run_seed, self.update, prompt, text, words, temperature, seed,
            prompt.rstrip("\n") + space + text,
        )  # fmt: skip


def speaker_of(experiment: Experiment, folder: Path) -> Speaker:
    """The language model of a run, on the CPU. Needs the data of the run, for its vocabulary.

    Args:
        experiment: of the run.
        folder: of the run, for its last checkpoint, or of one of its checkpoints.
    """
    if not _reads_text(experiment):
        allowed = ", ".join(name for name in experiment_names() if _reads_text(load_experiment(name)))
        raise ValueError(f"experiment {experiment.name!r} has no model that could speak; allowed are {allowed}")
    config, state = state_of_run(folder, experiment.name)
    with of_this_version(folder):
        task = experiment.start(experiment.settings(**config["settings"]), config["seed"], torch.device("cpu"))
        assert isinstance(task, TextTask)
        task.final.load_state_dict(state["modules"][task.tested])
    return Speaker(experiment.name, config["arm"], config["seed"], state["update"], task.final, task.corpus)


def generate(
    experiment: Experiment, folder: Path, prompt: str, *, words: int = 50, temperature: float = 1.0, seed: int = 0
) -> Generated:
    """Continue a prompt with the model of a run: :func:`speaker_of` and :meth:`Speaker.generate`."""
    return speaker_of(experiment, folder).generate(prompt, words=words, temperature=temperature, seed=seed)


def _reads_text(experiment: Experiment) -> bool:
    return isinstance(experiment.start, type) and issubclass(experiment.start, TextTask)
