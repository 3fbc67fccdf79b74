"""The choice of a setting for each arm: the value with the best score in validation, of runs that do nothing else.

Every arm is tried with the same values and the same seed, which no other run has. These are ordinary runs, which resume
and are not done twice. They are kept in `DIR/choice/SETTING=VALUE/`, and the choice with all scores in
`DIR/EXPERIMENT/PRESET/choice.json`. A run that diverged has no score and loses against every run that has one. Of equal
scores the smallest value is chosen; so it is if all runs of an arm diverged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from noisyact_lab.engine.experiment import Choice, Experiment
from noisyact_lab.engine.folder.files import Damaged, is_finite, read_json, write_json
from noisyact_lab.engine.folder.records import finished
from noisyact_lab.engine.job import Job

__all__ = ["CHOICE", "best_of", "check_choice", "choice_jobs", "choose", "chosen", "values_tried"]

CHOICE = "choice.json"


def values_tried(experiment: Experiment, preset: str, changes: Mapping[str, Any] | None = None) -> list[float]:
    """The values of the setting, from the lowest up."""
    choice = _choice_of(experiment)
    own = getattr(experiment.effective(experiment.arms[0].name, preset, changes), choice.setting)
    return sorted(own * factor for factor in choice.factors)


def check_choice(experiment: Experiment, seeds: int, changes: Mapping[str, Any]) -> None:
    """Raise an error if runs with these seeds and changes cannot be done with a setting that is chosen."""
    choice = _choice_of(experiment)
    if seeds > choice.seed:
        raise ValueError(f"--seeds {seeds}: seed {choice.seed} of {experiment.name} chooses its {choice.setting}")
    for name in (choice.setting, *choice.changes):
        if name in changes:
            raise ValueError(
                f"--set {name}={changes[name]}: `reproduce` chooses {choice.setting} of {experiment.name} on "
                "validation data; use `run` or `sweep` for other values"
            )


def choice_jobs(
    experiment: Experiment, arms: Sequence[str], preset: str, out: Path, device: str = "auto",
    changes: Mapping[str, Any] | None = None, force: bool = False, log: tuple[str, ...] = (),
) -> dict[str, list[Job]]:  # fmt: skip
    """The runs that choose, by arm: one for each value of :func:`values_tried`. The arguments are those of a job."""
    choice, given = _choice_of(experiment), changes or {}
    values = values_tried(experiment, preset, given)
    return {
        arm: [
            Job(
                experiment.name, arm, preset, choice.seed, out / "choice" / f"{choice.setting}={value:g}", device,
                {**given, choice.setting: value, **choice.changes}, force, log,
            )
            for value in values
        ]
        for arm in arms
    }  # fmt: skip


def choose(
    experiment: Experiment, jobs: Mapping[str, Sequence[Job]], preset: str, out: Path, force: bool = False
) -> dict[str, Any]:
    """Choose from the records of the finished jobs of :func:`choice_jobs`, write the choice and return it, by arm.

    Arms that are not among the jobs keep the choice that was written before.

    Raises: ValueError, if a job is not finished, or if a choice among other values is there and `force` is not given.
    """
    choice, path = _choice_of(experiment), out / experiment.name / preset / CHOICE
    values = [getattr(job.settings, choice.setting) for job in next(iter(jobs.values()))]
    rule = {"setting": choice.setting, "metric": choice.metric, "seed": choice.seed, "values": values}
    before = _read(path) if path.exists() else {}
    if before and {name: before[name] for name in rule} != rule:
        if not force:
            raise ValueError(f"{path} has another choice: not {rule}; use --force to choose again, or another --out")
        before = {}
    found = {}
    for arm, of_arm in jobs.items():
        records = [finished(job.folder, job.config()) for job in of_arm]
        if missing := [f"{value:g}" for value, record in zip(values, records, strict=True) if record is None]:
            raise ValueError(
                f"{experiment.name}: the choice of {choice.setting} for {arm} lacks the runs with "
                f"{', '.join(missing)}; repeat the command to do them"
            )
        scores = [_score(record, choice.metric) for record in records if record is not None]
        found[arm] = {"chosen": best_of(values, scores), "scores": scores}
    write_json(path, {**rule, "arms": before.get("arms", {}) | found})
    return {arm: made["chosen"] for arm, made in found.items()}


def best_of(values: Sequence[float], scores: Sequence[float | None]) -> float:
    """The value with the lowest score; the smallest of several.

    >>> best_of([0.25, 0.5, 1.0], [9.0, 7.0, 7.0]), best_of([0.25, 0.5], [None, 8.0])
    (0.5, 0.5)
    >>> best_of([0.25, 0.5], [None, None])
    0.25
    """
    return min((math.inf if score is None else score, value) for value, score in zip(values, scores, strict=True))[1]


def chosen(experiment: Experiment, out: Path, preset: str) -> dict[str, Any]:
    """The choice that is written, by arm; empty if there is none or the experiment chooses nothing."""
    path = out / experiment.name / preset / CHOICE
    if experiment.choice is None or not path.exists():
        return {}
    return {arm: made["chosen"] for arm, made in _read(path)["arms"].items()}


def _choice_of(experiment: Experiment) -> Choice:
    if experiment.choice is None:
        raise ValueError(f"{experiment.name} chooses no setting")
    return experiment.choice


def _score(record: Mapping[str, Any], metric: str) -> float | None:
    return record["result"][metric] if record["status"] == "finished" else None


def _read(path: Path) -> dict[str, Any]:
    """Read what :func:`choose` wrote, and check that it is such a file."""
    found = read_json(path, dict)
    arms = found.get("arms")
    if not {"setting", "metric", "seed", "values"} <= found.keys() or not isinstance(arms, dict):
        raise Damaged(path, "it is not the choice of a setting")
    for arm, made in arms.items():
        if not isinstance(made, dict) or not is_finite(made.get("chosen")):
            raise Damaged(path, f"it has no value for {arm}")
    return found
