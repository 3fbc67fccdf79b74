"""The generated parts of the documentation, and the playground for a page of the site."""

import json
import re
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import pytest

from noisyact_lab.site import playground, results, speed
from noisyact_lab.site.generated import generate, refreshed

ROOT = Path(__file__).parents[3]


def test_an_unknown_part_is_an_error():
    with pytest.raises(ValueError, match="'speeds' is unknown; allowed are about,"):
        generate(ROOT, "speeds h200")


def test_a_changed_number_is_put_right():
    """What is typed between the comments does not stay: a block and a number inside a sentence."""
    block = "<!-- generated: saturated-start -->\n\n| NAH | 0.0% |\n\n<!-- end -->"
    inline = "ratios: <!-- generated: scope cpu-grid -->0.01<!-- end -->."
    text = refreshed(ROOT, f"{block}\n\n{inline}\n")
    assert results.saturated_start(ROOT) in text
    assert f"-->{speed.scope(ROOT, 'cpu-grid')}<!-- end -->." in text
    assert "0.01<" not in text


def test_numbers_are_those_of_the_table():
    """A difference is that of `noisyact table`, and swapped arms change its sign."""
    assert results.difference(ROOT, "ptb-word", "nan", "leak") == "0.04 ± 0.99"
    assert results.difference(ROOT, "ptb-word", "leak", "nan") == "-0.04 ± 0.99"
    assert results.number(ROOT, "ptb-word", "leak") == "108.0 ± 1.1"


def test_noise_is_what_the_runs_recorded_last():
    """Of the arms with noise alone: the means over seeds, from the least to the largest of the gates and layers."""
    header, _, *rows = results.noise(ROOT, "ptb-word").splitlines()
    assert header.startswith("| arm | noisy gates | noisy candidates |")
    last = [
        json.loads(path.read_text().splitlines()[-1])["units"]
        for path in (ROOT / "results" / "ptb-word" / "paper" / "nan-no-leak").glob("seed-*/noise.jsonl")
    ]
    p = [sum(units[f"recurrent.l{layer}.g"]["p"] for units in last) / len(last) for layer in (0, 1)]
    (row,) = (row for row in rows if row.startswith("| NAN, alpha = 1 |"))
    assert row.endswith(f"| {min(p):.2g} to {max(p):.2g} | {len(last)} |")
    assert not any("no noise" in row or "leak alone" in row for row in rows)


def test_gains_have_the_sign_of_better():
    """Perplexity is better where it is lower, the share of right symbols where it is higher."""
    words, *_ = (line for line in results.gains(ROOT).splitlines() if "words" in line)
    assert "+7.60 | 6.7 ± 1.1" in words
    execute, *_ = (line for line in results.gains(ROOT).splitlines() if "Execute" in line)
    assert "+1.64 | -0.4 ± 3.6" in execute


def test_public_names_in_sentences_are_links():
    """Code that is a public name, or a call of one; neither other code, nor a title."""
    pytest.importorskip("sphinx", reason="needs the extra docs: sphinx is not installed")
    from docutils import nodes, utils
    from sphinx import addnodes

    from noisyact_lab.site import extension

    page = utils.new_document("page")
    written = ["na.noisify(model, 'nah')", "NoisyLSTM", "noisyact.saturation", "nn.LSTM", "anneal", "noise", "x = NAN"]
    page += nodes.paragraph("", "", *(nodes.literal("", text) for text in written))
    page += nodes.title("", "", nodes.literal("", "noisify"))
    extension._link_names(SimpleNamespace(env=SimpleNamespace(docname="page")), page)
    found = {link.astext(): link["reftarget"] for link in page.findall(addnodes.pending_xref)}
    names = ["noisyact.noisify", "noisyact.NoisyLSTM", "noisyact.saturation"]
    assert found == dict(zip(written[:3], names, strict=True))


def test_styles_stay_inside_the_playground():
    css = (resources.files("noisyact_lab.report") / "assets" / "page.css").read_text(encoding="utf-8")
    text = playground.styles(css)
    depth, outside = 0, ""
    for character in re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL):
        depth += (character == "{") - (character == "}")
        outside += character if depth == 0 else ""
    selectors = [part.strip(" \n}") for part in outside.split("}") if part.strip(" \n}")]
    assert selectors
    assert all("#phi-playground" in part or part.startswith("@media") for part in selectors), selectors
    assert 'body[data-theme="dark"] #phi-playground' in text
