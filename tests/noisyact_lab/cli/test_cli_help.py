"""What the command line says of itself: help, version, completion, and what to install."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import noisyact
import noisyact_lab.cli
from noisyact_lab.cli.app import app

ROOT = Path(__file__).parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
BRACKETS = re.compile(r"\[[^\]]*\]")


def commands(command, words=()):
    """Every command with the words that call it."""
    yield list(words), command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*words, name))


COMMANDS = [(words, command) for words, command in commands(typer.main.get_command(app)) if words != ["bench"]]


def plain(text):
    """The text as it reads: without escapes for rich, panel borders and line breaks."""
    return re.sub(r"[\s│]", "", text.replace("\\[", "["))


@pytest.mark.parametrize(("words", "command"), COMMANDS, ids=[" ".join(words) or "noisyact" for words, _ in COMMANDS])
def test_help_shows_every_bracket(words, command):
    """Rich takes [word] for a style and drops it."""
    shown = plain(CliRunner().invoke(app, [*words, "--help"]).output)
    texts = [command.help, command.epilog, *(getattr(parameter, "help", None) for parameter in command.params)]
    for text in map(plain, filter(None, texts)):
        for bracket in BRACKETS.findall(text):
            assert bracket in shown


def test_there_are_brackets_to_show():
    """Without brackets, the test above would prove nothing."""
    shown = plain(CliRunner().invoke(app, ["run", "--help"]).output)
    assert {"[settings]", "[:WHERE]", "[:FOLDER]", "[:PROJECT]", "[:URI]"} <= set(BRACKETS.findall(shown))


def test_exit_codes_are_one_paragraph():
    lines = CliRunner().invoke(app, ["run", "--help"]).output.split("Exit codes:")[1].rstrip().splitlines()
    assert all(len(line.rstrip()) > 60 for line in lines[1:-1])


def run(*words, **environment):
    code = f"import sys; sys.argv = ['noisyact', *{list(words)!r}]\nfrom noisyact_lab.cli import main\nmain()"
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True,
        env=os.environ | environment,
    )  # fmt: skip


def test_version_without_torch():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"noisyact {noisyact.__version__}\n")
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)


def test_completion_without_torch():
    done = run(_NOISYACT_COMPLETE="complete_bash", COMP_WORDS="noisyact re", COMP_CWORD="1")
    assert sorted(done.stdout.split()) == ["report", "reproduce"]
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize("module", ["typer", "safetensors"])
def test_a_missing_library_is_named_with_what_installs_it(module, tmp_path):
    """Also one that is missing only once a command runs."""
    code = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv = ['noisyact', 'run', 'unique', '--arm', 'nan']\n"
        "from noisyact_lab.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"noisyact: {module} is not installed." in done.stderr
    assert "needs: pip install '.[experiments]' in a checkout of noisyact" in done.stderr


def test_hints_name_extras_there_are():
    """And no package of an index: `pip install noisyact[...]` finds none."""
    hinted = set()
    for path in (*ROOT.glob("src/**/*.py"), *ROOT.glob("src/**/*.md")):
        text = path.read_text(encoding="utf-8")
        assert "pip install 'noisyact" not in text, path
        hinted |= set(re.findall(r"how_to_install\(['\"](\w+)", text))
    assert len(hinted) >= 5
    assert hinted <= EXTRAS.keys()
    modules = {re.split(r"[>=\[]", requirement)[0] for requirement in EXTRAS["experiments"]}
    assert modules == set(noisyact_lab.cli._EXPERIMENTS)


SPY = """
import os, sys

class Spy:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"), os.environ.get("OMP_WAIT_POLICY"), flush=True)
            os._exit(0)  # what follows takes seconds

sys.meta_path.insert(0, Spy())
sys.argv = ["noisyact", *sys.argv[1:]]
from noisyact_lab.cli import main
main()
"""


@pytest.mark.parametrize(
    ("command", "given", "seen"),
    [
        (["run", "unique"], {}, "1000 None"),
        (["run", "unique"], {"OMP_WAIT_POLICY": "active"}, "None active"),
        (["run", "unique"], {"GOMP_SPINCOUNT": "7"}, "7 None"),
        (["list", "--json"], {}, "None None"),
    ],
)
def test_threads_of_a_run_do_not_spin_for_long(command, given, seen):
    """The variable is set before torch is imported, which reads it once, and a user's value is kept."""
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", SPY, *command], capture_output=True, text=True, env=clean | given)
    assert done.stdout.splitlines()[0] == seen
