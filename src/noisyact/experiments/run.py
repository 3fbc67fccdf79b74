"""One run of one arm: its folder, its training loop, its record.

The folder has `config.json` (every effective setting), `metrics.jsonl` (one line an evaluation), `timing.jsonl` (when),
`checkpoints/`, and at the end `result.json`, the numbers with their signature.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import noisyact
from noisyact.experiments import checkpoint
from noisyact.experiments.experiment import Experiment
from noisyact.experiments.files import append_line, read_json, read_lines, write_json, write_lines

__all__ = ["Progress", "folder_of", "run", "signature"]

Progress = Callable[[int, int, dict[str, float]], None]
"""Called with the updates done, those in all, and the last evaluation."""


def folder_of(out: Path, experiment: str, preset: str, arm: str, seed: int) -> Path:
    """Where a run is kept."""
    return out / experiment / preset / arm / f"seed-{seed}"


def run(
    experiment: Experiment, arm: str, preset: str, seed: int, out: Path, *, device: str = "auto",
    changes: Mapping[str, Any] | None = None, force: bool = False, progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train one arm, or go on where a killed run stopped; a finished run is not done again unless forced.

    Returns: the record as in result.json. Its status is "finished", or "diverged" for a run that stopped being finite.
    """
    settings = experiment.effective(arm, preset, changes)
    chosen = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    folder = folder_of(out, experiment.name, preset, arm, seed)
    config = {
        "experiment": experiment.name, "arm": arm, "preset": preset, "seed": seed, "device": chosen.type,
        "settings": dataclasses.asdict(settings),
    }  # fmt: skip
    known = _known(folder, config, force)
    if known is not None:
        return known
    write_json(folder / "config.json", config)
    torch.manual_seed(seed)
    task = experiment.start(settings, seed, chosen)
    done = checkpoint.load_last(folder / "checkpoints", task)
    # What was recorded after the checkpoint will be recorded again.
    evaluations = [line for line in read_lines(folder / "metrics.jsonl") if line["update"] <= done]
    write_lines(folder / "metrics.jsonl", evaluations)
    status = _train(task, done, evaluations, folder, progress)
    numbers = {name: _finite(value) for name, value in task.result(evaluations).items()} if evaluations else {}
    record = {**config, "status": status, "updates": task.updates, "result": numbers, "signature": signature(config)}
    write_json(folder / "result.json", record)
    return record


def _known(folder: Path, config: dict[str, Any], force: bool) -> dict[str, Any] | None:
    """The record of a finished run; an unfinished one must have been begun with the same settings."""
    if force and folder.exists():
        for name in ("result.json", "metrics.jsonl", "timing.jsonl", "config.json"):
            (folder / name).unlink(missing_ok=True)
        for path in sorted((folder / "checkpoints").glob("*/*"), reverse=True):
            path.unlink()
        for path in (folder / "checkpoints").glob("*"):
            path.rmdir()
        return None
    if (folder / "config.json").exists():
        before = read_json(folder / "config.json")
        if before != config:
            differing = [k for k in config if before.get(k) != config[k]]
            raise ValueError(
                f"{folder} has a run with other settings ({', '.join(differing)} differ); use --force to do it again, "
                "or another --out"
            )
    return read_json(folder / "result.json") if (folder / "result.json").exists() else None


def _train(
    task: Any, done: int, evaluations: list[dict[str, float]], folder: Path, progress: Progress | None
) -> str:
    start = time.monotonic()
    for index in range(done, task.updates):
        recorded = task.update(index)
        count = index + 1
        broken = [name for name, value in recorded.items() if not math.isfinite(value)]
        if broken:
            append_line(folder / "timing.jsonl", {"update": count, "diverged": broken})
            return "diverged"
        if count % task.evaluate_every == 0 or count == task.updates:
            line = {"update": count, **recorded, **task.evaluate(count)}
            broken = [name for name, value in line.items() if not math.isfinite(value)]
            if broken:
                append_line(folder / "timing.jsonl", {"update": count, "diverged": broken})
                return "diverged"
            evaluations.append(line)
            append_line(folder / "metrics.jsonl", line)
            append_line(folder / "timing.jsonl", {"update": count, "seconds": round(time.monotonic() - start, 3)})
            checkpoint.save(folder / "checkpoints", count, task)
            if progress is not None:
                progress(count, task.updates, line)
    return "finished"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def signature(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a number came from: settings, code, machine and library versions."""
    source = hashlib.sha256()
    for path in sorted(Path(noisyact.__file__).parent.rglob("*.[pch]*")):
        if path.suffix in (".py", ".c", ".h"):
            source.update(path.read_bytes())
    device = torch.cuda.get_device_name() if config["device"] == "cuda" else platform.machine()
    return {
        "noisyact": noisyact.__version__,
        "source_sha256": source.hexdigest(),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "device": device,
        "threads": torch.get_num_threads(),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
    }


def _commit() -> str | None:
    """The commit of the checkout the package is in, if it is in one, with a + where files differ from it."""
    where = Path(noisyact.__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=where, capture_output=True, text=True, check=True)
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--", "."], cwd=where, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
