"""From a finished run to a model with a card: its tested weights in 16 bits, scored again as they are then."""

from __future__ import annotations

import datetime
import json
import math
import shlex
from pathlib import Path
from typing import Any

import torch

from noisyact_lab.data.catalog import dataset
from noisyact_lab.engine.experiment import load_experiment
from noisyact_lab.engine.folder import records
from noisyact_lab.engine.folder.files import read_json, read_lines
from noisyact_lab.engine.job import folder_of
from noisyact_lab.pretrained import card
from noisyact_lab.pretrained.models import EXPERIMENTS
from noisyact_lab.tasks.trained_run import of_this_version, state_of_run

__all__ = ["export"]

RUNS = Path("out/runs")


def export(run: Path, folder: Path) -> Path:
    """Write the model of a finished run and its card, `EXPERIMENT.safetensors` and `EXPERIMENT.json`.

    The weights are rounded to float16 and then tested on the test set, so the scores are those of the file. This needs
    the data of the run, and computes on the CPU.

    Args:
        run: its folder, with its checkpoints.
        folder: for both files.

    Returns: the path of the card.
    """
    if not (run / "result.json").exists():
        raise ValueError(f"{run}: no finished run, which has a result.json")
    record = read_json(run / "result.json", dict)
    name = record.get("experiment")
    if name not in EXPERIMENTS:
        raise ValueError(
            f"{run}: a run of {name!r}; only models of {', '.join(EXPERIMENTS)} can be exported, whose words may be "
            "passed on"
        )
    if record.get("status") != "finished":
        raise ValueError(f"{run}: its status is {record.get('status')!r}, not 'finished'")
    config, state = state_of_run(run, name)
    experiment = load_experiment(name)
    with of_this_version(run):
        settings = experiment.settings(**config["settings"])
        task = experiment.start(settings, config["seed"], torch.device("cpu"))
        model = task.modules[task.tested]
        model.load_state_dict(state["modules"][task.tested])
        task.memory.update(state["memory"])
    _round(run, model)
    scores = task.result(read_lines(run / records.METRICS))
    ended = read_lines(run / records.TIMING)[-1]["at"]
    data = dataset(getattr(settings, "corpus", "europarl"))
    about: dict[str, Any] = {
        "experiment": name, "title": experiment.title, "arm": config["arm"], "preset": config["preset"],
        "seed": config["seed"], "updates": record["updates"], "settings": config["settings"],
        "metric": experiment.metric,
        "scores": {key: value if math.isfinite(value) else None for key, value in scores.items()},
        "signatures": task.signatures(), "data": data.title, "licence": data.licence,
        "rebuilt_by": _commands(config, experiment.effective(config["arm"], config["preset"])),
        "trained": datetime.datetime.fromtimestamp(ended, datetime.UTC).date().isoformat(),
        "commit": record["signature"]["commit"], "torch_version": record["signature"]["torch"],
    }  # fmt: skip
    return card.write(folder, about, model, task.vocabularies())


@torch.no_grad()
def _round(run: Path, model: torch.nn.Module) -> None:
    """Round the parameters of a model to float16 and back."""
    for name, parameter in model.named_parameters():
        rounded = parameter.half().to(parameter.dtype)
        if not torch.isfinite(rounded).all():
            raise ValueError(f"{run}: its weight {name} has numbers that float16 cannot hold")
        parameter.copy_(rounded)


def _commands(config: dict[str, Any], expected: Any) -> str:
    """The command that makes the file again, from the start."""
    changes = [
        word
        for name, value in config["settings"].items()
        if value != getattr(expected, name)
        for word in ("--set", f"{name}={'none' if value is None else json.dumps(value)}")
    ]
    words = [
        "noisyact", "run", config["experiment"], "--arm", config["arm"], "--preset", config["preset"], "--seed",
        str(config["seed"]), "--device", config["device"], *changes,
    ]  # fmt: skip
    there = folder_of(RUNS, config["experiment"], config["preset"], config["arm"], config["seed"])
    return f"{shlex.join(words)} && noisyact pretrained export {there.as_posix()}"
