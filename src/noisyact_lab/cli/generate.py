"""The command `noisyact generate`. What it needs is imported inside, so that help is quick."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from noisyact_lab.cli.options import AsJson, print_json

__all__ = ["app"]

app = typer.Typer()


@app.command("generate")
def generate(
    experiment: Annotated[str, typer.Argument(help="ptb-word, ptb-word-medium or ptb-char")],
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
