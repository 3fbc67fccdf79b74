"""Text from a trained language model: from the folder of its run, or from one of the checkpoints in it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import torch

from noisyact_lab.engine.experiment import Experiment, experiment_names, load_experiment
from noisyact_lab.engine.folder import checkpoint
from noisyact_lab.engine.folder.files import read_json
from noisyact_lab.tasks.language_model import continuation
from noisyact_lab.tasks.text_training import Reader

__all__ = ["Generated", "generate", "state_of_run"]


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


def generate(
    experiment: Experiment, folder: Path, prompt: str, *, words: int = 50, temperature: float = 1.0, seed: int = 0
) -> Generated:
    """Let a trained model go on after a prompt. Needs the data of the run, for its vocabulary; runs on the CPU.

    Args:
        experiment: of the run.
        folder: of the run, for its last checkpoint, or of one of its checkpoints.
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
    config, task, update = _trained(experiment, folder)
    generator = torch.Generator().manual_seed(seed)
    text = continuation(task.final, task.corpus, prompt, words, temperature, generator)
    space = " " if prompt and task.corpus.units.space is None and not text.startswith("\n") else ""
    return Generated(
        experiment.name, config["arm"], config["seed"], update, prompt, text, words, temperature, seed,
        prompt.rstrip("\n") + space + text,
    )  # fmt: skip


def state_of_run(folder: Path, experiment: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a run, and the state that its last whole checkpoint has, or that the one named has."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    named = (folder / "state.json").exists()
    run = folder.absolute().parent.parent if named else folder
    if not (run / "config.json").exists():
        raise ValueError(f"{folder}: neither the folder of a run, with config.json, nor a checkpoint in one")
    config = read_json(run / "config.json", dict)
    if config.get("experiment") != experiment:
        raise ValueError(f"{folder}: a run of {config.get('experiment')!r}, not of {experiment!r}")
    paths = [folder] if named else checkpoint.paths(folder / "checkpoints")
    for _, state in checkpoint.whole(paths):
        return config, state
    raise ValueError(f"{folder}: no checkpoint there {'can be used' if paths else 'yet'}")


def _trained(experiment: Experiment, folder: Path) -> tuple[dict[str, Any], Reader, int]:
    """The settings of a run, its task with the weights of a checkpoint, and the updates they had seen."""
    if not _reads(experiment):
        allowed = ", ".join(name for name in experiment_names() if _reads(load_experiment(name)))
        raise ValueError(f"experiment {experiment.name!r} has no model that could speak; allowed are {allowed}")
    config, state = state_of_run(folder, experiment.name)
    try:
        task = experiment.start(experiment.settings(**config["settings"]), config["seed"], torch.device("cpu"))
        assert isinstance(task, Reader)
        task.final.load_state_dict(state["modules"][task.tested])
    except (KeyError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
        what = " ".join(str(error).split())[:200]  # torch has a line for every tensor
        raise ValueError(f"{folder}: its settings or weights are not those of this version: {what}") from None
    return config, task, state["update"]


def _reads(experiment: Experiment) -> bool:
    return isinstance(experiment.start, type) and issubclass(experiment.start, Reader)
