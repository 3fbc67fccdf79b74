"""The sweeps under a folder of runs: one arm at several settings, or several arms at a setting of their own."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from urllib.parse import unquote

from noisyact_lab.engine.experiment import PRESETS, experiment_names, load_experiment

__all__ = ["Sweep", "section_id", "sweeps_of"]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Runs of an experiment at other settings than its preset's.

    Args:
        experiment: its name.
        preset: the preset.
        arm: the arm that has several settings; empty where arms are compared at one.
        arms: the arms.
        points: each setting and the folder that its runs are under.
    """

    experiment: str
    preset: str
    arm: str
    arms: tuple[str, ...]
    points: tuple[tuple[str, Path], ...]

    @property
    def name(self) -> str:
        """The arm with several settings, or the one setting of several arms."""
        return self.arm or self.points[0][0]


def sweeps_of(out: Path) -> list[Sweep]:
    """The sweeps under `out`, in the order of their names. An arm that has one setting only is compared with others."""
    points: dict[tuple[str, str, str], list[tuple[str, Path]]] = {}
    for folder in sorted(path for path in out.glob("sweep/*") if path.is_dir()):
        for name in experiment_names():
            for arm in load_experiment(name).arms:
                for preset in PRESETS:
                    if any((folder / name / preset / arm.name).glob("seed-*")):
                        points.setdefault((name, preset, arm.name), []).append((unquote(folder.name), folder))
    found = [Sweep(n, preset, arm, (arm,), tuple(at)) for (n, preset, arm), at in points.items() if len(at) > 1]
    together: dict[tuple[str, str, tuple[str, Path]], list[str]] = {}
    for (name, preset, arm), at in points.items():
        if len(at) == 1:
            together.setdefault((name, preset, at[0]), []).append(arm)
    found += [Sweep(name, preset, "", tuple(arms), (point,)) for (name, preset, point), arms in together.items()]
    return sorted(found, key=lambda sweep: (sweep.experiment, sweep.preset, sweep.name))


def section_id(experiment: str, preset: str, swept: str = "") -> str:
    """The id of a table's section on the report page, for a sweep with the name of that.

    >>> section_id("unique", "paper"), section_id("ptb-word", "paper", "dropout=0.25")
    ('unique-paper', 'ptb-word-paper-sweep-dropout-0-25')
    """
    return "-".join(filter(None, (experiment, preset, "sweep" if swept else "", re.sub(r"[^\w-]+", "-", swept))))
