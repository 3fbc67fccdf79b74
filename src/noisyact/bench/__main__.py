"""``python -m noisyact.bench activations|recurrent``: print how fast, against torch in the same run."""

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
from noisyact.bench import activations, recurrent
from noisyact.ops import native
from noisyact.ops.triton import obstacle
from noisyact.tables import text_table


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether every case was right."""
    parser = argparse.ArgumentParser(prog="python -m noisyact.bench", description=__doc__)
    parser.add_argument("what", choices=["activations", "recurrent"])
    parser.add_argument(
        "--elements", type=_positive, help="of x, for activations (default 4194304, on a GPU 268435456)"
    )
    parser.add_argument(
        "--repeats", type=_positive, help="turns whose calls the median is taken of (default 41, recurrent 9)"
    )
    parser.add_argument(
        "--block", type=_positive, help="calls in a row before the other's turn (default 1, recurrent 5)"
    )
    parser.add_argument("--threads", type=_positive, default=torch.get_num_threads(), help="on a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="for activations")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    options = parser.parse_args(arguments)
    if options.elements is None:
        options.elements = 2**22 if options.device == "cpu" else 2**28
    if options.elements % activations.FEATURES:
        parser.error(f"--elements {options.elements}: must be a multiple of {activations.FEATURES}")
    torch.set_num_threads(options.threads)
    setting = _setting(options)
    print("\n".join(f"{key}: {value}" for key, value in setting.items()), flush=True)
    rows, refused = [], []
    for result in _results(options):
        if isinstance(result, Exception):
            refused.append(str(result))
        else:
            rows.append(result)
            print(f"  measured {_name(result)}", file=sys.stderr, flush=True)
    print(_activations_table(rows) if options.what == "activations" else _recurrent_table(rows))
    for reason in refused:
        print(f"REFUSED {reason}")
    if options.json is not None:
        record = {"setting": setting, "rows": [dataclasses.asdict(row) for row in rows], "refused": refused}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if refused else 0


def _results(options: argparse.Namespace) -> Iterator[Any]:
    if options.what == "activations":
        return activations.measure(options.elements, options.repeats or 41, options.device, options.block or 1)
    return recurrent.measure(recurrent.SHAPES, options.repeats or 9, options.threads, options.block or 5)


def _name(row: Any) -> str:
    return row.case if isinstance(row, activations.Row) else f"{row.layer} {row.shape}"


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number of at least 1")
    return int(text)


def _setting(options: argparse.Namespace) -> dict[str, Any]:
    on_cpu = options.device == "cpu" or options.what == "recurrent"
    return {
        "noisyact": noisyact.__version__,
        "torch": torch.__version__,
        "device": f"{platform.machine()} CPU, {options.threads} threads" if on_cpu else torch.cuda.get_device_name(),
        "kernels": native.status() if on_cpu else _gpu_kernels(options.device),
        "date": datetime.date.today().isoformat(),
    }


def _gpu_kernels(device: str) -> str:
    why = obstacle(torch.empty(0, device=device).device)
    return f"Triton {importlib.metadata.version('triton')}" if why is None else f"torch operations: {why}"


def _activations_table(rows: list[activations.Row]) -> str:
    header = ("case", "forward", "hardtanh", "ratio", "fwd+bwd", "hardtanh", "ratio", "formula in torch", "compiled")
    cells = [
        (
            row.case,
            f"{row.forward_ms:.2f} ms",
            f"{row.hardtanh_forward_ms:.2f} ms",
            f"{row.forward_ratio:.2f}",
            f"{row.both_ms:.2f} ms",
            f"{row.hardtanh_both_ms:.2f} ms",
            f"{row.both_ratio:.2f}",
            f"{row.formula_both_ms:.2f} ms",
            "" if row.compiled_both_ms is None else f"{row.compiled_both_ms:.2f} ms",
        )
        for row in rows
    ]
    return text_table(header, cells)


def _recurrent_table(rows: list[recurrent.Row]) -> str:
    header = (
        "layer",
        "T, B, H, layers",
        "fwd ratio",
        "fwd+bwd",
        "torch",
        "ratio",
        "inference",
        "torch",
        "ratio",
        "memory",
    )
    cells = [
        (
            row.layer,
            ", ".join(map(str, row.shape)),
            f"{row.forward_ratio:.2f}",
            f"{row.both_ms:.2f} ms",
            f"{row.torch_both_ms:.2f} ms",
            f"{row.both_ratio:.2f}",
            f"{row.inference_ms:.2f} ms",
            f"{row.torch_inference_ms:.2f} ms",
            f"{row.inference_ratio:.2f}",
            f"{row.memory_ratio:.2f}",
        )
        for row in rows
    ]
    return text_table(header, cells)


if __name__ == "__main__":
    sys.exit(main())
