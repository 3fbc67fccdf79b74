"""Parts of the report page: figures with intact glyphs, colours for the colour-blind, the library's formulas."""

import base64
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import noisyact as na
from noisyact import equations
from noisyact_lab.report import page

PAGE = Path(page.__file__).parent / "assets"


def test_the_figures_keep_their_letters(monkeypatch):
    """Their numbers are shortened; the scale of a glyph, 0.015625, must not be."""
    from noisyact_lab.report import figures

    monkeypatch.setattr(figures, "FIGURES", {"derivatives": figures.derivatives})
    (figure,) = page.drawn_figures()
    assert figure["caption"].startswith("Derivatives of tanh")
    svg = base64.b64decode(figure["source"].split(",")[1]).decode()
    assert "scale(0.015625)" in svg
    assert max(len(n) for n in re.findall(r"[1-9]\d*\.(\d+)", svg.split("<defs>", 1)[1])) == 2


def test_colours_differ_for_every_eye():
    """Against their paper 3 to 1, pairwise 25 apart in CIELAB, also as dichromats see them (Machado et al. 2009)."""
    eyes = {
        "all": np.eye(3),
        "protanopia": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
        "deuteranopia": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
        "tritanopia": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
    }
    css = (PAGE / "page.css").read_text()
    papers = re.findall(r"--paper: (#\w{6});", css)
    named = re.findall(r"--c\d: (#\w{6});", css)
    assert len(papers) == 2
    for paper, colours in zip(papers, (named[:8], named[8:]), strict=True):
        light = [linear(colour) for colour in colours]
        for colour in light:
            assert contrast(colour, linear(paper)) >= 3
        for eye in eyes.values():
            seen = [lab(np.array(eye) @ colour) for colour in light]
            assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) >= 25


def linear(colour):
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a, b):
    dark, light = sorted(float(np.dot(c, [0.2126, 0.7152, 0.0722])) for c in (a, b))
    return (light + 0.05) / (dark + 0.05)


def lab(rgb):
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_the_playground_has_the_librarys_formulas(tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the JavaScript cannot be run")
    cases, right = [], []
    schemes = [
        na.NAN(c=2.0, alpha=1.15), na.NAN(c=3.0, alpha=0.7, clip=True), na.NAH(c=0.5, alpha=0.9),
        na.NAH(c=9.0, alpha=1.15, clip=True), na.NANI(sigma=0.3), na.NANIL(c=3.0), na.NANIS(),
        na.NAH(draw="centred"), na.NAH(c=2.0, draw="mean"), na.NANI(sigma=0.3, draw="mean"),
        na.NANIL(c=9.0, draw="mean"), na.NANIS(draw="mean"),
    ]  # fmt: skip
    pairs = {"tanh": na.HARD_TANH, "sigmoid": na.HARD_SIGMOID, "relu": na.RELU}
    points = itertools.product((-6.0, -2.0, -1.0, -0.3, 0.0, 0.7, 1.0, 2.0, 5.5), (None, -1.2, 0.4), (-1.3, 0.4))
    for scheme, (name, pair), (x, xi, p) in itertools.product(schemes, pairs.items(), list(points)):
        settings = {"alpha": 1 - scheme.leak, "c": getattr(scheme, "c", 0.0), "p": p,
                    "sigma": getattr(scheme, "sigma", 0.0), "clip": scheme.clips, "draw": scheme.draw}  # fmt: skip
        cases.append([x, xi, scheme.name, settings, name])
        leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)
        drawn = None if xi is None else torch.tensor(xi, dtype=torch.float64)
        value = equations.phi(leaf, pair, scheme, scheme.scale, p, drawn)
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
