"""The loggers of a run, which log what is in its folder.

They have no part in the run: its files are the same with or without them, and a logger that fails is dropped with a
warning. If a run is resumed, or was finished before, each logger gets exactly what it has not logged yet.
"""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from noisyact_lab.engine.folder.files import Damaged, in_words, read_json, read_lines, write_json
from noisyact_lab.engine.logging.loggers import LOGGERS, Logger

__all__ = ["FOLDER", "Logs"]

FOLDER = "logs"
"""The folder, in that of a run, for the loggers' files."""


class Logs:
    """The loggers of one run.

    Args:
        names: the loggers', each with an optional place after a colon.
        folder: the run's.
        warn: called with a sentence if a logger is dropped.
    """

    def __init__(self, names: Sequence[str], folder: Path, warn: Callable[[str], object] = warnings.warn) -> None:
        self._names, self._folder, self._warn = tuple(dict.fromkeys(names)), folder, warn
        self._state = folder / FOLDER / "loggers.json"
        self._open: dict[str, Logger] | None = None
        self._last: dict[str, int] = {}

    def follow(self) -> None:
        """Log what the run has recorded since the last call."""
        self._or_give_up(self._follow)

    def _follow(self) -> None:
        if self._open is None:
            self._start(self._names)
        if not self._open:
            return
        times = {line["update"]: line.get("at") for line in read_lines(self._folder / "timing.jsonl")}
        for line in read_lines(self._folder / "metrics.jsonl"):
            update = int(line["update"])
            metrics = {name: value for name, value in line.items() if name != "update"}
            for name, logger in list(self._open.items()):
                if update > self._last[name]:
                    self._attempt(name, logger.log, update, metrics, times.get(update) or time.time())
                    self._last[name] = update

    def end(self, record: Mapping[str, Any] | None) -> None:
        """Called when the run has ended, with its record if it has one; logs what is not logged yet."""
        self._or_give_up(self._end, record)
        self._open = {}

    def _end(self, record: Mapping[str, Any] | None) -> None:
        if record is not None:
            if self._open is None:
                self._start([name for name in self._names if name not in self._known()["finished"]])
            self._follow()
        for name, logger in list((self._open or {}).items()):
            self._attempt(name, logger.finish, record)
        if record is not None and self._open:
            known = self._known()
            write_json(self._state, {**known, "finished": sorted({*known["finished"], *self._open})})

    def _start(self, names: Sequence[str]) -> None:
        self._open = {}
        if not names:
            return
        known = self._known()
        write_json(self._state, known)
        config = read_json(self._folder / "config.json", dict)
        for name in names:
            kind, _, where = name.partition(":")
            self._open[name] = logger = LOGGERS[kind](where or None)
            last = self._attempt(name, logger.start, config, self._state.parent, known["id"])
            self._last[name] = last or 0

    def _known(self) -> dict[str, Any]:
        """The run's stored identity, by which loggers find it again, and the loggers that have logged all of it."""
        if not self._state.exists():
            return {"id": uuid.uuid4().hex, "finished": []}
        known = read_json(self._state, dict)
        if not isinstance(known.get("id"), str) or not isinstance(known.get("finished"), list):
            raise Damaged(self._state, "it has not the run's id and the loggers that are finished")
        return known

    def _or_give_up(self, do: Callable[..., None], *arguments: Any) -> None:
        """Call a function; an error of the run's files ends the logging, not the run."""
        try:
            do(*arguments)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._open = {}
            self._warn(f"{self._folder}: logging ends, the run continues: {in_words(error)}")

    def _attempt(self, name: str, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout is for results
                return method(*arguments)
        except Exception as error:
            assert self._open is not None
            del self._open[name]
            said = " ".join(traceback.format_exception_only(error)[-1].split())
            self._warn(f"{self._folder}: logger {name!r} is dropped, the run continues: {said}")
            return None
