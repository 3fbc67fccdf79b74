"""What the report page does in a browser: values, arms, axes and the playground."""

import itertools
import json
import math
import re

import pytest
import torch
from browser_cases import chromium, in_a_browser, opened_page, runs_with_extras, written_page  # noqa: F401

import noisyact as na
from noisyact_lab.analysis.statistics.intervals import mean_interval

pytestmark = in_a_browser


def headline(page):
    return page.locator("#unique-smoke .curves .chart").first


def recorded(runs, arm, metric="test_error"):
    """Of each seed its values by update."""
    lines = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in sorted((runs / "unique" / "smoke" / arm).glob("seed-*"))
    ]
    return [{line["update"]: line[metric] for line in of_seed} for of_seed in lines]


def short(value):
    """As the page writes numbers."""
    return f"{float(f'{value:.4g}'):g}"


def test_it_fills_itself_without_a_network_or_a_complaint(opened):
    page = opened()
    assert page.locator(".chart svg").count() == 3 + 3 + 2  # test error, c, loss; the noise of a gate; the playground
    assert page.locator("#unique-smoke table.arms tbody tr").count() == 9
    assert page.get_by_role("row", name="hard LSTM, no noise").inner_text().endswith("1 diverged")
    assert page.locator(".samples[open] td").first.inner_text() == "a=3\nprint(a+4)"
    for picture in page.locator("img").all():
        assert picture.evaluate("(image) => image.naturalWidth") > 0
    assert page.evaluate("window.hacked") is None  # a picture's script


def test_hovering_shows_the_values_and_their_interval(opened, runs):
    page = opened()
    chart = headline(page)
    tip = chart.locator(".tip")
    assert not tip.is_visible()
    chart.locator("svg").hover(position={"x": 900, "y": 100})  # the last update is nearest
    mean, low, high = mean_interval([seed[60] for seed in recorded(runs, "reference")])
    assert tip.locator("b").inner_text() == "update 60"
    row = tip.locator(".value", has_text=re.compile("^LSTM"))
    number, *ends = re.findall(r"-?[\d.]+", row.locator(".figure").inner_text())
    assert float(number) == pytest.approx(mean, rel=1e-3)
    assert [float(end) for end in ends] == pytest.approx([low, high], rel=1e-3)
    page.mouse.move(5, 5)
    assert not tip.is_visible()


def test_a_tap_shows_the_values_until_the_next_elsewhere(opened):
    """The values of a tap stay visible when the finger is lifted."""
    page = opened(width=390, has_touch=True, is_mobile=True)
    first, second = (page.locator("#unique-smoke .curves .chart").nth(i) for i in (0, 1))
    first.scroll_into_view_if_needed()
    first.locator("svg").tap(position={"x": 300, "y": 100})
    assert first.locator(".tip").is_visible()
    assert first.locator(".tip b").inner_text() == "update 60"
    assert first.locator("line.hair").count() == 1
    assert first.locator("svg").evaluate("(svg) => getComputedStyle(svg).outlineStyle") == "none"
    box = first.locator(".tip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    first.locator("svg").tap(position={"x": 60, "y": 100})
    assert first.locator(".tip b").inner_text() == "update 20"
    second.locator("svg").tap(position={"x": 200, "y": 80})
    assert second.locator(".tip").is_visible()
    assert not first.locator(".tip").is_visible()
    page.locator("h3", has_text="Learning curves").first.tap()
    assert not second.locator(".tip").is_visible()


def test_scrolling_over_a_chart_shows_nothing(opened):
    """A touch that scrolls the page does not ask for values."""
    page = opened(width=390, has_touch=True, is_mobile=True)
    chart = headline(page)
    chart.scroll_into_view_if_needed()
    box, before = chart.locator("svg").bounding_box(), page.evaluate("scrollY")
    touch = page.context.new_cdp_session(page)
    place = {"x": box["x"] + 150, "y": box["y"] + 150}
    touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [place]})
    for step in range(1, 6):
        moved = {**place, "y": place["y"] - 25 * step}
        touch.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [moved]})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.wait_for_function("(before) => scrollY > before", arg=before)
    assert not chart.locator(".tip").is_visible()


def test_arrow_keys_read_the_curve(opened, runs):
    page = opened()
    chart = headline(page)
    chart.locator("svg").focus()
    seen = []
    for key in ("ArrowRight", "ArrowRight", "End", "ArrowLeft", "Home"):
        page.keyboard.press(key)
        seen.append(chart.locator(".tip b").inner_text())
    assert seen == ["update 20", "update 40", "update 60", "update 40", "update 20"]
    (stopped,) = recorded_lines(runs, "leak")
    partial = chart.locator(".tip .value", has_text="the leak alone (c = 0), seed 0 (partial)")
    assert partial.locator(".figure").inner_text() == short(stopped[20])
    page.keyboard.press("Escape")
    assert not chart.locator(".tip").is_visible()


