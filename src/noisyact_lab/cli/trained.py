"""The commands that use trained models: `generate`, `translate` and `pretrained`. They import what they need inside."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noisyact_lab.cli.options import AsJson, print_json, width

if TYPE_CHECKING:
    from noisyact_lab.pretrained.card import Card

__all__ = ["app", "pretrained"]

app = typer.Typer()
pretrained = typer.Typer(help="Trained models that are shipped, and models made from runs.", no_args_is_help=True)

Checkpoint = Annotated[
    Path | None,
    typer.Option(
        help="the folder of a run, or of one of its checkpoints, or the card of an exported model (default: the model "
        "that is shipped)"
    ),
]


@app.command("generate")
def generate(
    experiment: Annotated[
        str | None, typer.Argument(help="of the checkpoint: europarl-word, ptb-word, ptb-word-medium, ... or ptb-char")
    ] = None,
    checkpoint: Checkpoint = None,
    prompt: Annotated[str, typer.Option(help="the beginning of a line, in the words the model knows")] = "",
    words: Annotated[int, typer.Option(help="to draw")] = 50,
    temperature: Annotated[float, typer.Option(help="1: the model's probabilities; 0: always the likeliest")] = 1.0,
    seed: Annotated[int, typer.Option(help="of the draws")] = 0,
    as_json: AsJson = False,
) -> None:
    """Draw text from a trained language model."""
    from noisyact_lab.engine.experiment import load_experiment
    from noisyact_lab.pretrained.models import SPEAKER, load_speaker
    from noisyact_lab.tasks.generate import speaker_of

    if checkpoint is not None and not _is_card(checkpoint):
        if experiment is None:
            raise ValueError(f"--checkpoint {checkpoint}: name the experiment too: noisyact generate EXPERIMENT ...")
        speaker = speaker_of(load_experiment(experiment), checkpoint)
    elif experiment not in (None, SPEAKER):
        raise ValueError(f"no model of {experiment!r} is shipped, only one of {SPEAKER}; give --checkpoint")
    else:
        speaker, card = load_speaker(checkpoint)
        _say(card)
    drawn = speaker.generate(prompt, words=words, temperature=temperature, seed=seed)
    if as_json:
        print_json(dataclasses.asdict(drawn))
    else:
        print(drawn.whole)


@app.command("translate")
def translate(
    text: Annotated[list[str] | None, typer.Argument(help="sentences; without any: --file, or standard input")] = None,
    checkpoint: Checkpoint = None,
    file: Annotated[Path | None, typer.Option(help="a text, plain, .gz or .xz, with a sentence a line")] = None,
    beam: Annotated[int, typer.Option(help="hypotheses at a time; 1 is greedy")] = 5,
    length_power: Annotated[float, typer.Option(help="0 ranks by log p, 1 by log p a word")] = 1.0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Translate English into French with a trained model, a line each."""
    from noisyact_lab.data import moses
    from noisyact_lab.data.text import lines as lines_of
    from noisyact_lab.engine.job import resolve
    from noisyact_lab.experiments.translate.text_translator import text_translator_of
    from noisyact_lab.pretrained.models import load_translator

    if text and file is not None:
        raise ValueError(f"--file {file}: give either sentences or a file")
    moses.version()  # the error, before anything is read, says how to install sacremoses
    if checkpoint is not None and not _is_card(checkpoint):
        translator = text_translator_of(checkpoint)
    else:
        translator, card = load_translator(checkpoint)
        _say(card)
    lines = text or (sys.stdin.readlines() if file is None else lines_of(file))
    found = translator.translate(lines, beam=beam, length_power=length_power, device=resolve(device))
    for number, line in enumerate(found):
        if line.too_long:
            print(f"noisyact: line {number + 1} is longer than any sentence of training", file=sys.stderr)
        if line.unknown:
            print(f"noisyact: line {number + 1}, unknown words: {' '.join(line.unknown)}", file=sys.stderr)
    if as_json:
        print_json([dataclasses.asdict(line) for line in found])
    else:
        print("\n".join(line.translation for line in found))


def _is_card(checkpoint: Path) -> bool:
    """Whether it is the card of an exported model, and not the folder of a run."""
    return checkpoint.suffix == ".json" and not checkpoint.is_dir()


def _say(card: Card) -> None:
    print(f"noisyact: {card.summary}. Licence: {card.licence}", file=sys.stderr)


@pretrained.command("list")
def list_pretrained(as_json: AsJson = False) -> None:
    """The models that are shipped: their scores, data, licences and how they were made."""
    from noisyact.text_table import wrapped
    from noisyact_lab.pretrained.card import read, shipped, shipped_names

    cards = [read(shipped(name)).card for name in shipped_names()]
    if as_json:
        print_json([dataclasses.asdict(card) for card in cards])
        return
    for card in cards:
        print(wrapped(card.summary, width(), "  "))
        signature = card.signatures.get(card.metric)
        said = {
            "what": card.title, "signature": signature, "licence": card.licence,
            "file": f"{card.size / 1e6:.1f} MB, trained {card.trained} at commit {card.commit}",
            "made by": card.rebuilt_by,
        }  # fmt: skip
        for name, value in said.items():
            if value is not None:
                print(wrapped(f"  {name:<11}{value}", width(), 13 * " "))


@pretrained.command("export")
def export(
    run: Annotated[Path, typer.Argument(help="the folder of a finished run of europarl-word or translate-...")],
    to: Annotated[Path, typer.Option(help="folder for the card and the file of weights")] = Path("out/pretrained"),
) -> None:
    """Write a finished run's model as 16-bit weights with a card, tested as it is written; prints the card's path.

    `generate` and `translate` take the card as --checkpoint.
    """
    from noisyact_lab.pretrained.export import export as write

    print(write(run, to))
