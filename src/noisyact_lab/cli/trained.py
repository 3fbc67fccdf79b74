"""The commands that use trained runs: `generate` and `translate`. What they need is imported inside them."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from noisyact_lab.cli.options import AsJson, print_json

__all__ = ["app"]

app = typer.Typer()


@app.command("generate")
def generate(
    experiment: Annotated[str, typer.Argument(help="ptb-word, ptb-word-medium, ptb-word-zoneout or ptb-char")],
    checkpoint: Annotated[Path, typer.Option(help="the folder of a run, or of one of its checkpoints")],
    prompt: Annotated[str, typer.Option(help="the beginning of a line, in the words the model knows")] = "",
    words: Annotated[int, typer.Option(help="to draw")] = 50,
    temperature: Annotated[float, typer.Option(help="1: the model's probabilities; 0: always the likeliest")] = 1.0,
    seed: Annotated[int, typer.Option(help="of the draws")] = 0,
    as_json: AsJson = False,
) -> None:
    """Draw text from a trained language model."""
    from noisyact_lab.engine.experiment import load_experiment
    from noisyact_lab.tasks.generate import generate as draw

    drawn = draw(load_experiment(experiment), checkpoint, prompt, words=words, temperature=temperature, seed=seed)
    if as_json:
        print_json(dataclasses.asdict(drawn))
    else:
        print(drawn.whole)


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
