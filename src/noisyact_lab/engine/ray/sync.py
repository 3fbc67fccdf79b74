"""A run's folder on two machines: changes in the original are sent, and written to the copy.

They are written in an order that keeps the copy, like the original, a run that can be resumed at any moment.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path

from noisyact_lab.engine.folder import checkpoint
from noisyact_lab.engine.folder.files import remove, write_bytes
from noisyact_lab.engine.logging.run_log import FOLDER as LOGS

__all__ = ["Changes", "Original", "apply", "contents"]


@dataclasses.dataclass(frozen=True)
class Changes:
    """What has changed in a folder: the new contents of files by their path in it, and the files that are gone."""

    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    gone: tuple[str, ...] = ()


def contents(folder: Path) -> dict[str, bytes]:
    """The contents of a run's files by their path in its folder; without checkpoints if the run is finished."""
    needless = "checkpoints" if (folder / "result.json").exists() else None
    paths = [path for path in _files(folder) if path.parts[0] != needless]
    return {path.as_posix(): (folder / path).read_bytes() for path in paths}


class Original:
    """A folder that is changed here, and whose changes are sent.

    Args:
        folder: the other side has it as it is now.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sent = self._stamps()

    def changes(self) -> Changes:
        """What has changed since the last call."""
        before, self._sent = self._sent, self._stamps()
        changed = [path for path, stamp in self._sent.items() if before.get(path) != stamp]
        gone = tuple(path for path in before if path not in self._sent)
        return Changes({path: (self._folder / path).read_bytes() for path in changed}, gone)

    def _stamps(self) -> dict[str, tuple[int, int, int]]:
        stamps = {}
        for path in _files(self._folder):
            status = (self._folder / path).stat()
            stamps[path.as_posix()] = (status.st_mtime_ns, status.st_size, status.st_ino)
        return stamps


def apply(folder: Path, changes: Changes) -> None:
    """Write the changes into the copy.

    First the records, then the checkpoints that rely on them, each whole; then files are removed; the result is last.
    """
    saved: dict[str, dict[str, bytes]] = {}
    for path, content in changes.files.items():
        first, *rest = Path(path).parts
        if first == "checkpoints":
            saved.setdefault(rest[0], {})[rest[1]] = content
        elif path != "result.json":
            write_bytes(folder / path, content)
    for name, files in sorted(saved.items()):
        _write_checkpoint(folder / "checkpoints", name, files)
    for path in changes.gone:
        if Path(path).parts[0] == "checkpoints":
            remove((folder / path).parent)
        else:
            remove(folder / path)
    if "result.json" in changes.files:
        write_bytes(folder / "result.json", changes.files["result.json"])


def _write_checkpoint(folder: Path, name: str, files: Mapping[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    checkpoint.tidy(folder)  # left by a kill during a write
    temporary = Path(tempfile.mkdtemp(dir=folder, prefix=f".{name}."))
    temporary.chmod(folder.stat().st_mode)  # mkdtemp makes folders that only their owner can read
    for file, content in files.items():
        write_bytes(temporary / file, content)
    remove(folder / name)
    temporary.rename(folder / name)


def _files(folder: Path) -> list[Path]:
    """The files to send: none of loggers, none half written at a kill, no strangers among the checkpoints."""
    saved = {path.relative_to(folder) for path in checkpoint.paths(folder / "checkpoints")}
    paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [
        path
        for path in paths
        if path.parts[0] != LOGS
        and not any(part.startswith(".") for part in path.parts)
        and (path.parts[0] != "checkpoints" or path.parent in saved)
    ]
