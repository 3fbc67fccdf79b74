"""The report page: what it shows, that it needs nothing from outside, and that its formulas are the library's."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import noisyact as na
from noisyact import equations
from noisyact.experiments import registry, report
from noisyact.experiments.files import write_json
from noisyact.experiments.run import folder_of, run
from noisyact.experiments.statistics import interval

PAGE = Path(report.__file__).parent / "page"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Two arms with two seeds, one diverged run and one that never finished."""
    folder = tmp_path_factory.mktemp("runs")
    unique = registry.load("unique")
    for arm in ("reference", "nan-annealed"):
        for seed in (0, 1):
            run(unique, arm, "smoke", seed, folder, device="cpu")
    run(unique, "hard", "smoke", 0, folder, device="cpu", changes={"learning_rate": 1e30})
    partial = folder_of(folder, "unique", "smoke", "leak", 0)
    shutil.copytree(folder_of(folder, "unique", "smoke", "reference", 0), partial)
    (partial / "result.json").unlink()
    return folder


def test_runs_are_gathered(out):
    (found,) = report.gather(out)
    arms = {arm["name"]: arm for arm in found["arms"]}
    assert arms["reference"]["finished"] == 2
    assert arms["hard"]["diverged"] == 1
    assert arms["leak"]["partial"] == 1
    assert arms["leak"]["mean"] is None
    values = [r["result"]["test_error"] for r in arms["nan-annealed"]["runs"]]
    assert (arms["nan-annealed"]["mean"], arms["nan-annealed"]["low"], arms["nan-annealed"]["high"]) == interval(values)
    assert found["metrics"][0] == "test_error"


def test_the_page_stands_alone(out, tmp_path):
    page = report.write(out, tmp_path / "report.html").read_text()
    assert not re.search(r"""(src|href)\s*=|url\(|@import|fetch\(|XMLHttpRequest""", page)
    assert "default-src 'none'" in page
    assert page.count("<script") == 2
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert data["experiments"][0]["name"] == "unique"
    empty = report.write(tmp_path / "nothing", tmp_path / "empty.html").read_text()
    assert "0 runs" in empty


def test_hostile_contents_stay_text(out, tmp_path):
    copy = tmp_path / "runs"
    shutil.copytree(out, copy)
    attack = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    result = folder_of(copy, "unique", "smoke", "reference", 0) / "result.json"
    record = json.loads(result.read_text())
    write_json(result, record | {"status": attack})
    (copy / "unique" / "smoke" / "<b>").mkdir()
    page = report.write(copy, tmp_path / "report.html").read_text()
    assert attack not in page
    assert "alert(1)" in page  # it is there, as data
    assert page.count("<script") == 2


def test_the_playground_has_the_librarys_formulas(tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the JavaScript cannot be run")
    cases, right = [], []
    torch.manual_seed(0)
    pairs = {"tanh": na.HARD_TANH, "sigmoid": na.HARD_SIGMOID}
    for scheme in (
        na.NAN(c=2.0, alpha=1.15),
        na.NAH(c=0.5, alpha=0.9),
        na.NANI(sigma=0.3),
        na.NANIL(c=3.0),
        na.NANIS(),
    ):
        for name, pair in pairs.items():
            for x in (-6.0, -2.0, -1.0, -0.3, 0.0, 0.7, 1.0, 2.0, 5.5):
                for xi in (None, -1.2, 0.4):
                    settings = {"alpha": 1 - scheme.leak, "c": getattr(scheme, "c", 0.0), "p": -1.3,
                                "sigma": getattr(scheme, "sigma", 0.0)}  # fmt: skip
                    cases.append([x, xi, scheme.name, settings, name])
                    leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)
                    drawn = None if xi is None else torch.tensor(xi, dtype=torch.float64)
                    value = equations.phi(leaf, pair, scheme, scheme.scale, -1.3, drawn)
                    right.append([value.item(), *(g.item() for g in torch.autograd.grad(value, leaf))])
    code = (
        f"const {{phi}} = require({json.dumps(str(PAGE / 'phi.js'))});"
        f"console.log(JSON.stringify({json.dumps(cases)}.map((a) => phi(...a))))"
    )
    script = tmp_path / "check.js"
    script.write_text(code)
    found = json.loads(subprocess.run([node, str(script)], capture_output=True, text=True, check=True).stdout)
    torch.testing.assert_close(
        torch.tensor(found, dtype=torch.float64), torch.tensor(right, dtype=torch.float64), rtol=1e-12, atol=1e-12
    )


def test_the_page_in_a_browser(out, tmp_path):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("chromium is not installed (Debian's package chromium): the page cannot be opened")
    page = report.write(out, tmp_path / "report.html", [{"title": "a figure", "svg": "<svg></svg>"}])
    shown = subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
            "--no-first-run", f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True, text=True, timeout=90, check=True,
    ).stdout  # fmt: skip
    assert "NAN, annealed" in shown
    assert "1 diverged" in shown
    assert "1 unfinished" in shown
    assert shown.count('class="line"') >= 4
    assert "expectation of the noise" in shown
