"""Checkpoints: tensors in safetensors, the rest in JSON, no pickle; whole or not there at all.

The last two are kept. One that does not match its checksum is named and left, and the one before is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from noisyact.experiments.experiment import Task
from noisyact.experiments.files import read_json, write_json

__all__ = ["load_last", "read", "restore", "save", "state_of"]

_KEPT = 2


def save(folder: Path, update: int, task: Task) -> None:
    """Keep the task as it is after so many updates."""
    tensors: dict[str, Tensor] = {}
    parts = state_of(task)
    state = {"update": update, "memory": parts.pop("memory"), "task": _split(parts, "", tensors)}
    data = tensors_to_bytes({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()})
    state["sha256"] = _checksum(state, data)
    target = folder / f"{update:09d}"
    temporary = folder / f".{update:09d}.{os.getpid()}.{random.getrandbits(32):08x}"
    temporary.mkdir(parents=True)
    try:
        with (temporary / "tensors.safetensors").open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        write_json(temporary / "state.json", state)
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _tidy(folder)


def _tidy(folder: Path) -> None:
    # A kill during a save leaves its temporary folder; a run has one process, so it is nobody's.
    for old in [*_all(folder)[:-_KEPT], *folder.glob(".*")]:
        shutil.rmtree(old)


def load_last(folder: Path, task: Task) -> int:
    """Bring the task to its last checkpoint that is whole. Returns its updates; 0 where there is none."""
    _tidy(folder)  # after a kill in the last save there is no other that would
    for path in reversed(_all(folder)):
        try:
            state = read(path)
        except ValueError as error:
            warnings.warn(f"{error}; the one before it is", stacklevel=2)
            continue
        restore(task, state)
        return state["update"]
    return 0


def read(path: Path) -> dict[str, Any]:
    """What one checkpoint holds: the `update` it was made after, and the task's state as :func:`state_of` gave it.

    Raises: ValueError, which names the checkpoint, where it is not whole.
    """
    try:
        state = read_json(path / "state.json")
        data = (path / "tensors.safetensors").read_bytes()
        if state.pop("sha256") != _checksum(state, data):
            raise ValueError("its checksum is wrong")
        return {**_join(state["task"], tensors_from_bytes(data)), "memory": state["memory"], "update": state["update"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"checkpoint {path} cannot be used ({error})") from None


def _checksum(state: dict[str, Any], tensors: bytes) -> str:
    """Of both files, by what they hold: JSON that is read and written again is the same text."""
    found = hashlib.sha256(tensors)  # not a sum of bytes: tensors may have gigabytes
    found.update(json.dumps(state).encode())
    return found.hexdigest()


def _all(folder: Path) -> list[Path]:
    if not folder.exists():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name.isdigit())


def state_of(task: Task) -> dict[str, Any]:
    """All that changes while a task trains, torch's generators too."""
    state = {
        "memory": task.memory,
        "modules": {name: module.state_dict() for name, module in task.modules.items()},
        "optimizers": {name: optimizer.state_dict() for name, optimizer in task.optimizers.items()},
        "generators": {name: generator.get_state() for name, generator in task.generators.items()},
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore(task: Task, state: dict[str, Any]) -> None:
    """Bring the task to a state that :func:`state_of` gave."""
    for kind in ("modules", "optimizers"):
        for name, part in getattr(task, kind).items():
            part.load_state_dict(state[kind][name])
    for name, generator in task.generators.items():
        generator.set_state(state["generators"][name])
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
    memory = dict(state["memory"])  # which may be the task's own
    task.memory.clear()
    task.memory.update(memory)


def _split(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value with its tensors moved out; dictionaries as lists of pairs, since JSON has no other keys than text."""
    if isinstance(value, Tensor):
        tensors[name] = value.clone()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"pairs": [[key, _split(part, f"{name}/{key}", tensors)] for key, part in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"list": [_split(part, f"{name}/{i}", tensors) for i, part in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a checkpoint cannot hold {name}: {type(value).__name__}")


def _join(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "pairs" in value:
        return {key: _join(part, tensors) for key, part in value["pairs"]}
    return [_join(part, tensors) for part in value["list"]]
