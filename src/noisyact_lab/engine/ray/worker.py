"""A worker in a Ray cluster: it does runs in a folder of its own and tells of them."""

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
from noisyact_lab.engine.folder.files import alone_in
from noisyact_lab.engine.folder.sync import Changes, Original, apply
from noisyact_lab.engine.parallel.processes import Event, Job, in_a_line
from noisyact_lab.engine.ray.cluster import versions

__all__ = ["Worker"]

_SCRATCH = "noisyact-ray-"


class Worker:
    """A process of the cluster. Two calls are at work in it at a time: `do`, for as long as a run takes, and `hear`.

    Args:
        data: where the data are, if this machine does not say it.
    """

    def __init__(self, data: str | None) -> None:
        if data:
            os.environ.setdefault(VARIABLE, data)
        self._paths = ("", "")
        self._said: queue.SimpleQueue[tuple[Event, Changes]] = queue.SimpleQueue()
        warnings.showwarning = lambda message, *_, **__: self._say(Event("warning", text=str(message)))

    def about(self) -> tuple[str, dict[str, str]]:
        """Its machine, and what is installed there."""
        return platform.node(), versions()

    def do(self, job: Job, files: Mapping[str, bytes]) -> None:
        """Do a run of which there are such files in its folder."""
        torch.set_num_threads(1)
        try:
            with _scratch() as out:
                self._paths = str(out), str(job.out)
                mine = dataclasses.replace(job, out=out)
                apply(mine.folder, Changes(files))
                changes = Original(mine.folder).changes
                record = mine.do(lambda done, total, _: self._say(Event("progress", done, total), changes()))
                self._say(Event("ended", record=record), changes())
        except Exception as error:
            self._say(Event("failed", text=in_a_line(error)))

    def hear(self) -> list[tuple[Event, Changes]]:
        """What the run said and what changed in its folder since this was last asked, when there is something."""
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
    """A folder for one run; those that killed workers have left behind go."""
    for old in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError, ValueError):
            if time.time() - old.stat().st_mtime > 60:  # else it may be so new that it is not locked yet
                with alone_in(old):
                    shutil.rmtree(old)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH) as folder, alone_in(Path(folder)):
        yield Path(folder)
