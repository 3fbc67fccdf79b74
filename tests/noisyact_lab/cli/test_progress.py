"""Remaining times: of each run and of all of them, by a clock that the test turns."""

import re
import time

import pytest

from noisyact_lab.cli.progress import Forecast, View


@pytest.fixture(name="clock")
def turned_by_hand(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def simulate(clock, slots, seconds, look):
    """Runs of these lengths, `slots` at a time, that report ten times each; calls `look(forecast, left in truth)`."""
    forecast, free, starts = Forecast(len(seconds)), [0.0] * slots, []
    for length in seconds:
        starts.append(min(free))
        free[free.index(starts[-1])] += length
    steps = [(starts[r] + k / 10 * length, k < 10, r, k) for r, length in enumerate(seconds) for k in range(11)]
    for when, goes_on, run, step in sorted(steps):  # at one moment a run ends before the next begins
        clock[0] = when
        forecast.at(f"run {run}", 100 * step, 1000)
        if not goes_on:
            forecast.ended(f"run {run}")
        look(forecast, max(free) - when)


@pytest.mark.parametrize(("slots", "runs"), [(1, 3), (2, 2), (2, 3), (2, 8), (4, 10)])
def test_equal_runs_side_by_side(clock, slots, runs):
    """From the second report on the remaining time is the true one, also at the moment when several runs end."""
    seen = []

    def look(forecast, truth):
        left = forecast.left_of_all()
        if left is None:
            assert clock[0] <= 10.0
        else:
            seen.append(left)
            assert left == pytest.approx(truth, abs=1e-6), clock[0]

    simulate(clock, slots, [100.0] * runs, look)
    assert len(seen) > 9 * runs


def test_two_runs_that_ended_together_do_not_shorten_the_others(clock):
    """Ten seconds were shown where the runs under way had each 1:41 to go."""
    forecast = Forecast(6)
    for step in range(11):
        clock[0] = 20.2 * step
        forecast.at("a", step, 10)
        clock[0] += 0.2
        forecast.at("b", step, 10)
    forecast.ended("a")
    clock[0] += 0.1
    forecast.ended("b")
    for step in range(6):
        clock[0] = 202.3 + 20.2 * step
        forecast.at("c", step, 10)
        forecast.at("d", step, 10)
    assert forecast.left("c") == pytest.approx(101.0)
    assert forecast.left_of_all() == pytest.approx(101.0 + 202.0)  # and then e and f
    clock[0] += 50.0
    assert forecast.left_of_all() == pytest.approx(51.0 + 202.0)


def test_unequal_runs_end_with_the_slowest(clock):
    forecast = Forecast(2)
    for now, quick, slow in ((0.0, 0, 0), (10.0, 500, 10)):
        clock[0] = now
        forecast.at("quick", quick, 1000)
        forecast.at("slow", slow, 1000)
    assert forecast.left("quick") == pytest.approx(10.0)
    assert forecast.left_of_all() == forecast.left("slow") == pytest.approx(990.0)


def test_what_was_done_before_counts_for_nothing(clock):
    """Runs that are found finished take no time, and one that is resumed is measured from where it resumes."""
    forecast = Forecast(4)
    forecast.ended("found finished")
    assert forecast.left_of_all() is None
    forecast.at("resumed", 900, 1000)
    clock[0] = 10.0
    forecast.at("resumed", 950, 1000)
    assert forecast.rate("resumed") == 5.0
    assert forecast.left("resumed") == 10.0
    assert forecast.left_of_all() == 10.0 + 2 * 200.0
    forecast.at("resumed", 900, 1000)  # its worker was lost: it resumes from its checkpoint
    assert forecast.left("resumed") is None
    assert Forecast(0).left_of_all() == 0.0


def test_the_bar_of_all_runs_shows_it(clock, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with View(4, "runs") as view:
        for step in range(11):
            clock[0] = 10.0 * step
            view.at("a", step, 10)
            view.at("b", step, 10)
        view.ended("a", "finished")
        view.ended("b", "finished")
        view.at("c", 0, 10)
        view.at("d", 0, 10)
        clock[0] += 20.0
        view.at("c", 2, 10)
        view.at("d", 2, 10)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    last = {line.split()[0]: line.split()[-1] for line in plain.splitlines() if re.match(r"(runs|c|d) ", line)}
    assert last == {"runs": "1:20", "c": "1:20", "d": "1:20"}


@pytest.mark.parametrize("columns", [60, 80])
def test_long_names_leave_room_for_the_numbers(columns, clock, monkeypatch, capsys):
    """They took the whole line of a sweep."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    name = "unique nan-annealed-curriculum seed 0 c=0.5 updates=2000 evaluate_every=200"
    with View(2, "runs") as view:
        for done in (0, 200):
            view.at(name, done, 2000)
            clock[0] += 100.0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    last = "runs " + plain.rpartition("runs ")[2]
    assert max(map(len, last.splitlines())) <= columns
    assert last.splitlines()[0].split()[-1] == "30:00"  # 900 s by the rate, 100 of them gone, and a run of 1,000 s
    assert last.splitlines()[1].split()[-3:] == ["200/2000", "2/s", "13:20"]
    assert columns < 80 or all(word in last for word in name.split())
