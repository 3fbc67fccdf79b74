"""The command `noisyact score`. What it needs is imported inside it; help is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from noisyact_cli.answers import RUNS, AsJson, print_json, user_errors

__all__ = ["app"]

app = typer.Typer()


@app.command("score")
def score(
    experiment: Annotated[str, typer.Argument(help="caption")],
    out: Annotated[Path, typer.Argument(help="the folder of a run, or one that has runs below it")] = RUNS,
    verified: Annotated[bool, typer.Option(help="the data must be what the results were made from")] = True,
    as_json: AsJson = False,
) -> None:
    """Add BLEU and METEOR of their captions to the records of finished runs, with a signature."""
    with user_errors():
        if experiment != "caption":
            raise ValueError(f"experiment {experiment!r} has no captions to score; allowed is caption")
        from noisyact.data import flickr8k
        from noisyact.experiments import scores

        runs = scores.runs_in(out)
        test = flickr8k.read("test", verified=verified)
        references = {
            image: [" ".join(words) for words in captions]
            for image, captions in zip(test.images, test.captions, strict=True)
        }
        found, missing = {}, {}
        for run in runs:
            scored = scores.add_scores(run, references)
            found[str(run)] = {**scored.values, "signature": scored.signature}
            missing[scored.missing] = None
            if not as_json:
                print(f"{run}: {', '.join(f'{name} {value:.2f}' for name, value in scored.values.items())}")
        for reason in filter(None, missing):
            print(f"noisyact: {reason}", file=sys.stderr)
    if as_json:
        print_json(found)
