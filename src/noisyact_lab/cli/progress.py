"""Progress of things that take long: bars with rate and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TextColumn
from rich.progress import Task as Bar
from rich.text import Text

from noisyact_lab.cli.forecast import Forecast

__all__ = ["View"]

_LINE_EVERY = 5.0


class _Told(ProgressColumn):
    """What a function says of the thing that a bar stands for; None stands for all of them."""

    def __init__(self, tell: Callable[[str | None], str], style: str) -> None:
        super().__init__()
        self._tell, self._style = tell, style

    def render(self, task: Bar) -> Text:
        """What it says now."""
        return Text(self._tell(task.fields["name"]), style=self._style)


class View:
    """All that is going on at once, on stderr, so that stdout has results alone.

    Args:
        total: how many things there are in all; a bar counts those that ended where there is more than one.
        what: they are.
    """

    def __init__(self, total: int, what: str) -> None:
        console = Console(stderr=True)
        self._total, self._ended = total, 0
        self._forecast = Forecast(total)
        self._said = time.monotonic()
        self._ids: dict[str, TaskID] = {}
        self._bars = None
        if console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                _Told(self._rate, "progress.data.speed"),
                _Told(self._left, "progress.remaining"),
            )
            self._bars = Progress(*columns, console=console)
            self._all = self._bars.add_task(what, total=total, visible=total > 1, name=None)

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
        self._forecast.at(name, done, total)
        if self._bars is not None:
            if name not in self._ids:
                self._ids[name] = self._bars.add_task(escape(name), total=total, completed=done, name=name)
            self._bars.update(self._ids[name], completed=done, total=total)
        elif time.monotonic() - self._said >= _LINE_EVERY and self._forecast.rate(name) is not None:
            self.say(f"{name}: {done} of {total}, {self._rate(name)}, {self._left(name)} left")

    def ended(self, name: str, text: str) -> None:
        """Something ended; the text says how."""
        self._ended += 1
        self._forecast.ended(name)
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

    def _rate(self, name: str | None) -> str:
        """How many a second; of all things together that is no number to read."""
        rate = None if name is None else self._forecast.rate(name)
        return "" if rate is None else f"{rate:.3g}/s"

    def _left(self, name: str | None) -> str:
        """The remaining time. Rich's own follows how lately a bar moved, which for a bar of whole runs is chance."""
        left = self._forecast.left_of_all() if name is None else self._forecast.left(name)
        return "-:--" if left is None else _duration(left)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
