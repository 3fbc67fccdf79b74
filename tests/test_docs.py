"""What README and docs show runs, what they link exists, and every number in them comes from a record."""

import hashlib
import json
import re
import runpy
from pathlib import Path

import pytest

from noisyact_lab.site import generated

ROOT = Path(__file__).parent.parent
SITE = generated.pages(ROOT)
PAGES = [*SITE, *sorted(ROOT.glob("src/**/README.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page):
    """A page's Python blocks, in order, as one program."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    exec(compile(code, str(page), "exec"), {"__name__": "example"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    for path in re.findall(r"`((?:src|tests|examples|benchmarks|results|docs)/[^`\s]*)`", text):
        assert (ROOT / path).exists(), path


def test_every_page_of_the_map_names_real_things():
    """`module.name` in the paper's map exists."""
    import importlib

    text = (ROOT / "docs" / "explanation" / "paper.md").read_text()
    for module, name in re.findall(r"`(equations|anneal)\.(\w+)`", text):
        assert hasattr(importlib.import_module(f"noisyact.{module}"), name)


def test_every_row_of_the_compatibility_tables_has_its_test():
    text = (ROOT / "docs" / "explanation" / "compatibility.md").read_text()
    rows = re.findall(r"^\|(?! feature |---).*\|$", text, re.MULTILINE)
    assert len(rows) > 30
    for row in rows:
        file, test = re.fullmatch(r"\|.*\| `([\w/]+\.py)::(test_\w+)` \|", row).groups()
        assert re.search(rf"^def {test}\(", (ROOT / "tests" / "noisyact" / file).read_text(), re.MULTILINE), row


def test_the_tour_leads_to_files():
    tour = (ROOT / "CONTRIBUTING.md").read_text().split("## A newcomer's tour")[1].split("\n## ")[0]
    library, laboratory = tour.split("In `src/noisyact_lab/`:")
    for part, folder, count in ((library, "noisyact", 32), (laboratory, "noisyact_lab", 18)):
        places = re.findall(r"\| `([^`]+)` \|$", part, re.MULTILINE)
        assert len(places) == count
        for place in places:
            assert (ROOT / "src" / folder / place).is_file(), place


def test_the_tree_has_every_folder():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for folder in {path.parent for path in ROOT.glob("src/**/*.py")} - {
        ROOT / "src/noisyact",
        ROOT / "src/noisyact_lab",
    }:
        if folder.parent.name != "experiments":
            assert re.search(rf"^ *{folder.name}/ ", text, re.MULTILINE), folder


def test_the_readme_takes_five_minutes():
    assert len((ROOT / "README.md").read_bytes()) <= 8000


@pytest.mark.parametrize("page", SITE, ids=lambda page: str(page.relative_to(ROOT)))
def test_generated_parts_are_those_of_the_records(page):
    """`python -m noisyact_lab.site` writes them."""
    text = page.read_text()
    assert generated.refreshed(ROOT, text) == text
    assert not re.search(r"^ *<!-- generated: [^>]* -->.", text, re.MULTILINE)  # Markdown would take it for HTML


MEASURED = re.compile(r"\d\s*±|\d\s?%|\d (?:ms|s|seconds|MB|times|perplexity|points|nats|bits|BLEU)\b|\d\.\d\d")
SETTINGS = re.compile(
    r"95%|\b1% test error|at 1%|above 50%|within 2 perplexity"
    r"|torch 2\.\d+.*|Python 3\.11|alpha = \d\.\d+|\bdropout of 0\.25|\bslope 0\.25|-0\.15 to the slope|0\.25 x"
    r"|\| 1\.15 for tanh.*|\| 0\.5 for tanh.*|\| 0\.797 for tanh.*|1\.001|above 1\.05|a setting, 1\.15"
)
"""Numbers that nobody measured: settings, and what the authors' code has."""


@pytest.mark.parametrize("page", SITE, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_measured_number_is_typed(page):
    text = re.sub(r"<!-- generated: .*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
    text = re.sub(r"^```.*?^```|\$\$.*?\$\$|`[^`]*`|\]\(https:[^)]*\)", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not (found := MEASURED.findall(SETTINGS.sub("", text))), found


def test_pictures_belong_to_their_records():
    """A picture carries the checksum of what it was drawn from."""
    from PIL import Image

    from noisyact_lab.site.speed_figure import checksum

    pictures = ROOT / "docs" / "_static"
    assert Image.open(pictures / "speed.png").text["Record"] == checksum(ROOT)
    arms = json.loads((ROOT / "results" / "saturated_start.json").read_text())["arms"]
    record = hashlib.sha256(json.dumps(arms).encode()).hexdigest()
    assert Image.open(pictures / "saturated_start.png").text["Record"] == record
    curves = runpy.run_path(str(ROOT / "examples" / "memory_ppo_curves.py"))
    record = curves["checksum"](curves["records_in"](ROOT / "results" / "memory-ppo"))
    assert Image.open(pictures / "memory_ppo.png").text["Record"] == record


def test_every_public_name_is_in_the_reference():
    import noisyact
    from noisyact_lab.site.extension import public_names

    text = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    rooms = re.findall(r"^```\{public\} (\S+)$", text, re.MULTILINE)
    shown = {name for room in rooms for name in public_names(room)} | {"anneal", "functional"}
    assert shown == set(noisyact.__all__)
    assert "automodule:: noisyact.anneal" in text
    assert "automodule:: noisyact.functional" in text


def test_every_experiment_and_benchmark_is_on_the_site():
    from noisyact_lab.engine.experiment import experiment_names

    text = "".join(page.read_text() for page in SITE)
    for name in experiment_names():
        shown = any(f"generated: {part}" in text for part in (f"arms {name} -->", f"gates {name} "))
        assert not (ROOT / "results" / name).exists() or shown, name
    for record in (ROOT / "benchmarks").glob("*.json"):
        assert f"generated: scope {record.stem} -->" in text, record


def test_every_example_says_what_it_is():
    """The gallery shows the docstrings of the examples."""
    from noisyact_lab.site.gallery import described

    for example in (ROOT / "examples").glob("*.py"):
        title, parts = described(example.read_text())
        assert title, example
        assert any(part.startswith("Run:") for _, part in parts), example
