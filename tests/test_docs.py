"""What README and docs show, runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("src/**/README.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page):
    """A page's Python blocks, in order, as one program."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    exec(compile(code, str(page), "exec"), {"__name__": "example"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_every_page_of_the_map_names_real_things():
    """`module.name` in the paper's map exists."""
    import importlib

    text = (ROOT / "docs" / "paper-to-code.md").read_text()
    for module, name in re.findall(r"`(equations|anneal)\.(\w+)`", text):
        assert hasattr(importlib.import_module(f"noisyact.{module}"), name)


def test_every_row_of_the_compatibility_tables_has_its_test():
    text = (ROOT / "docs" / "guide.md").read_text()
    rows = re.findall(r"^\|(?! feature |---).*\|$", text.split("## Compatibility")[1].split("\n## ")[0], re.MULTILINE)
    assert len(rows) > 30
    for row in rows:
        file, test = re.fullmatch(r"\|.*\| `([\w/]+\.py)::(test_\w+)` \|", row).groups()
        assert re.search(rf"^def {test}\(", (ROOT / "tests" / "noisyact" / file).read_text(), re.MULTILINE), row


def test_the_tour_leads_to_files():
    tour = (ROOT / "CONTRIBUTING.md").read_text().split("## A newcomer's tour")[1].split("\n## ")[0]
    library, laboratory = tour.split("In `src/noisyact_lab/`:")
    for part, folder, count in ((library, "noisyact", 26), (laboratory, "noisyact_lab", 13)):
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
