"""How much longer runs take: each by its own speed, and all of them by how they will follow each other."""

from __future__ import annotations

import dataclasses
import heapq
import statistics
import time

__all__ = ["Forecast"]


@dataclasses.dataclass
class _Course:
    """What is known of one run: where and when it was first seen, where and when last."""

    first: int
    began: float
    done: int
    total: int
    seen: float

    @property
    def rate(self) -> float | None:
        """Steps a second, from the first report to the last; None until there are two."""
        if self.done <= self.first or self.seen <= self.began:
            return None
        return (self.done - self.first) / (self.seen - self.began)

    @property
    def whole(self) -> float | None:
        """The seconds of such a run from its first step to its last."""
        return None if self.rate is None else self.total / self.rate

    def left(self, now: float, usual: float | None = None) -> float | None:
        """Seconds from now on, by its own speed or else by what such a run usually takes."""
        whole = usual if self.whole is None else self.whole
        if whole is None:
            return None
        return max(0.0, whole * (self.total - self.done) / max(self.total, 1) - (now - self.seen))


class Forecast:
    """The remaining time of `total` runs, several of which may be under way at the same time.

    A run that waits is expected to take as long as the others do in the mean, and to begin when one of those under way
    ends. How quickly runs end one after the other says nothing: side by side they end together, and then none for long.
    """

    def __init__(self, total: int) -> None:
        self._total, self._ended, self._side_by_side = total, 0, 1
        self._under_way: dict[str, _Course] = {}
        self._took: list[float] = []

    def at(self, name: str, done: int, total: int) -> None:
        """A run has done so many of its steps."""
        now = time.monotonic()
        course = self._under_way.get(name)
        if course is None or done < course.done:  # it begins, or resumes from its checkpoint elsewhere
            self._under_way[name] = _Course(done, now, done, total, now)
            self._side_by_side = max(self._side_by_side, len(self._under_way))
        else:
            course.done, course.total, course.seen = done, total, now

    def ended(self, name: str) -> None:
        """A run ended. One that never reported a step was finished before and says nothing of the others."""
        self._ended += 1
        course = self._under_way.pop(name, None)
        if course is not None and course.whole is not None:
            self._took.append(course.whole)

    def rate(self, name: str) -> float | None:
        """Steps a second of a run under way."""
        course = self._under_way.get(name)
        return None if course is None else course.rate

    def left(self, name: str) -> float | None:
        """Seconds that a run under way still takes; None where that is not known yet."""
        course = self._under_way.get(name)
        return None if course is None else course.left(time.monotonic())

    def left_of_all(self) -> float | None:
        """Seconds until the last run ends; None where nothing is known yet."""
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
