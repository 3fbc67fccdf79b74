"""``python -m noisyact.bench activations``: print how fast, against torch in the same run."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch

import noisyact
from noisyact.bench import activations
from noisyact.ops import native
from noisyact.tables import text_table


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether every case was right."""
    parser = argparse.ArgumentParser(prog="python -m noisyact.bench", description=__doc__)
    parser.add_argument("what", choices=["activations"])
    parser.add_argument("--elements", type=_positive, default=4 * 2**20, help="of x (default 4194304)")
    parser.add_argument("--repeats", type=_positive, default=41, help="runs whose median is taken (default 41)")
    parser.add_argument("--threads", type=_positive, default=torch.get_num_threads(), help="on a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    options = parser.parse_args(arguments)
    if options.elements % activations.FEATURES:
        parser.error(f"--elements {options.elements}: must be a multiple of {activations.FEATURES}")
    torch.set_num_threads(options.threads)
    setting = _setting(options)
    print("\n".join(f"{key}: {value}" for key, value in setting.items()), flush=True)
    rows, refused = [], []
    for result in activations.measure(options.elements, options.repeats, options.device):
        if isinstance(result, activations.Row):
            rows.append(result)
            print(f"  measured {result.case}", file=sys.stderr, flush=True)
        else:
            refused.append(str(result))
    print(_table(rows))
    for reason in refused:
        print(f"REFUSED {reason}")
    if options.json is not None:
        record = {"setting": setting, "rows": [dataclasses.asdict(row) for row in rows], "refused": refused}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if refused else 0


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number of at least 1")
    return int(text)


def _setting(options: argparse.Namespace) -> dict[str, Any]:
    on_cpu = options.device == "cpu"
    return {
        "noisyact": noisyact.__version__,
        "torch": torch.__version__,
        "device": f"{platform.machine()} CPU, {options.threads} threads" if on_cpu else torch.cuda.get_device_name(),
        "kernels": native.status() if on_cpu else "torch operations",
        "elements": options.elements,
        "repeats": options.repeats,
        "date": datetime.date.today().isoformat(),
    }


def _table(rows: list[activations.Row]) -> str:
    header = ("case", "forward", "hardtanh", "ratio", "fwd+bwd", "hardtanh", "ratio", "formula in torch")
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
        )
        for row in rows
    ]
    return text_table(header, cells)


if __name__ == "__main__":
    sys.exit(main())
