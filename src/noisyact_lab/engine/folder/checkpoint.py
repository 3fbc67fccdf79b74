"""Checkpoints: tensors in safetensors, the rest in JSON, no pickle. A checkpoint is complete or does not exist.

The last two are kept. If one does not match its checksum, a warning names it and the one before is used. One that
matches its checksum but does not fit the run was made by something else: that is an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from noisyact_lab.engine.folder.files import Damaged, named, read_bytes, read_json, remove, write_bytes, write_json
from noisyact_lab.engine.task import Task

__all__ = ["Foreign", "paths", "read", "restore", "save", "state_of", "tidy", "whole"]

_KEPT = 2
_NAME = re.compile("[0-9]{9,}", re.ASCII)
_TEMPORARY = re.compile(r"\.[0-9]{9,}\..+", re.ASCII)


class Foreign(Damaged):
    """A checkpoint that matches its checksum but was not made by this run."""


def save(folder: Path, update: int, task: Task, records: dict[str, Any] | None = None) -> None:
    """Save the task.

    Args:
        folder: the folder of all checkpoints.
        update: the number of updates done.
        task: all of its state is saved.
        records: what to store about the run's records; see :func:`noisyact_lab.engine.folder.records.seal`.
    """
    tensors: dict[str, Tensor] = {}
    parts = state_of(task)
    state = {"update": update, "memory": parts.pop("memory"), "task": _split(parts, "", tensors)}
    if records is not None:
        state["records"] = records
    data = tensors_to_bytes({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()})
    state["sha256"] = _checksum(state, data)
    target = folder / f"{update:09d}"
    temporary = folder / f".{update:09d}.{os.getpid()}.{random.getrandbits(32):08x}"
    with named(target):
        temporary.mkdir(parents=True)
        try:
            write_bytes(temporary / "tensors.safetensors", data)
            write_json(temporary / "state.json", state)
            remove(target)
            temporary.rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    tidy(folder, update)


def tidy(folder: Path, update: int | None = None) -> None:
    """Remove what a kill during a save has left and, of the checkpoints up to an update, all but the last two.

    Other files, such as those of a desktop or of a network file system, stay.
    """
    old = [] if update is None else [path for path in paths(folder) if int(path.name) <= update][:-_KEPT]
    leftovers = [path for path in folder.glob(".*") if _TEMPORARY.fullmatch(path.name)]
    for path in [*old, *leftovers]:
        remove(path)


def paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder in order, intact or not; files and folders with other names do not count."""
    if not folder.is_dir():
        return []
    named = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted((path for path in named if path.name == f"{int(path.name):09d}"), key=lambda path: int(path.name))


def whole(found: Sequence[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The intact ones among some checkpoints, with their contents, the last first; a warning names each damaged one."""
    for index in reversed(range(len(found))):
        try:
            state = read(found[index])
        except Foreign:
            raise
        except Damaged as error:
            then = f"falling back to the previous checkpoint, {found[index - 1].name}" if index else "there is no other"
            warnings.warn(f"checkpoint {error.path} cannot be used ({error.why}); {then}", stacklevel=2)
        else:
            yield found[index], state


def read(path: Path) -> dict[str, Any]:
    """The content of one checkpoint.

    Returns: the number `update` of updates done, the task's state as :func:`state_of` returned it, and `records`, which
    is None if the checkpoint has none.

    Raises: Damaged, if it is not intact; Foreign, if it is, but was not made by a run.
    """
    try:
        state = read_json(path / "state.json", dict)
        data = read_bytes(path / "tensors.safetensors")
    except OSError as error:
        raise Damaged(path, f"{Path(error.filename).name}: {error.strerror}") from None
    except Damaged as error:
        raise Damaged(path, f"{error.path.name}: {error.why}") from None
    if state.pop("sha256", None) != _checksum(state, data):
        raise Damaged(path, "its checksum is wrong")
    try:
        held = {**_join(state["task"], tensors_from_bytes(data)), "memory": dict(state["memory"])}
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Foreign(path, f"it does not hold what a checkpoint does ({_said(error)})") from None
    if state.get("update") != int(path.name):
        raise Foreign(path, f"it is that of update {state.get('update')}")
    return {**held, "update": int(path.name), "records": state.get("records")}


def _checksum(state: dict[str, Any], tensors: bytes) -> str:
    """The checksum of both files' contents: JSON that is read and written again is the same text."""
    found = hashlib.sha256(tensors)  # not of both joined: tensors may have gigabytes
    found.update(json.dumps(state).encode())
    return found.hexdigest()


def _said(error: Exception) -> str:
    text = " ".join(str(error).split())  # torch has a line for every tensor
    return f"{type(error).__name__}: {text[:200]}"


def state_of(task: Task) -> dict[str, Any]:
    """All state that changes while a task trains, including that of torch's generators."""
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


def restore(task: Task, state: dict[str, Any], path: Path | None = None) -> None:
    """Restore the task from a state that :func:`state_of` returned.

    Args:
        task: may be changed in part if there is an error.
        state: the state.
        path: the checkpoint that has the state, if there is one. If it does not fit the task, the error is Foreign.
    """
    try:
        for kind in ("modules", "optimizers"):
            for name, part in getattr(task, kind).items():
                part.load_state_dict(state[kind][name])
        for optimizer in task.optimizers.values():
            _check_shapes(optimizer)
        for name, generator in task.generators.items():
            generator.set_state(state["generators"][name])
        torch.set_rng_state(state["torch"])
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"])
        memory = dict(state["memory"])  # it may be the task's own dictionary
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        if path is None:
            raise
        raise Foreign(path, f"it does not fit this run ({_said(error)})") from None
    task.memory.clear()
    task.memory.update(memory)


def _check_shapes(optimizer: torch.optim.Optimizer) -> None:
    """Check that state of a parameter has its shape or is one number: torch would only fail in the next step."""
    for parameter, kept in optimizer.state.items():
        for name, value in kept.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
                raise ValueError(f"{name} has shape {tuple(value.shape)} for a parameter of {tuple(parameter.shape)}")


def _split(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value without its tensors, which move to `tensors`. Dictionaries become pairs: keys in JSON must be text."""
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
