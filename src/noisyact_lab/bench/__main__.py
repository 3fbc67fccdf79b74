"""Benchmarks against torch: ``python -m noisyact_lab.bench activations|recurrent|resets|attention|search|updates``."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import noisyact
from noisyact.ops import native
from noisyact.ops.triton import obstacle
from noisyact.text_table import terminal_width
from noisyact_lab.bench import activations, attention, recurrent, recurrent_gpu, resets, search, updates
from noisyact_lab.bench.grid import run as grid
from noisyact_lab.bench.timing import keep_freed_memory
from noisyact_lab.engine.folder.files import in_words, write_text
from noisyact_lab.engine.folder.records import commit


def main(arguments: list[str] | None = None) -> int:
    """Run a benchmark and print its table. The exit code is 1 if a case was refused, such as for wrong results."""
    parser = argparse.ArgumentParser(prog="python -m noisyact_lab.bench", description=__doc__)
    parser.add_argument("what", choices=["activations", "recurrent", "resets", "attention", "search", "updates"])
    parser.add_argument(
        "--elements", type=_positive, help="size of the input, for activations (default 4194304, on a GPU 268435456)"
    )
    parser.add_argument(
        "--repeats",
        type=_positive,
        help="number of measurements for the median (default: activations 41, search 3, others 9); for resets on a "
        "CPU, seconds",
    )
    parser.add_argument(
        "--block", type=_positive, help="consecutive calls in each turn (default 1, recurrent on a CPU 5)"
    )
    parser.add_argument("--threads", type=_positive, default=torch.get_num_threads(), help="number of CPU threads")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="such as cpu or cuda")
    parser.add_argument("--json", type=Path, help="also write the results to this file; --grid resumes it")
    grid.add_options(parser)
    options = parser.parse_args(arguments)
    _check_grid(parser, options)
    _check_device(parser, options.device)
    if options.json is not None and not options.json.parent.is_dir():  # else it would be said after the measurement
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}")
    if options.elements is None:
        options.elements = 2**22 if options.device == "cpu" else 2**28
    if options.elements % activations.FEATURES:
        parser.error(f"--elements {options.elements}: must be a multiple of {activations.FEATURES}")
    torch.set_num_threads(options.threads)
    setting = _setting(options)
    print("\n".join(f"{key}: {value}" for key, value in setting.items()), flush=True)
    if options.grid:
        return grid.run(options, setting)
    rows, refused = [], []
    bench, results = _results(options)
    for result in results:
        if isinstance(result, Exception):
            refused.append(str(result))
        else:
            rows.append(result)
            print(f"  measured {_name(result)}", file=sys.stderr, flush=True)
    print(bench.table(rows, terminal_width()))
    for reason in refused:
        print(f"REFUSED {reason}")
    if options.json is not None:
        record = {"setting": setting, "rows": [dataclasses.asdict(row) for row in rows], "refused": refused}
        write_text(options.json, json.dumps(record, indent=1) + "\n")
    return 1 if refused else 0


def _check_grid(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Stop if an option of the grid is given without --grid, or --grid with another benchmark."""
    if options.grid and options.what != "recurrent":
        parser.error(f"--grid: only `recurrent` has a grid, not {options.what!r}")
    for name in grid.GRID_OPTIONS:
        if not options.grid and getattr(options, name) is not None:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: needs --grid")


def _check_device(parser: argparse.ArgumentParser, name: str) -> None:
    """Stop unless the device is there: a CPU or one of the GPUs."""
    gpus = torch.cuda.device_count()
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        parser.error(f"--device {name}: must be cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= gpus:
        parser.error(f"--device {name}: there are {gpus} CUDA devices here")


def _results(options: argparse.Namespace) -> tuple[Any, Iterator[Any]]:
    """Return the benchmark's module and an iterator that measures one row at a time."""
    if options.what == "activations":
        rows = activations.measure(options.elements, options.repeats or 41, options.device, options.block or 1)
        return activations, rows
    if options.what == "attention":
        return attention, attention.measure(options.repeats or 9, options.device)
    if options.what == "search":
        return search, search.measure(options.repeats or 3, options.device)
    if options.what == "updates":
        return updates, updates.measure(options.repeats or 9, options.device)
    if options.what == "resets":
        return resets, resets.measure(resets.SHAPES, options.repeats or 9, options.threads, options.device)
    if options.device == "cpu":
        return recurrent, recurrent.measure(recurrent.SHAPES, options.repeats or 9, options.threads, options.block or 5)
    return recurrent_gpu, recurrent_gpu.measure(recurrent_gpu.CASES, options.repeats or 9)


def _name(row: Any) -> str:
    if isinstance(row, attention.Row):
        return row.model
    if isinstance(row, search.Row):
        return "beam search"
    if isinstance(row, updates.Row):
        return f"{row.experiment} {row.arm}"
    return row.case if isinstance(row, activations.Row) else " ".join(map(str, (row.layer, row.shape)))


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number of at least 1")
    return int(text)


def _setting(options: argparse.Namespace) -> dict[str, Any]:
    on_cpu = options.device == "cpu"
    allocator = {"allocator": keep_freed_memory()} if on_cpu and options.what == "activations" else {}
    return {
        "noisyact": noisyact.__version__,
        "commit": commit(),
        "torch": torch.__version__,
        "device": f"{platform.machine()} CPU, {options.threads} threads" if on_cpu else torch.cuda.get_device_name(),
        "kernels": native.status() if on_cpu else _gpu_kernels(options.device),
        **allocator,
        **({"times": "CPU time of the thread"} if on_cpu and options.threads == 1 else {}),
        "date": datetime.date.today().isoformat(),
    }


def _gpu_kernels(device: str) -> str:
    why = obstacle(torch.empty(0, device=device).device)
    return f"Triton {importlib.metadata.version('triton')}" if why is None else f"torch operations: {why}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError) as error:
        sys.exit(f"python -m noisyact_lab.bench: {in_words(error)}")
