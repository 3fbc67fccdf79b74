"""The command `noisyact score`. What it needs is imported inside, so that help is quick."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from noisyact_lab.cli.options import RUNS, AsJson, print_json, width

__all__ = ["app"]

app = typer.Typer()


@app.command("score")
def score(
    experiment: Annotated[str, typer.Argument(help="caption, caption-bias, or translate and its variations")],
    out: Annotated[Path, typer.Argument(help="the folder of a run, or one that has runs below it")] = RUNS,
    verified: Annotated[bool, typer.Option(help="the data must be what the results were made from")] = True,
    as_json: AsJson = False,
) -> None:
    """Add scores to the records of finished runs, with a signature: BLEU and METEOR of captions, BLEU of plain text.

    Translations of two arms and one seed are also compared by paired bootstrap.
    """
    from noisyact_lab.analysis import paired_bleu
    from noisyact_lab.analysis.scoring import Scores, runs_in, scored_before
    from noisyact_lab.engine.experiment import load_experiment
    from noisyact_lab.experiments import translate
    from noisyact_lab.experiments.caption import scores
    from noisyact_lab.experiments.caption.caption import SCORED
    from noisyact_lab.experiments.translate import plain_bleu
    from noisyact_lab.experiments.translate.task import TRANSLATIONS
    from noisyact_lab.experiments.translate.translator import PLAIN, PLAIN_INTERVAL

    allowed = ("caption", "caption-bias", *translate.NAMES)
    if experiment not in allowed:
        raise ValueError(f"experiment {experiment!r} has nothing to score; allowed are {', '.join(allowed)}")
    runs, names = runs_in(out, experiment), (PLAIN, PLAIN_INTERVAL)
    add: Callable[[Path], Scores] = plain_bleu.add_scores
    if experiment not in translate.NAMES:
        add, names = functools.partial(scores.add_scores, references=_references(verified)), SCORED
    found, missing = {}, {}
    for run in runs:
        scored = scored_before(run, names) or add(run)
        found[str(run)] = {**scored.values, "signature": scored.signature}
        missing[scored.missing] = None
        if not as_json:
            print(f"{run}: {', '.join(f'{name} {value:.2f}' for name, value in scored.values.items())}")
    for reason in filter(None, missing):
        print(f"noisyact: {reason}", file=sys.stderr)
    paired = []
    if experiment in translate.NAMES:
        paired = paired_bleu.paired_bleu(load_experiment(experiment), runs, TRANSLATIONS)
    if as_json:
        print_json({**found, **({"paired_bootstrap": [dataclasses.asdict(each) for each in paired]} if paired else {})})
    elif paired:
        print(f"\n{paired_bleu.as_text(paired, width())}")


def _references(verified: bool) -> dict[str, list[str]]:
    """The reference captions of the images of Flickr8k's test part."""
    from noisyact_lab.data import flickr8k

    test = flickr8k.read("test", verified=verified)
    return {
        image: [" ".join(words) for words in captions]
        for image, captions in zip(test.images, test.captions, strict=True)
    }
