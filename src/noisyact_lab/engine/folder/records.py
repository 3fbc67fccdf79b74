"""What a run records: its settings, its evaluations and when they were made, and its result with a signature.

`config.json` has every setting, `metrics.jsonl` a line for each evaluation, `timing.jsonl` a line for when it was made,
`noise.jsonl` a line for the noise drawn then, and `result.json` the numbers and their signature.

A checkpoint stores the length and the checksum of the evaluations before it. A resumed run therefore detects lines that
were lost, doubled or changed while it was stopped. Lines after these were appended before a kill, and are recorded
again.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import noisyact
import noisyact_lab
from noisyact_lab.engine.folder import checkpoint
from noisyact_lab.engine.folder.files import (
    Damaged,
    append_line,
    is_finite,
    lines_of,
    read_bytes,
    read_json,
    read_lines,
    remove,
    text_of,
    write_lines,
)

__all__ = [
    "METRICS", "NOISE", "TIMING", "append", "clear", "commit", "finished", "recorded", "rewrite", "seal",
    "signature",
]  # fmt: skip

METRICS, TIMING, NOISE = "metrics.jsonl", "timing.jsonl", "noise.jsonl"

Lines = list[dict[str, Any]]


def clear(folder: Path) -> None:
    """Remove all files of a run, also those of its loggers."""
    # The settings go last: they say which run the checkpoints belong to.
    files = (METRICS, TIMING, NOISE, "config.json")
    for name in ("checkpoints", "logs", "pictures", "result.json", "samples.json", *files):
        remove(folder / name)


def finished(folder: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    """The record of the run if it is finished, else None.

    Raises: ValueError, if the run in the folder has other settings; Damaged, if its files cannot be used.
    """
    ended, path = (folder / "result.json").exists(), folder / "config.json"
    if path.exists():
        before = read_json(path, dict)
        if before != config:
            raise ValueError(
                f"{folder} has a run with other settings ({_differences(before, config)}); use --force to do it again, "
                "or another --out"
            )
    elif ended or checkpoint.paths(folder / "checkpoints"):
        raise Damaged(path, "it is gone, so the settings of the run are unknown")
    return _read_result(folder / "result.json", config) if ended else None


def _read_result(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Read result.json, and check that it is the record of this run."""
    record = read_json(path, dict)
    if {name: record.get(name) for name in config} != config:
        raise Damaged(path, "its settings are not those of config.json")
    if record.get("status") not in ("finished", "diverged"):
        raise Damaged(path, f"its status is {record.get('status')!r}, neither 'finished' nor 'diverged'")
    numbers = record.get("result")
    if not isinstance(numbers, dict) or not all(value is None or is_finite(value) for value in numbers.values()):
        raise Damaged(path, "its result is not a number for each name")
    return record


def _differences(before: dict[str, Any], config: dict[str, Any]) -> str:
    flat = [{**{k: v for k, v in c.items() if k != "settings"}, **_settings(c)} for c in (before, config)]
    names = [name for name in {**flat[0], **flat[1]} if flat[0].get(name) != flat[1].get(name)]
    return ", ".join(f"{name} is {flat[0].get(name)} there and {flat[1].get(name)} here" for name in names)


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    settings = config.get("settings")
    return settings if isinstance(settings, dict) else {"settings": settings}


def append(
    folder: Path, evaluation: dict[str, float], when: dict[str, Any], noise: Mapping[str, Mapping[str, float]] | None
) -> None:
    """Append an evaluation, its time, and the noise of each unit where it was measured."""
    if noise:
        append_line(folder / NOISE, {"update": evaluation["update"], "units": noise})
    append_line(folder / METRICS, evaluation)
    append_line(folder / TIMING, when)


def rewrite(folder: Path, update: int, evaluations: Lines, timing: Lines) -> None:
    """Replace the evaluations and times, and drop the noise that was recorded after an update."""
    write_lines(folder / METRICS, evaluations)
    write_lines(folder / TIMING, timing)
    if (folder / NOISE).exists():  # not so in runs of versions that did not record it
        write_lines(folder / NOISE, _up_to(update, folder / NOISE, read_lines(folder / NOISE)))


