"""A trained run, read from its folder or from one of its checkpoints, for use without training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from noisyact_lab.engine.folder import checkpoint
from noisyact_lab.engine.folder.files import read_json

__all__ = ["of_this_version", "state_of_run"]


def state_of_run(folder: Path, *experiments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config of a run and the state in a checkpoint.

    Args:
        folder: of the run, for its last whole checkpoint, or of one of its checkpoints.
        experiments: one of those whose run it must be.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    named = (folder / "state.json").exists()
    run = folder.absolute().parent.parent if named else folder
    if not (run / "config.json").exists():
        raise ValueError(f"{folder}: neither the folder of a run, with config.json, nor a checkpoint in one")
    config = read_json(run / "config.json", dict)
    if config.get("experiment") not in experiments:
        wanted = " or ".join(map(repr, experiments))
        raise ValueError(f"{folder}: a run of {config.get('experiment')!r}, not of {wanted}")
    paths = [folder] if named else checkpoint.paths(folder / "checkpoints")
    for _, state in checkpoint.whole(paths):
        return config, state
    raise ValueError(f"{folder}: no checkpoint there {'can be used' if paths else 'yet'}")


@contextlib.contextmanager
def of_this_version(folder: Path) -> Iterator[None]:
    """Within it, settings or weights that do not fit are a ValueError that names the folder."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
        what = " ".join(str(error).split())[:200]  # torch has a line for every tensor
        raise ValueError(f"{folder}: its settings or weights are not those of this version: {what}") from None
