"""The report page: what it reads and shows, and that it needs nothing from outside."""

import base64
import csv
import dataclasses
import hashlib
import html
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import report_cases

from noisyact_lab.analysis import agreement
from noisyact_lab.analysis.estimates import Estimate, Row
from noisyact_lab.analysis.results_table import Table
from noisyact_lab.analysis.statistics.intervals import mean_interval
from noisyact_lab.engine.experiment import load_experiment
from noisyact_lab.engine.folder.files import write_json, write_text
from noisyact_lab.engine.folder.picture import grid, save
from noisyact_lab.engine.folder.records import clear
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.run import run
from noisyact_lab.report import curves, pictures, sections
from noisyact_lab.report import page as report


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return report_cases.real_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def copy(out, tmp_path):
    return Path(shutil.copytree(out, tmp_path / "runs"))


def arm_of(section, name):
    return next(arm for arm in section.arms if arm.row.name == name)


def test_runs_are_read_and_their_endings_said(out):
    (section,) = sections.sections(out)
    assert section.count == {"finished": 5, "diverged": 1, "partial": 1}
    assert section.metrics == ["test_error", "c", "loss"]
    (partial,) = arm_of(section, "leak").runs
    assert partial.ending == "unfinished: recorded up to update 40 of 60"
    assert partial.curve["update"] == [20, 40]
    (diverged,) = arm_of(section, "hard").runs
    assert re.fullmatch(r"diverged at update \d+: loss stopped being finite", diverged.ending)
    assert [run.ending for run in arm_of(section, "reference").runs] == ["finished after 60 updates"] * 3
    # The diverged run has other settings, which the table says.
    assert section.notes[0] == "hard seed-0: not the preset's learning_rate=1e+30"