def seal(evaluations: Lines) -> dict[str, Any]:
    """What a checkpoint stores of the evaluations before it: the length of their lines in bytes, and their checksum.

    >>> seal([{"update": 4, "loss": 0.5}])["bytes"]
    27
    """
    text = text_of(evaluations).encode()
    return {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}


def recorded(folder: Path, update: int, sealed: dict[str, Any] | None) -> tuple[Lines, Lines]:
    """The evaluations and times up to a checkpoint.

    Args:
        folder: the run's.
        update: the checkpoint's.
        sealed: what :func:`seal` returned; None for a checkpoint of a version that stored nothing of the kind.

    Raises: Damaged, which names the file, if it is not as it was when the checkpoint was made.
    """
    path = folder / METRICS
    content = read_bytes(path) if path.exists() else b""
    if sealed is None:
        evaluations = _up_to(update, path, lines_of(path, content))
        if not evaluations or evaluations[-1]["update"] != update:
            raise Damaged(path, f"it has no line for update {update}, which there is a checkpoint of")
    else:
        try:
            length, checksum = int(sealed["bytes"]), sealed["sha256"]
        except (KeyError, TypeError, ValueError):
            path = folder / "checkpoints" / f"{update:09d}"
            raise Damaged(path, "what it knows of the records is no checksum") from None
        known = content[:length]
        if len(known) < length:
            raise Damaged(path, f"it has {len(content):,} bytes, and at update {update} there were {length:,}")
        if hashlib.sha256(known).hexdigest() != checksum:
            raise Damaged(path, f"its lines up to update {update} are not those that were recorded")
        evaluations = lines_of(path, known)
    timing = _up_to(update, folder / TIMING, read_lines(folder / TIMING))
    if sealed is not None and [line["update"] for line in timing] != [line["update"] for line in evaluations]:
        raise Damaged(folder / TIMING, f"up to update {update} it has not one line for each evaluation")
    if not all(is_finite(line.get("seconds")) for line in timing):
        raise Damaged(folder / TIMING, "a line has no seconds")
    return evaluations, timing


def _up_to(update: int, path: Path, lines: list[Any]) -> Lines:
    for number, line in enumerate(lines, start=1):
        if not isinstance(line, dict) or not is_finite(line.get("update")):
            raise Damaged(path, f"line {number} has no update")
    return [line for line in lines if line["update"] <= update]


def signature(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a number came from: settings, code, machine and library versions."""
    source = hashlib.sha256()
    for folder in _sources():
        for path in sorted(folder.rglob("*.[pch]*")):
            if path.suffix in (".py", ".c", ".h"):
                source.update(path.read_bytes())
    on_gpu = config["device"] == "cuda"
    device = torch.cuda.get_device_name() if on_gpu else platform.machine()
    # A run may have only a part of a shared GPU; kernels are then divided in another way, and round differently.
    part = {"processors": torch.cuda.get_device_properties().multi_processor_count} if on_gpu else {}
    return {
        "noisyact": noisyact.__version__,
        "source_sha256": source.hexdigest(),
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "device": device,
        **part,
        "threads": torch.get_num_threads(),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
    }


def commit() -> str | None:
    """The commit of the checkout that the packages are in, with a + if their files differ from it; None without one."""

    def git(folder: Path, *arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        for folder in _sources():  # an environment may be inside the checkout of another project
            git(folder, "ls-files", "--error-unmatch", "__init__.py")
        changed = any(git(folder, "status", "--porcelain", "--", ".") for folder in _sources())
        return git(_sources()[0], "rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _sources() -> list[Path]:
    """The folders of the library and of the laboratory: a result depends on both."""
    return [Path(noisyact.__file__).parent, Path(noisyact_lab.__file__).parent]
