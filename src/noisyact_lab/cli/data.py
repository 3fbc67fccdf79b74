"""The commands `noisyact data ...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from noisyact_lab.cli.options import AsJson, Preset, Set, print_json, width
from noisyact_lab.cli.progress import View
from noisyact_lab.cli.run import changes_of

__all__ = ["app"]

app = typer.Typer(help="The data sets: what there is, whether it is whole, and getting it.", no_args_is_help=True)


@app.command("list")
def data_list(as_json: AsJson = False) -> None:
    """The data sets, who needs them, and whether they are there."""
    from noisyact.text_table import text_table
    from noisyact_lab.data import catalog, locate

    sets = [catalog.dataset(name) for name in catalog.names()]
    if as_json:
        print_json(
            [{"name": s.name, "needed_by": s.needed_by, "bytes": s.size, "status": locate.status(s)} for s in sets]
        )
        return
    rows = [(s.name, locate.status(s), f"{s.size / 1e6:.1f} MB", s.needed_by, s.title) for s in sets]
    print(text_table(("name", "status", "size", "needed by", "what it is"), rows, width()))


@app.command("verify")
def data_verify(
    names: Annotated[list[str] | None, typer.Argument(help="default: all that are present")] = None,
) -> None:
    """Read data sets and compare their checksums; exit code 1 if a file is not what it should be."""
    from noisyact_lab.data import catalog, locate
    from noisyact_lab.data.verify import verify

    chosen = names or [name for name in catalog.names() if locate.has_all(name)]
    problems = []
    for name in chosen:
        with View(1, "files") as view:
            found = verify(name, view.at)
            view.ended(name, "as it should be" if not found else f"{len(found)} files are not as they should be")
        problems += found
    print("\n".join(problems) if problems else f"{len(chosen)} data sets verified")
    if problems:
        raise typer.Exit(1)


@app.command("fetch")
def data_fetch(
    names: Annotated[list[str], typer.Argument(help="see: noisyact data list")],
    archive: Annotated[Path | None, typer.Option(help="take the files from this zip or tar")] = None,
) -> None:
    """Get data sets, over https or from an archive; what is there already is not fetched again."""
    from noisyact_lab.data import catalog
    from noisyact_lab.data.fetch import Refused, fetch

    for name in [catalog.dataset(name).name for name in names]:
        with View(1, "files") as view:
            try:
                folder = fetch(name, view.at, archive=archive)
            except (Refused, ConnectionError) as error:
                print(f"noisyact: {error}", file=sys.stderr)
                raise typer.Exit(1) from None
        print(folder)


@app.command("prepare")
def data_prepare(
    experiment: Annotated[str, typer.Argument(help="translate, translate-adam or translate-multi30k")],
    preset: Preset = "short",
    settings: Set = None,
) -> None:
    """Tokenise and pack the text of an experiment, once; the packed file is all that a machine that trains needs."""
    from noisyact_lab.data.parallel import packed_path
    from noisyact_lab.engine.experiment import UnknownName, load_experiment
    from noisyact_lab.experiments import translate
    from noisyact_lab.experiments.translate.settings import corpus_of

    if experiment not in translate.NAMES:
        raise UnknownName("experiment", experiment, translate.NAMES)
    chosen = load_experiment(experiment).effective("reference", preset, changes_of(settings or []))
    packed = corpus_of(chosen, lambda text: print(text, file=sys.stderr))
    for part, counts in packed.about["counts"].items():
        print(f"{part}: {counts['pairs']:,} pairs; left out: {counts['empty']} empty, {counts['too_long']} too long")
    print(packed_path(chosen.corpus, chosen.words, chosen.longest, chosen.shards))
