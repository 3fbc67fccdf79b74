"""The run of a grid: its options, its record, written whole after every case and resumed, and its end."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

from noisyact.text_table import terminal_width
from noisyact_lab.bench.grid.cases import Bounds, Case, draw, fixed
from noisyact_lab.bench.grid.measure import Effort, Refused, Row, checked, measure
from noisyact_lab.bench.grid.summary import summary
from noisyact_lab.engine.folder.files import Damaged, read_json, write_json

__all__ = ["GRID_OPTIONS", "Plan", "add_options", "run"]

_DEFAULTS = {"cuda": {"cases": 200, "max_gflop": 2000.0, "max_gib": 16.0},
             "cpu": {"cases": 40, "max_gflop": 4.0, "max_gib": 1.0}}  # fmt: skip
_SUFFIXES = (".png", ".svg", ".pdf")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a grid measures. Two records with equal plans have the same cases in the same order."""

    device: str
    cases: int
    seed: int
    max_gflop: float
    max_gib: float

    def drawn(self) -> tuple[list[Case], dict[str, int]]:
        """All cases, the fixed ones first, and how many drawn ones each rule rejected."""
        cases, rejected = draw(self.cases, self.seed, self.device, Bounds(self.max_gflop, self.max_gib))
        return [*fixed(self.device), *cases], rejected


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `recurrent --grid`. Those that are None are set by the device."""
    group = parser.add_argument_group("the grid", "recurrent layers on cases drawn from the whole space of sizes")
    group.add_argument("--grid", action="store_true", help="measure drawn cases instead of the table's (recurrent)")
    group.add_argument("--cases", type=_whole, help="number of drawn cases (default 200, on a CPU 40)")
    group.add_argument("--seed", type=_whole, help="seed of the draw (default 0)")
    group.add_argument("--max-gflop", type=_number, help="most work of a case (default 2000, on a CPU 4)")
    group.add_argument("--max-gib", type=_number, help="most memory of a case (default 16, on a CPU 1)")
    group.add_argument("--minutes", type=_number, help="stop before the next case after this time")
    group.add_argument("--seconds", type=_number, help="measured for each column of a case on a CPU (default 1)")
    group.add_argument("--processes", type=_whole, help="check the cases in this many processes before measuring")
    group.add_argument("--figure", type=_figure, help=f"draw the map to this file, one of {', '.join(_SUFFIXES)}")


GRID_OPTIONS = ("cases", "seed", "max_gflop", "max_gib", "minutes", "seconds", "processes", "figure")


def _whole(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number of at least 0")
    return int(text)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a positive number")
    return value


def _figure(text: str) -> Path:
    if Path(text).suffix not in _SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text!r}: must end with {', '.join(_SUFFIXES)}")
    return Path(text)


def run(options: argparse.Namespace, setting: dict[str, Any]) -> int:
    """Measure the grid, print its summary, and return 1 if a case was refused, else 0."""
    kind = options.device.partition(":")[0]
    defaults = _DEFAULTS[kind] | {"seed": 0}
    chosen = {name: default if getattr(options, name) is None else getattr(options, name)
              for name, default in defaults.items()}  # fmt: skip
    plan = Plan(kind, **chosen)
    cases, rejected = plan.drawn()
    on_gpu = {"times": "least times"}
    setting = setting | (_machine(options.threads) if kind == "cpu" else on_gpu)
    record = _Record(options.json, plan, setting, rejected)
    print(f"{plan}\n{_said(rejected, plan)}", flush=True)
    effort = Effort(options.repeats or 8, options.seconds or 1.0, options.threads)
    start, done = time.monotonic(), record.names()
    found = _checked([case for case in cases if case.name not in done], options.device, options.processes or 0)
    for number, case in enumerate(cases, start=1):
        if case.name in done:
            continue
        if options.minutes is not None and time.monotonic() - start > 60 * options.minutes:
            break
        try:
            record.add(measure(case, options.device, effort, found.get(case.name)))
        except Refused as error:
            record.refuse(case, str(error))
        print(f"  {number}/{len(cases)} {case.name}", file=sys.stderr, flush=True)
    print(summary(record.rows, terminal_width()) if record.rows else "no case was measured")
    for reason in record.refused.values():
        print(f"REFUSED {reason}")
    reached = len(record.names())
    if reached < len(cases):
        again = " The same command with the same --json goes on." if options.json else ""
        print(f"stopped after {options.minutes:g} minutes: {reached} of {len(cases)} cases are done.{again}")
    if options.figure is not None:
        _draw(options.figure, record.rows, setting, plan)
    return 1 if record.refused else 0


def _checked(cases: list[Case], device: str, processes: int) -> dict[str, str | None]:
    """Check the cases side by side, which takes most of the time on a GPU: it compiles, and runs the reference."""
    if processes < 1:
        return {}
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=8) as pool:
        found = pool.map(functools.partial(checked, device=device), cases, chunksize=1)
    return {case.name: how for case, how in zip(cases, found, strict=True)}


def _machine(threads: int) -> dict[str, Any]:
    """What the times are, and how much else used the machine when the grid began."""
    return {
        "times": f"least {'CPU' if threads == 1 else 'wall clock'} time of alternating calls",
        "cores": os.cpu_count(), "niceness": os.nice(0), "load_average": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def _said(rejected: dict[str, int], plan: Plan) -> str:
    if not rejected:
        return f"all of {plan.cases} drawn cases are within the bounds"
    rules = ", ".join(f"{count} for {rule}" for rule, count in sorted(rejected.items()))
    return f"of {plan.cases + sum(rejected.values())} drawn cases {sum(rejected.values())} were rejected: {rules}"


def _draw(path: Path, rows: list[Row], setting: dict[str, Any], plan: Plan) -> None:
    from noisyact_lab.bench.grid.map import save_map  # imports matplotlib, which only the map needs

    drawn = [row for row in rows if not row.case.fixed]
    if not drawn:
        print(f"{path}: not drawn, because no drawn case was measured")
        return
    title = (
        f"Forward and backward with NAH noise over torch's layer, {setting['device']}, torch {setting['torch']}\n"
        f"{len(drawn)} cases drawn with seed {plan.seed}, at most {plan.max_gflop:g} GFLOP each"
    )
    save_map(drawn, path, title)
    print(path)


class _Record:
    """The rows so far. If there is a path, the file is replaced whole after every case, and resumed if it exists."""

    def __init__(self, path: Path | None, plan: Plan, setting: dict[str, Any], rejected: dict[str, int]) -> None:
        self.path, self.rows, self.refused = path, [], {}
        self.head = {"setting": setting, "grid": dataclasses.asdict(plan), "rejected": rejected}
        if path is not None and path.exists():
            self._resume(path)

    def _resume(self, path: Path) -> None:
        found = read_json(path, dict)
        ours = (self.head["grid"], _lasting(self.head["setting"]))
        try:
            theirs = (found["grid"], _lasting(found["setting"]))
            rows = [_row(row) for row in found["rows"]]
            refused = {one["case"]: one["why"] for one in found["refused"]}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Damaged(path, f"it is no record of a grid ({type(error).__name__}: {error})") from None
        if ours != theirs:
            raise ValueError(f"--json {path}: it holds another grid or setting ({theirs}); choose another file")
        self.head["setting"] = found["setting"]
        self.rows, self.refused = rows, refused

    def names(self) -> set[str]:
        """The cases that are done."""
        return {row.case.name for row in self.rows} | self.refused.keys()

    def add(self, row: Row) -> None:
        """Add a measured case."""
        self.rows.append(row)
        self._write()

    def refuse(self, case: Case, why: str) -> None:
        """Add a case that was not measured."""
        self.refused[case.name] = why
        self._write()

    def _write(self) -> None:
        if self.path is not None:
            rows = [dataclasses.asdict(row) for row in self.rows]
            refused = [{"case": name, "why": why} for name, why in self.refused.items()]
            write_json(self.path, self.head | {"rows": rows, "refused": refused})


def _lasting(setting: dict[str, Any]) -> dict[str, Any]:
    """What must be the same when a grid is resumed."""
    return {key: value for key, value in setting.items() if key not in ("date", "niceness", "load_average")}


def _row(found: dict[str, Any]) -> Row:
    case = Case(**found.pop("case"))
    return Row(case, **found)