def recorded_lines(runs, arm):
    """As `recorded`, of a run whose last line a kill has cut."""
    text = (runs / "unique" / "smoke" / arm / "seed-0" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [{line["update"]: line["test_error"] for line in lines}]


def test_arms_are_shown_and_hidden(opened):
    page = opened()
    lines = page.locator("#unique-smoke .curves path.line[data-title='NAN, annealed']")
    button = page.locator("#unique-smoke .legend").get_by_role("button", name="NAN, annealed", exact=True)
    assert lines.count() == 3 + 3
    button.click()
    assert (lines.count(), button.get_attribute("aria-pressed")) == (0, "false")
    assert page.locator("#unique-smoke .curves path.line[data-title='LSTM']").count() == 3 + 2  # it has no p
    button.focus()
    page.keyboard.press("Space")
    assert (lines.count(), button.get_attribute("aria-pressed")) == (3 + 3, "true")
    page.get_by_role("button", name="none", exact=True).click()
    assert page.locator("#unique-smoke .curves path.line").count() == 0
    assert headline(page).inner_text().endswith("nothing to show")
    page.get_by_role("button", name="all", exact=True).click()
    assert lines.count() == 3 + 3


def test_the_noise_of_every_gate_is_shown(opened, runs):
    page = opened()
    noise = page.locator("#unique-smoke .curves .multiples").nth(1)
    titles = [f"lstm.l0.i: {name}" for name in ("share saturated", "mean sigma", "mean |p|")]
    assert [chart.locator("h4").inner_text() for chart in noise.locator(".chart").all()] == titles
    select = page.get_by_label("Saturation and noise of")
    assert select.locator("option").all_text_contents() == [f"lstm.l0.{gate}" for gate in "ifgoc"]
    before = noise.locator("path.line").first.get_attribute("d")
    select.select_option("lstm.l0.c")
    assert noise.locator("path.line").first.get_attribute("d") != before
    page.get_by_label("one panel per arm").check()
    page.get_by_label("one panel per arm").uncheck()
    assert page.get_by_label("Saturation and noise of").input_value() == "lstm.l0.c"


def test_bands_runs_and_endings(opened):
    page = opened()
    chart = headline(page)
    assert chart.locator(".band").count() == 1  # of the arm with three runs
    assert chart.locator("circle.end").count() == 1  # the unfinished run
    assert chart.locator("path.run").count() == 1
    page.get_by_role("checkbox", name="every run").check()
    assert chart.locator("path.run").count() == 3 + 2 + 1
    page.get_by_label("one panel per arm").check()
    panels = page.locator("#unique-smoke .curves .chart")
    assert [panel.locator("h4").inner_text() for panel in panels.all()] == [
        "LSTM", "hard LSTM, the leak alone (c = 0)", "NAN, annealed"
    ]  # fmt: skip
    assert panels.first.locator("path.context").count() == 1
    ticks = [panel.locator("text.y").all_text_contents() for panel in panels.all()]
    assert ticks[0] == ticks[1] == ticks[2]


def test_the_axes_can_be_logarithmic(opened):
    """The places of the ticks are on a straight line against their values, or against the logarithms of these."""
    page = opened()
    chart = headline(page)

    def ticks(axis):
        found = chart.locator(f"text.tick.{axis}").evaluate_all(
            f"(ticks) => ticks.map((tick) => [tick.textContent, tick.getAttribute('{axis}')])"
        )
        assert len(found) >= 3
        return [(float(value), float(place)) for value, place in found]

    def bend(points):
        (x0, y0), (x1, y1), (x2, y2) = points[0], points[1], points[-1]
        return abs((y1 - y0) / (x1 - x0) * (x2 - x0) - (y2 - y0))

    def logarithms(points):
        return [(math.log(value), place) for value, place in points]

    drawn = chart.locator("path.line").first.get_attribute("d")
    before = [ticks("x"), ticks("y")]
    for axis in ("x", "y"):
        assert bend(ticks(axis)) < 0.5
        page.get_by_label(f"log {axis} axis").check()
        assert bend(logarithms(ticks(axis))) < 0.5
        assert bend(ticks(axis)) > 2
        assert ticks(axis) not in before
    assert chart.locator("path.line").first.get_attribute("d") != drawn
    for axis in ("x", "y"):
        page.get_by_label(f"log {axis} axis").uncheck()
    assert [ticks("x"), ticks("y")] == before


def test_a_picture_grows_and_shrinks(opened):
    page = opened()
    button = page.locator("figure button.zoom")
    widths = [button.locator("img").bounding_box()["width"]]
    for key in ("Enter", "Enter"):
        button.focus()
        page.keyboard.press(key)
        widths.append(button.locator("img").bounding_box()["width"])
    assert widths[0] < 60 < 500 < widths[1]  # its own 40 pixels, and then all there are
    assert widths[2] == widths[0]


SCHEMES = [
    *(na.NAN(c, alpha, clip) for c, alpha, clip in itertools.product((0.5, 30.0), (0.9, 1.0, 1.15), (False, True))),
    *(na.NAH(c, alpha) for c, alpha in itertools.product((0.0, 2.0), (0.85, 1.0, 1.15))),
    na.NANI(0.3), na.NANIL(0.5), na.NANIL(9.0), na.NANIS(0.25),
]  # fmt: skip


def test_the_playground_is_the_library(opened):
    """Values and derivatives of the page's own function against `functional.noisy` and its gradient."""
    page = opened()
    x = torch.linspace(-5, 5, 41, dtype=torch.float64, requires_grad=True)
    xi = torch.randn(41, dtype=torch.float64)
    cases, right = [], []
    pairs = {"tanh": na.HARD_TANH, "sigmoid": na.HARD_SIGMOID, "relu": na.RELU}
    for scheme, (name, pair), p in itertools.product(SCHEMES, pairs.items(), (-2.0, 0.3, 1.0)):
        settings = {"alpha": 1 - scheme.leak, "c": getattr(scheme, "c", 0.0), "p": p,
                    "sigma": getattr(scheme, "sigma", 0.0), "clip": scheme.clips}  # fmt: skip
        parameter = torch.tensor([p], dtype=torch.float64) if scheme.learns_p else None
        for drawn in (xi, None):
            value = na.functional.noisy(x, pair, scheme, parameter, drawn, training=drawn is not None)
            (slope,) = torch.autograd.grad(value.sum(), x)
            right.append(torch.stack([value.detach(), slope], dim=1))
            noise = [None] * 41 if drawn is None else drawn.tolist()
            cases.append([x.tolist(), noise, scheme.name, settings, name])
    found = page.evaluate("(cases) => cases.map(([x, xi, ...rest]) => x.map((v, i) => phi(v, xi[i], ...rest)))", cases)
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), torch.stack(right), rtol=1e-12, atol=1e-12)