def test_curves_are_means_of_finished_runs_alone(out):
    (section,) = sections.sections(out)
    drawn = {arm["name"]: arm for arm in curves.curves_of(section)["arms"]}
    assert set(drawn) == {"reference", "nan-annealed", "leak"}  # those that recorded something
    recorded = [
        [json.loads(line)["test_error"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in sorted((out / "unique" / "smoke" / "reference").glob("seed-*"))
    ]
    mean = drawn["reference"]["mean"]["test_error"]
    assert mean["x"] == [20, 40, 60]
    for i, values in enumerate(zip(*recorded, strict=True)):
        assert (mean["y"][i], mean["low"][i], mean["high"][i]) == pytest.approx(mean_interval(values), rel=1e-4)
    assert drawn["reference"]["banded"]
    assert not drawn["nan-annealed"]["banded"]  # two runs
    assert drawn["leak"]["mean"]["test_error"]["x"] == []
    assert drawn["leak"]["runs"][0]["lines"]["test_error"]["x"] == [20, 40]


def test_long_curves_are_thinned_but_keep_their_end():
    points = list(range(1, 1001))
    one = sections.Run("0", "finished", "", None, "cpu", {"update": points, "loss": [1.0 / x for x in points]})
    thin = curves._thinned(curves.mean_of([one], "loss"))
    assert len(thin["x"]) == len(thin["y"]) <= 300
    assert (thin["x"][0], thin["x"][-1], thin["y"][-1]) == (1, 1000, 0.001)


def table_of(**numbers):
    """A table of arms, each with the paper's number and ours."""
    rows = tuple(
        Row(name, name, paper, len(ours), 0, 0, {"test_error": Estimate(ours)} if ours else {})
        for name, (paper, ours) in numbers.items()
    )
    return Table(load_experiment("unique"), "paper", rows, (), "test_error")


def test_pairs_of_arms_by_hand():
    table = table_of(a=(1.0, (10.0, 10.1)), b=(2.0, (10.0, 30.0)), c=(3.0, (1.0, 1.1)), d=(4.0, ()), e=(None, (5.0,)))
    verdicts = {(pair.lower.name, pair.higher.name): pair.verdict for pair in agreement.pairs(table)}
    # a is 10.05 +- 0.64, b 20 +- 127, c 1.05 +- 0.64, d has no run and e no number in the paper.
    assert verdicts == {
        ("a", "b"): "not decided", ("a", "c"): "contrary to the paper", ("a", "d"): "not decided",
        ("b", "c"): "not decided", ("b", "d"): "not decided", ("c", "d"): "not decided",
    }  # fmt: skip
    assert agreement.summary(agreement.pairs(table)) == (
        "Of the 6 pairs of arms that the paper orders: 1 contrary to the paper, 5 not decided."
    )
    as_there = table_of(a=(1.0, (1.0, 1.1)), b=(2.0, (10.0, 10.1)))
    assert [pair.verdict for pair in agreement.pairs(as_there)] == ["as in the paper"]
    assert agreement.pairs(table_of(a=(1.0, (1.0,)), b=(1.0, (2.0,)))) == []  # equal in the paper: no order


def test_the_paper_against_our_interval():
    three = Estimate((1.0, 2.0, 3.0))  # 2 +- 2.484
    assert agreement.against_paper(three, 4.4) == "the paper's value is inside our interval"
    assert agreement.against_paper(three, 4.5) == "ours is lower: the paper's value is above our interval"
    assert agreement.against_paper(three, -0.5) == "ours is higher: the paper's value is below our interval"
    assert agreement.against_paper(Estimate((None,)), 1.0) == "we have no number"
    assert agreement.against_paper(Estimate((1.0, 3.0)), 4.4) == "ours is lower; too few runs for an interval"
    assert agreement.against_paper(three, None) == "the paper gives no number"


def test_the_page_stands_alone(copy, tmp_path):
    report_cases.add_extras(copy)
    page = report.write(copy, tmp_path / "report.html", [{"caption": "a figure", "source": "data:image/png;base64,"}])
    text = page.read_text()
    assert not re.search(
        r"""src="(?!data:image/)|href="(?!#|data:text/csv|https://arxiv\.org/abs/)|url\((?!#)|@import|fetch\(|XMLHttpRequest|import\(""",
        text,
    )
    assert text.count("<script") == 2
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; script-src 'sha256-{digest}';" in text
    (data,) = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert data["headline"] == "test_error"
    shown = html.unescape(text)
    for part in (
        "3 finished", "1 diverged", "1 unfinished", "33.28", load_experiment("unique").agreement, "programs",
        "<p>The first paragraph.</p>\n<p>The second one.</p>", "unfinished: recorded up to update 40 of 60",
        "Of the 10 pairs of arms that the paper orders:", 'alt="attention map: NAN, annealed, seed 0"',
    ):  # fmt: skip
        assert part in shown
    assert len(text) < 120_000  # what all pages have, without figures
    empty = report.write(tmp_path / "nothing", tmp_path / "empty.html").read_text()
    assert "0 runs" in empty
    assert "No runs were found." in empty


def test_the_papers_other_numbers_are_beside_ours(out, tmp_path, monkeypatch):
    unique = load_experiment("unique")
    first = dataclasses.replace(unique.arms[0], papers={"test_error_at_50%": 12.5})
    changed = dataclasses.replace(unique, arms=(first, *unique.arms[1:]))
    monkeypatch.setattr(sections, "load_experiment", lambda name: changed)
    monkeypatch.setattr(sections, "experiment_names", lambda: ["unique"])
    text = html.unescape(report.write(out, tmp_path / "report.html").read_text())
    assert "<details open><summary>All numbers</summary>" in text
    assert '<th scope="col" class="num">test error at 50%</th><th scope="col" class="num">paper</th>' in text
    assert '<td class="num">12.5</td>' in text


def test_a_commentary_is_the_files_or_the_experiments(out, copy, monkeypatch):
    unique = dataclasses.replace(load_experiment("unique"), commentary={"smoke": "Ours.", "paper": "Not this."})
    monkeypatch.setattr(sections, "load_experiment", lambda name: unique)
    monkeypatch.setattr(sections, "experiment_names", lambda: ["unique"])
    assert sections.sections(out)[0].commentary == ("Ours.",)
    report_cases.add_extras(copy)
    assert sections.sections(copy)[0].commentary == ("The first paragraph.", "The second one.")


def test_samples_and_pictures_come_from_one_run_an_arm(copy):
    report_cases.add_extras(copy)
    # An unfinished run of the arm has samples too, and its seed comes first: the finished one is shown.
    early = folder_of(copy, "unique", "smoke", "reference", 0)
    (early / "result.json").unlink()
    late = folder_of(copy, "unique", "smoke", "reference", 2) / "samples.json"
    write_json(late, [{"title": "many", "columns": ["n"], "rows": [[n] for n in range(45)]}])
    (section,) = sections.sections(copy)
    arm = arm_of(section, "reference")
    assert arm.shown_seed == "2"
    assert (arm.samples[0].rows[39], len(arm.samples[0].rows), arm.samples[0].left_out) == (("39",), 40, 5)
    (picture,) = arm_of(section, "nan-annealed").pictures
    assert base64.b64decode(picture.source.removeprefix("data:image/svg+xml;base64,")).decode() == report_cases.SVG


def test_a_task_that_draws_has_its_pictures_on_the_page(tmp_path):
    folder = folder_of(tmp_path, "mixture", "smoke", "nan", 0)
    run(Job("mixture", "nan", "smoke", 0, tmp_path, device="cpu"))
    assert sorted(path.name for path in (folder / "pictures").iterdir()) == ["units.png", "units.svg"]
    (section,) = sections.sections(tmp_path)
    (picture,) = arm_of(section, "nan").pictures
    assert picture.source.startswith("data:image/svg+xml;base64,")
    text = report.write(tmp_path, tmp_path / "report.html").read_text()
    assert 'alt="units: NAN, alpha = 1, seed 0"' in text
    assert "the paper gives no numbers here" in text
    clear(folder)
    assert not (folder / "pictures").exists()


@pytest.mark.parametrize(
    ("name", "content", "note"),
    [
        ("samples.json", '[{"title": "t"}]', "samples.json: a table needs title, columns and rows"),
        ("samples.json", '{"title": "t"}', "samples.json must be a list of tables"),
        (
            "samples.json",
            '[{"title": "t", "columns": ["a"], "rows": [["1", "2"]]}]',
            "samples.json: a row has 2 cells for 1 columns",
        ),
        ("pictures/a.png", "<svg/>", "pictures: a.png is not a PNG file"),
        ("pictures/a.svg", "text", "pictures: a.svg is not an SVG file"),
        ("result.json", '{"status": "finished", "result": {"test_error": "low"}}', "its test_error is 'low', not a"),
        ("result.json", '{"status": "finished", "result": {"test_error": NaN}}', "its test_error is nan, not a"),
        ("result.json", "[]", "cannot be read and counts as partial"),
        ("metrics.jsonl", "[1]\n", "metrics.jsonl: 'list' object has no attribute"),
        ("metrics.jsonl", "{\n", "not JSON"),
        ("timing.jsonl", "nonsense\n", "not JSON"),
        ("config.json", "{", "is not JSON"),
    ],
)
def test_what_cannot_be_read_is_noted_and_the_rest_shown(copy, tmp_path, name, content, note):
    write_text(folder_of(copy, "unique", "smoke", "nan-annealed", 1) / name, content)
    (section,) = sections.sections(copy)
    assert any(said.startswith("nan-annealed seed-1") and note in said for said in section.notes)
    assert note in html.unescape(report.write(copy, tmp_path / "report.html").read_text())
    assert arm_of(section, "reference").row.finished == 3


def test_pictures_are_plain_files_of_modest_size(tmp_path):
    (tmp_path / "secret.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(ValueError, match=r"link.png is not a plain file"):
        pictures.embedded(tmp_path / "link.png")
    (tmp_path / "big.svg").write_bytes(b"<svg>" * 500_000)
    with pytest.raises(ValueError, match=r"big.svg has 2,500,000 bytes; at most 2,000,000 are shown"):
        pictures.embedded(tmp_path / "big.svg")


def test_sweeps_are_shown_and_strange_folders_named(out, tmp_path):
    for point in ("c=1", "c=%3C2"):
        shutil.copytree(out / "unique" / "smoke" / "reference", tmp_path / "sweep" / point / "unique" / "smoke" / "nan")
    (tmp_path / "unique" / "smoke" / "nan" / "seed-0").mkdir(parents=True)
    for strange in ("unique/smoke/other", "unique/huge/nan", "mystery/smoke/nan"):
        (tmp_path / strange / "seed-0").mkdir(parents=True)
    plain, sweep = sections.sections(tmp_path)
    assert (plain.swept, sweep.swept) == ("", "nan")
    assert [(arm.row.name, arm.row.finished) for arm in sweep.arms] == [("c=<2", 3), ("c=1", 3)]
    assert sections.strangers(tmp_path) == ["mystery/smoke/nan", "unique/huge/nan", "unique/smoke/other"]
    text = report.write(tmp_path, tmp_path / "report.html").read_text()
    assert "sweep of nan" in text
    assert "c=&lt;2" in text
    assert "<code>unique/huge/nan</code>" in text


def test_arms_at_another_setting_are_one_section_below_their_experiment(out, tmp_path):
    for arm in ("reference", "nan-annealed"):
        shutil.copytree(out / "unique" / "smoke" / arm, tmp_path / "sweep" / "hidden=8" / "unique" / "smoke" / arm)
    shutil.copytree(out / "unique" / "smoke", tmp_path / "unique" / "smoke")
    (tmp_path / "mixture" / "smoke" / "nan" / "seed-0").mkdir(parents=True)
    write_text(tmp_path / "sweep" / "hidden=8" / "unique" / "smoke" / "commentary.txt", "Of eight units.")
    found = sections.sections(tmp_path)
    assert [(section.experiment.name, section.swept) for section in found] == [
        ("mixture", ""), ("unique", ""), ("unique", "hidden=8")
    ]  # fmt: skip
    assert [arm.row.name for arm in found[-1].arms] == ["reference", "nan-annealed"]
    assert found[-1].commentary == ("Of eight units.",)
    text = report.write(tmp_path, tmp_path / "report.html").read_text()
    assert '<li class="swept"><a href="#unique-smoke-sweep-hidden-8">unique with hidden=8</a></li>' in text
    assert text.count(html.escape(load_experiment("unique").agreement, quote=False).replace("'", "&#39;")) == 1


def test_every_run_is_there_as_csv(out, tmp_path):
    text = report.write(out, tmp_path / "report.html").read_text()
    address = re.search(r'download="unique-smoke\.csv" href="data:text/csv;charset=utf-8,([^"]*)"', text)[1]
    rows = list(csv.DictReader(io.StringIO(unquote(html.unescape(address)), newline="")))
    assert len(rows) == 7
    (first, *_) = (row for row in rows if (row["arm"], row["seed"]) == ("reference", "0"))
    recorded = json.loads((out / "unique" / "smoke" / "reference" / "seed-0" / "result.json").read_text())
    assert float(first["test_error"]) == recorded["result"]["test_error"]
    assert first["commit"] == (recorded["signature"]["commit"] or "")
    assert {row["status"] for row in rows} == {"finished", "diverged", "partial"}


def test_pictures_have_a_style_for_the_dark(tmp_path):
    for name, picture in (("map", "Greys"), ("dark", "gray")):
        figure, [[ax]] = grid(1, 1)
        ax.imshow([[0.0, 0.1], [0.0, 1.0]], cmap=picture)
        path = save(figure, tmp_path, name)[0]
        assert pictures.own_width(path) == pytest.approx(3.2 * 96)
        styled = pictures.in_the_dark(path.read_bytes()).decode()
        assert "prefers-color-scheme: dark" in styled
        assert ("invert(1)" in styled) == (name == "map")  # a bright map becomes dark, and a dark one stays
    assert pictures.in_the_dark(b"<svg></svg>") == b"<svg></svg>"


def test_hostile_contents_stay_text(copy, tmp_path):
    report_cases.add_extras(copy)
    report_cases.add_attacks(copy)
    page = report.write(copy, tmp_path / "report.html").read_text()
    assert report_cases.ATTACK not in page
    assert html.escape(report_cases.ATTACK, quote=False).replace("'", "&#39;") in page  # it is there, as text
    elements = Elements()
    elements.feed(page)
    assert [name for name, _ in elements.found].count("script") == 2
    for name, attributes in elements.found:
        assert name in ALLOWED
        assert not [key for key in attributes if key.startswith("on")]
        assert attributes.get("src", "data:image/").startswith("data:image/")
        assert attributes.get("href", "#").startswith(("#", "data:text/csv;", "https://arxiv.org/abs/1603.00391"))


ALLOWED = (
    "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "h3", "h4", "p", "nav", "ul", "li", "a",
    "span", "main", "section", "table", "thead", "tbody", "tr", "th", "td", "div", "code", "b", "i", "details",
    "summary", "caption", "figure", "img", "figcaption", "script", "button", "small",
)  # fmt: skip


class Elements(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
