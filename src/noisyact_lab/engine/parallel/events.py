"""What is told of many runs while they are at work, and how each of them ended."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Literal

from noisyact_lab.engine.folder.files import Damaged, in_words
from noisyact_lab.engine.job import Job

__all__ = ["Event", "Outcome", "Watch", "check_folders", "in_a_line"]


@dataclasses.dataclass(frozen=True)
class Event:
    """What a run tells: its progress, its end (`record`), its failure, or a warning (`text`)."""

    kind: Literal["progress", "ended", "failed", "warning"]
    done: int = 0
    total: int = 0
    record: dict[str, Any] | None = None
    text: str = ""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended: with a record, or with an error in one line."""

    job: Job
    record: dict[str, Any] | None
    error: str = ""


Watch = Callable[[Job, Event], None]
"""Called in the calling process with every event of every job."""


def check_folders(jobs: Sequence[Job]) -> None:
    """Raise an error unless every job has another folder."""
    if len({job.folder for job in jobs}) < len(jobs):
        raise ValueError("two jobs have the same folder")


def in_a_line(error: Exception) -> str:
    """An error in one line.

    >>> in_a_line(ValueError("c=-1: must not be negative"))
    'ValueError: c=-1: must not be negative'
    >>> in_a_line(OSError(28, "No space left on device"))
    'No space left on device; make room on that disk. What was saved before is kept'
    """
    if isinstance(error, (Damaged, OSError)):
        return in_words(error)
    return " ".join(traceback.format_exception_only(error)[-1].split())
