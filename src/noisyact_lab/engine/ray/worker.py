"""A worker in a Ray cluster: it does runs in a temporary folder and sends back their events and files."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import queue
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from noisyact_lab.data.locate import VARIABLE
from noisyact_lab.engine.folder.files import locked
from noisyact_lab.engine.job import Job
from noisyact_lab.engine.parallel.events import Event, in_a_line
from noisyact_lab.engine.ray.cluster import versions
from noisyact_lab.engine.ray.sync import Changes, Original, apply
from noisyact_lab.engine.run import run

__all__ = ["Worker"]

_SCRATCH = "noisyact-ray-"


class Worker:
    """A process of the cluster. It serves two calls at a time: `do`, which lasts as long as a run, and `hear`.

    Args:
        data: the folder of the data sets, if the environment of the worker's machine names none.
    """

    def __init__(self, data: str | None) -> None:
        if data:
            os.environ.setdefault(VARIABLE, data)
        self._paths = ("", "")
        self._said: queue.SimpleQueue[tuple[Event, Changes]] = queue.SimpleQueue()
        warnings.showwarning = lambda message, *_, **__: self._say(Event("warning", text=str(message)))

    def about(self) -> tuple[str, dict[str, str]]:
        """The name of its machine, and the versions that are installed there."""
        return platform.node(), versions()

    def do(self, job: Job, files: Mapping[str, bytes]) -> None:
        """Do a run whose folder has these files."""
        torch.set_num_threads(1)
        try:
            with _scratch() as out:
                self._paths = str(out), str(job.out)
                mine = dataclasses.replace(job, out=out)
                apply(mine.folder, Changes(files))
                changes = Original(mine.folder).changes
                record = run(mine, lambda done, total, _: self._say(Event("progress", done, total), changes()))
                self._say(Event("ended", record=record), changes())
        except Exception as error:
            self._say(Event("failed", text=in_a_line(error)))

    def hear(self) -> list[tuple[Event, Changes]]:
        """Wait for events of the run; each comes with what has changed in its folder."""
        said = [self._said.get()]
        while not self._said.empty():
            said.append(self._said.get())
        return said

    def _say(self, event: Event, changes: Changes | None = None) -> None:
        here, there = self._paths
        text = event.text.replace(here, there) if here else event.text
        self._said.put((dataclasses.replace(event, text=text), changes or Changes()))


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder for one run; those of killed workers are removed."""
    for old in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError, ValueError):
            if time.time() - old.stat().st_mtime > 60:  # a newer one may not be locked yet
                with locked(old):
                    shutil.rmtree(old)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH) as folder, locked(Path(folder)):
        yield Path(folder)
