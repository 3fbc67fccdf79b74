"""Progress of long work: bars with rate and remaining time on a terminal, plain lines elsewhere."""

from __future__ import annotations

import dataclasses
import heapq
import statistics
import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TextColumn
from rich.progress import Task as Bar
from rich.table import Column
from rich.text import Text

__all__ = ["Forecast", "View"]

_LINE_EVERY = 5.0


class _Told(ProgressColumn):
    """A column whose text a function returns for the name of a bar; the name None is the bar for all."""

    def __init__(self, tell: Callable[[str | None], str], style: str) -> None:
        super().__init__(Column(no_wrap=True))
        self._tell, self._style = tell, style

    def render(self, task: Bar) -> Text:
        """The text for one bar."""
        return Text(self._tell(task.fields["name"]), style=self._style)


class View:
    """Shows the progress of several things at once, on stderr: stdout is for results.

    Args:
        total: how many things there are; if more than one, a bar counts those that have ended.
        what: the label of that bar.
    """

    def __init__(self, total: int, what: str) -> None:
        console = Console(stderr=True)
        self._total, self._ended = total, 0
        self._forecast = Forecast(total)
        self._said = time.monotonic()
        self._ids: dict[str, TaskID] = {}
        self._bars = None
        if console.is_terminal:
            columns = (  # in a narrow terminal names are wrapped and bars are short, and the numbers stay
                TextColumn("{task.description}", table_column=Column(overflow="fold")),
                BarColumn(16),
                MofNCompleteColumn(table_column=Column(no_wrap=True)),
                _Told(self._rate, "progress.data.speed"),
                _Told(self._left, "progress.remaining"),
            )
            self._bars = Progress(*columns, console=console)
            self._all = self._bars.add_task(what, total=total, visible=total > 1, name=None)

    def __enter__(self) -> View:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def at(self, name: str, done: int, total: int) -> None:
        """Show how far something is."""
        self._forecast.at(name, done, total)
        if self._bars is not None:
            self._bars.start()  # only now: an error before the first report is then a line without bars
            if name not in self._ids:
                self._ids[name] = self._bars.add_task(escape(name), total=total, completed=done, name=name)
            self._bars.update(self._ids[name], completed=done, total=total)
        elif time.monotonic() - self._said >= _LINE_EVERY and self._forecast.rate(name) is not None:
            self.say(f"{name}: {done} of {total}, {self._rate(name)}, {self._left(name)} left")

    def ended(self, name: str, text: str) -> None:
        """Show that something has ended; the text says how."""
        self._ended += 1
        self._forecast.ended(name)
        if self._bars is not None:
            self._bars.update(self._all, completed=self._ended)
            if name in self._ids:
                self._bars.remove_task(self._ids.pop(name))
        count = f"[{self._ended}/{self._total}] " if self._total > 1 else ""
        self.say(f"{count}{name}: {text}")

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._said = time.monotonic()
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def _rate(self, name: str | None) -> str:
        """Updates per second; for the bar of all things the number would mean nothing."""
        rate = None if name is None else self._forecast.rate(name)
        return "" if rate is None else f"{rate:.3g}/s"

    def _left(self, name: str | None) -> str:
        """The remaining time. Rich's estimate depends on when a bar last moved, which is chance for whole runs."""
        left = self._forecast.left_of_all() if name is None else self._forecast.left(name)
        return "-:--" if left is None else _duration(left)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


@dataclasses.dataclass
class _Course:
    """One run: its steps and the time at the first report and at the last."""

    first: int
    began: float
    done: int
    total: int
    seen: float

    @property
    def rate(self) -> float | None:
        """Steps per second from the first report to the last; None until there are two."""
        if self.done <= self.first or self.seen <= self.began:
            return None
        return (self.done - self.first) / (self.seen - self.began)

    @property
    def whole(self) -> float | None:
        """The seconds that the whole run takes at this rate."""
        return None if self.rate is None else self.total / self.rate

    def left(self, now: float, usual: float | None = None) -> float | None:
        """Seconds left, by the run's own rate, or else by what such a run usually takes."""
        whole = usual if self.whole is None else self.whole
        if whole is None:
            return None
        return max(0.0, whole * (self.total - self.done) / max(self.total, 1) - (now - self.seen))


class Forecast:
    """The remaining time of `total` runs, several of which may be under way at the same time.

    A waiting run is expected to take as long as the others do on average, and to begin when one of those under way
    ends. The rate at which runs end is no measure: concurrent runs end together, and then none for a long time.
    """

    def __init__(self, total: int) -> None:
        self._total, self._ended, self._side_by_side = total, 0, 1
        self._under_way: dict[str, _Course] = {}
        self._took: list[float] = []

    def at(self, name: str, done: int, total: int) -> None:
        """Take note of how many steps a run has done."""
        now = time.monotonic()
        course = self._under_way.get(name)
        if course is None or done < course.done:  # it begins, or resumes from its checkpoint elsewhere
            self._under_way[name] = _Course(done, now, done, total, now)
            self._side_by_side = max(self._side_by_side, len(self._under_way))
        else:
            course.done, course.total, course.seen = done, total, now

    def ended(self, name: str) -> None:
        """Take note that a run ended. One that reported no step was finished before, and does not count."""
        self._ended += 1
        course = self._under_way.pop(name, None)
        if course is not None and course.whole is not None:
            self._took.append(course.whole)

    def rate(self, name: str) -> float | None:
        """Steps per second of a run under way."""
        course = self._under_way.get(name)
        return None if course is None else course.rate

    def left(self, name: str) -> float | None:
        """Seconds left of a run under way; None if that is not known yet."""
        course = self._under_way.get(name)
        return None if course is None else course.left(time.monotonic())

    def left_of_all(self) -> float | None:
        """Seconds until the last run ends; None if nothing is known yet."""
        now, courses = time.monotonic(), list(self._under_way.values())  # another thread may draw the bars
        known = [*self._took, *(course.whole for course in courses if course.whole is not None)]
        if not known:
            return 0.0 if self._ended >= self._total else None
        usual = statistics.fmean(known)
        ends = [course.left(now, usual) or 0.0 for course in courses]
        ends += [0.0] * (self._side_by_side - len(ends))  # the next run takes such a place at once
        heapq.heapify(ends)
        for _ in range(self._total - self._ended - len(courses)):
            heapq.heappush(ends, heapq.heappop(ends) + usual)
        return max(ends)