def test_the_playground_follows_its_sliders(opened):
    page = opened()
    form = page.locator("#playground form")
    first = page.locator("#playground .chart").first

    def read():
        first.locator("svg").focus()
        page.keyboard.press("End")  # x = 4
        return float(first.locator(".value", has_text="expectation").locator(".figure").inner_text())

    form.locator("select[name=scheme]").select_option("nah")
    for name, number in (("alpha", "1.3"), ("c", "8"), ("p", "-0.5")):
        form.get_by_label(f"{name} as a number").fill(number)
        assert form.locator(f"input[type=range][name={name}]").input_value() == number
    expected = na.functional.noisy_hard_tanh(
        torch.tensor([4.0]), na.NAH(c=8.0, alpha=1.3), torch.tensor([-0.5]), training=False
    )
    assert read() == pytest.approx(expected.item(), rel=1e-3)
    assert "hard tanh, \N{GREEK SMALL LETTER ALPHA} = 1.3, c = 8, p = -0.5" in page.locator(".formula").inner_text()
    dots = page.locator("#playground path.dots").first
    before = dots.get_attribute("d")
    page.get_by_role("button", name="draw the noise again").click()
    assert dots.get_attribute("d") != before
    form.locator("input[type=range][name=alpha]").focus()
    page.keyboard.press("ArrowRight")
    assert form.get_by_label("alpha as a number").input_value() == "1.31"
    form.locator("select[name=scheme]").select_option("nanis")
    form.locator("select[name=pair]").select_option("sigmoid")
    assert form.get_by_label("alpha as a number").is_disabled()
    assert form.get_by_label("sigma as a number").is_enabled()
    assert read() == 1.0


def test_the_contents_mark_the_place(opened):
    page = opened()
    page.evaluate("document.getElementById('play').scrollIntoView({behavior: 'instant'})")
    page.wait_for_function("() => document.querySelector('nav [aria-current]')?.hash === '#play'")
    page.evaluate("document.getElementById('unique-smoke').scrollIntoView({behavior: 'instant'})")
    page.wait_for_function("() => document.querySelector('nav [aria-current]')?.hash === '#unique-smoke'")
    assert page.locator("nav [aria-current]").count() == 1
    assert page.locator("nav details[open]").count() == 1
    assert opened(width=390).locator("nav details[open]").count() == 0  # a phone shows the page first


def test_a_table_is_saved_as_csv(opened):
    page = opened()
    with page.expect_download() as saved:
        page.locator("#unique-smoke button.csv").first.click()
    lines = saved.value.path().read_text(encoding="utf-8-sig").splitlines()
    assert saved.value.suggested_filename == "unique-smoke.csv"
    assert len(lines) == 1 + page.locator("#unique-smoke table.arms tbody tr").count()
    assert lines[0].startswith('"arm","paper",')
