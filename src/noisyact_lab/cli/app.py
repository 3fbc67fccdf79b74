"""The application: all commands, and how errors, warnings and Ctrl-C in any of them are reported.

Commands import what they need inside, so that ``--help`` is quick.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import textwrap
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from noisyact_lab.cli import (
    data,
    reproduce,
    run,
    score,
    trained,
)
from noisyact_lab.cli.options import EXIT_CODES, RUNS, AsJson, Out, Preset, print_json, width

__all__ = ["app"]


class Commands(TyperGroup):
    """All commands: errors and warnings of each are reported in the same way."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with warnings.catch_warnings(), _reported():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = _show
            return super().invoke(ctx)


def _show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Show a warning without the line of the source that it comes from."""
    print(f"noisyact: {message}", file=sys.stderr)


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """Report an error that a user can correct in one line, with an exit code; after Ctrl-C say how to resume."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of the output has closed it: typer ends silently
    except (ValueError, OSError) as error:
        from noisyact_lab.engine.folder.files import Damaged, in_words

        if os.environ.get("LOCAL_RANK", "0") == "0":  # of the processes of one run, one per machine reports it
            print(f"noisyact: {in_words(error)}", file=sys.stderr)
        failed = isinstance(error, (Damaged, OSError)) and not isinstance(error, FileNotFoundError)
        raise typer.Exit(1 if failed else 2) from None
    except KeyboardInterrupt:
        again = shlex.join(["noisyact", *(word for word in sys.argv[1:] if word != "--force")])
        print(f"\nstopped; what is done is kept. To resume: {again}", file=sys.stderr)
        raise typer.Exit(130) from None


app = typer.Typer(
    help="Rerun the experiments of 'Noisy Activation Functions' and measure the library." + EXIT_CODES,
    cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False,
)  # fmt: skip
app.add_typer(run.app)
app.add_typer(reproduce.app)
app.add_typer(trained.app)
app.add_typer(score.app)
app.add_typer(data.app, name="data")
app.add_typer(trained.pretrained, name="pretrained")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"noisyact {version('noisyact')}")
        raise typer.Exit


@app.callback()
def every_command(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Options before any command."""


@app.command("list")
def list_experiments(as_json: AsJson = False) -> None:
    """The experiments: what each reproduces, its arms, presets and data."""
    from noisyact.text_table import wrapped
    from noisyact_lab.data import locate
    from noisyact_lab.engine.experiment import experiment_names, load_experiment

    found = [
        {
            "name": e.name, "title": e.title, "reproduces": e.reproduces, "metric": e.metric, "unit": e.unit,
            "arms": [
                {"name": arm.name, "title": arm.title, "paper": arm.paper, "papers": dict(arm.papers)} for arm in e.arms
            ],
            "minutes": dict(e.minutes), "data": {name: locate.status(name) for name in e.data},
        }
        for e in map(load_experiment, experiment_names())
    ]  # fmt: skip
    if as_json:
        print_json(found)
        return
    for e in found:
        data = ", ".join(f"{name} ({status})" for name, status in e["data"].items())
        lines = {
            "reproduces": e["reproduces"], "arms": ", ".join(arm["name"] for arm in e["arms"]),
            "presets": ", ".join(f"{name} ({_minutes(m)} a run)" for name, m in e["minutes"].items()),
            "data": data or "none needed",
        }  # fmt: skip
        print(wrapped(f"{e['name']}: {e['title']}", width(), "  "))
        for name, text in lines.items():
            print(textwrap.indent(wrapped(f"{name:<12}{text}", width() - 2, 12 * " "), "  "))


@app.command("table")
def table(
    experiment: Annotated[str, typer.Argument(help="see: noisyact list")],
    out: Out = RUNS,
    preset: Preset = "short",
    as_json: AsJson = False,
) -> None:
    """Print an experiment's table from the runs that are recorded."""
    from noisyact_lab.analysis.results_table import table_of
    from noisyact_lab.engine.experiment import load_experiment

    found = table_of(load_experiment(experiment), out, preset)
    if not out.is_dir():
        raise ValueError(f"--out {out}: there is no such folder")
    if as_json:
        print_json(found.as_json())
    else:
        print(found.text(width()))


@app.command("report")
def report(
    out: Annotated[Path, typer.Argument(help="where the runs are")] = RUNS,
    to: Annotated[Path, typer.Option("--output", "-o", help="the page to write")] = Path("report.html"),
) -> None:
    """Write one page of HTML with the tables, curves and figures of all runs below a folder; it needs no network."""
    from noisyact_lab.report import page as page

    if not out.is_dir():
        raise ValueError(f"{out}: there is no such folder")
    print(page.write(out, to, page.drawn_figures()))


@app.command("figures")
def figures(out: Annotated[Path, typer.Option("--out", "-o", help="folder for them")] = Path("out/figures")) -> None:
    """Draw the paper's figures of the activations themselves, as SVG and PNG."""
    from noisyact_lab.report.figures import draw_all

    for path in draw_all(out):
        print(path)


@app.command("bench", context_settings={"ignore_unknown_options": True, "help_option_names": []})
def bench(arguments: Annotated[list[str] | None, typer.Argument(help="see: noisyact bench --help")] = None) -> None:
    """Measure activations and recurrent layers against torch, attention models against soft ones, in the same run."""
    from noisyact_lab.bench.__main__ import main

    raise typer.Exit(main(arguments or ["--help"]))


def _minutes(minutes: float) -> str:
    return f"{60 * minutes:.0f} s" if minutes < 1 else f"{minutes:.0f} min"
