"""Progress of things that take long: bars with rate and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Task as Bar
from rich.text import Text

__all__ = ["View"]

_LINE_EVERY = 5.0


class _Rate(ProgressColumn):
    def render(self, task: Bar) -> Text:
        """How many a second."""
        return Text(f"{task.speed:.3g}/s" if task.speed else "", style="progress.data.speed")


class View:
    """All that is going on at once, on stderr, so that stdout has results alone.

    Args:
        total: how many things there are in all; a bar counts those that ended where there is more than one.
        what: they are.
    """

    def __init__(self, total: int, what: str) -> None:
        console = Console(stderr=True)
        self._total, self._ended = total, 0
        self._began: dict[str, tuple[float, int]] = {}
        self._said = time.monotonic()
        self._ids: dict[str, TaskID] = {}
        self._bars = None
        if console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                _Rate(),
                TimeRemainingColumn(),
            )
            self._bars = Progress(*columns, console=console)
            self._all = self._bars.add_task(what, total=total, visible=total > 1)

    def __enter__(self) -> View:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def at(self, name: str, done: int, total: int) -> None:
        """Something is so far."""
        now = time.monotonic()
        began, first = self._began.setdefault(name, (now, done))
        if self._bars is not None:
            if name not in self._ids:
                self._ids[name] = self._bars.add_task(escape(name), total=total, completed=done)
            self._bars.update(self._ids[name], completed=done, total=total)
        elif now - self._said >= _LINE_EVERY and done > first:
            rate = (done - first) / (now - began)
            self.say(f"{name}: {done} of {total}, {rate:.3g}/s, {_duration((total - done) / rate)} left")

    def ended(self, name: str, text: str) -> None:
        """Something ended; the text says how."""
        self._ended += 1
        if self._bars is not None:
            self._bars.update(self._all, completed=self._ended)
            if name in self._ids:
                self._bars.remove_task(self._ids.pop(name))
        count = f"[{self._ended}/{self._total}] " if self._total > 1 else ""
        self.say(f"{count}{name}: {text}")

    def say(self, text: str) -> None:
        """A line for the reader, above the bars."""
        self._said = time.monotonic()
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
