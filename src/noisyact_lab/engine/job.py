"""One run: what is trained, from which settings and seed, on which device, and in which folder."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from noisyact_lab.engine.experiment import Experiment, UnknownName, load_experiment
from noisyact_lab.engine.logging import loggers

__all__ = ["DEVICES", "Job", "folder_of", "resolve"]

DEVICES = ("auto", "cpu", "cuda")


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of one arm. What follows from the fields is computed once, when it is first used.

    Args:
        experiment: its name; see :func:`noisyact_lab.engine.experiment.experiment_names`.
        arm: its name.
        preset: "smoke", "short" or "paper".
        seed: of the weights, the batches and the noise.
        out: the folder of all runs; this run has a folder below it.
        device: "auto", "cpu" or "cuda".
        changes: settings that replace those of the preset and the arm.
        force: remove what is in the run's folder and start again.
        log: loggers, each a name, or a name and a place with a colon between.

    >>> job = Job("unique", "nan", "smoke", 3, Path("out"), changes={"hidden": "16"})
    >>> job.folder.as_posix(), job.settings.hidden
    ('out/unique/smoke/nan/seed-3', 16)
    """

    experiment: str
    arm: str
    preset: str
    seed: int
    out: Path
    device: str = "auto"
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    force: bool = False
    log: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:  # another process computes for itself what follows from the fields
        return type(self), tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    @functools.cached_property
    def definition(self) -> Experiment:
        """The experiment of that name."""
        return load_experiment(self.experiment)

    @functools.cached_property
    def settings(self) -> Any:
        """The settings that the run has in the end."""
        return self.definition.effective(self.arm, self.preset, self.changes)

    @functools.cached_property
    def torch_device(self) -> torch.device:
        """The device, where "auto" is the GPU if there is one."""
        return resolve(self.device)

    @functools.cached_property
    def folder(self) -> Path:
        """The run's own folder."""
        return folder_of(self.out, self.experiment, self.preset, self.arm, self.seed)

    def config(self, devices: int = 1) -> dict[str, Any]:
        """What config.json holds: all that the run's numbers follow from.

        Args:
            devices: how many share each batch.
        """
        config = {
            "experiment": self.experiment, "arm": self.arm, "preset": self.preset, "seed": self.seed,
            "device": self.torch_device.type, **({"devices": devices} if devices > 1 else {}),
            "settings": dataclasses.asdict(self.settings),
        }  # fmt: skip
        return json.loads(json.dumps(config))  # a tuple comes back as a list, as it does from the file

    def check(self, *, elsewhere: bool = False) -> None:
        """Raise an error that names whatever would keep the run from starting.

        Args:
            elsewhere: it runs on another machine, so the device and the data are not looked for here.
        """
        _ = self.settings
        if self.log:
            loggers.check(self.log)
        if not elsewhere:
            _ = self.torch_device
            self.definition.find_data(self.settings)


def folder_of(out: Path, experiment: str, preset: str, arm: str, seed: int) -> Path:
    """The folder of a run below that of all runs."""
    return out / experiment / preset / arm / f"seed-{seed}"


def resolve(device: str) -> torch.device:
    """The device of that name; "auto" is the GPU where there is one."""
    if device not in DEVICES:
        raise UnknownName("device", device, DEVICES)
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda': there is none here; allowed are auto, cpu")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
