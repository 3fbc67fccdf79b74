"""The command `noisyact translate`. What it needs is imported inside, so that help is quick."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from noisyact_lab.cli.options import AsJson, print_json

__all__ = ["app"]

app = typer.Typer()


@app.command("translate")
def translate(
    checkpoint: Annotated[Path, typer.Option(help="the folder of a run of `translate`, or of one of its checkpoints")],
    text: Annotated[list[str] | None, typer.Argument(help="sentences; without any: --file, or standard input")] = None,
    file: Annotated[Path | None, typer.Option(help="a text, plain, .gz or .xz, with a sentence a line")] = None,
    beam: Annotated[int, typer.Option(help="hypotheses at a time; 1 is greedy")] = 5,
    length_power: Annotated[float, typer.Option(help="0 ranks by log p, 1 by log p a word")] = 1.0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Translate English into French with a trained model, a line each."""
    from noisyact_lab.data.text import lines as lines_of
    from noisyact_lab.engine.job import resolve
    from noisyact_lab.experiments.translate.from_run import translate_text

    if text and file is not None:
        raise ValueError(f"--file {file}: give either sentences or a file")
    lines = text or (sys.stdin.readlines() if file is None else lines_of(file))
    found = translate_text(checkpoint, lines, beam=beam, length_power=length_power, device=resolve(device))
    for number, line in enumerate(found):
        if line.too_long:
            print(f"noisyact: line {number + 1} is longer than any sentence of training", file=sys.stderr)
        if line.unknown:
            print(f"noisyact: line {number + 1}, unknown words: {' '.join(line.unknown)}", file=sys.stderr)
    if as_json:
        print_json([dataclasses.asdict(line) for line in found])
    else:
        print("\n".join(line.translation for line in found))
