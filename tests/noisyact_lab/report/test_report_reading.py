"""The report page on phones, on paper, in dark mode, without scripts, and with malicious runs."""

import re
import shutil

import pytest
import report_cases
from browser_cases import chromium, in_a_browser, opened_page, runs_with_extras, written_page  # noqa: F401

from noisyact_lab.report import page as report

pytestmark = in_a_browser

# Of every element with text of its own the least contrast with what is behind it, by WCAG.
CONTRASTS = """() => {
  const part = (v) => (v /= 255, v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = numbers(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
      if (colour[3] !== 0) throw new Error("half transparent");
    }
    throw new Error("no background");
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || ["SCRIPT", "NOSCRIPT", "OPTION"].includes(node.tagName) || !node.checkVisibility()) continue;
    if (node.closest("label")?.querySelector(":disabled")) continue;
    const style = getComputedStyle(node);
    const colour = numbers(node instanceof SVGElement ? style.fill : style.color);
    const [dark, light] = [luminance(colour), luminance(behind(node))].sort((a, b) => a - b);
    found.push([(light + 0.05) / (dark + 0.05), node.tagName, node.textContent.slice(0, 40)]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_text_can_be_read(opened, scheme):
    page = opened(color_scheme=scheme)
    page.locator("#unique-smoke .legend button").first.click()  # hidden arms are read too
    page.locator("#unique-smoke .curves svg").last.focus()
    page.keyboard.press("End")
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    found = page.evaluate(CONTRASTS)
    assert len(found) > 150
    assert {"TD", "TH", "P", "text", "SPAN", "BUTTON", "CODE", "H2", "A", "SUMMARY"} <= {name for _, name, _ in found}
    assert min(found)[0] >= 4.5, min(found)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"dark": "rgb(20, 23, 28)", "light": "rgb(252, 252, 251)"}[scheme]


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_is_wider_than_the_screen(opened, width):
    page = opened(width=width)
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    for panels in (False, True):
        page.get_by_label("one panel per arm").set_checked(panels)
        page.locator("#unique-smoke .curves svg").first.focus()
        page.keyboard.press("End")
        assert page.evaluate("document.documentElement.scrollWidth") == width
    # The letters of a chart are as large on a phone as on a desk.
    sizes = page.evaluate("[...document.querySelectorAll('.chart svg')].map((s) => s.getScreenCTM().a)")
    assert sizes == pytest.approx([1.0] * len(sizes), abs=0.02)
    if width == 390:
        labels = page.locator("#unique-smoke td[data-label=paper]").first
        assert labels.evaluate("(cell) => getComputedStyle(cell, '::before').content") == '"paper"'


def test_charts_follow_the_width(opened):
    page = opened(width=1280)
    svg = page.locator("#unique-smoke .curves svg").first
    page.set_viewport_size({"width": 500, "height": 900})
    page.wait_for_function("() => document.querySelector('.curves svg').viewBox.baseVal.width < 500")
    assert svg.evaluate("(s) => s.getScreenCTM().a") == pytest.approx(1.0, abs=0.02)


def test_paper_has_no_controls(opened, tmp_path):
    page = opened(color_scheme="dark")
    visible = {
        name: page.locator(name).all() for name in ("nav", ".controls", ".legend button", ".chart svg", "table.arms")
    }
    assert all(node.is_visible() for nodes in visible.values() for node in nodes)
    page.locator("#unique-smoke .legend button").first.click()
    page.emulate_media(media="print", color_scheme="dark")
    for name in ("nav", ".controls", "select", "input", "details:not(.printed)"):
        assert page.locator(name).count()
        assert not any(node.is_visible() for node in page.locator(name).all())
    for name in (".chart svg", "table.arms", ".samples", "img"):
        assert all(node.is_visible() for node in page.locator(name).all())
    assert [button.is_visible() for button in page.locator("#unique-smoke .legend button").all()] == [False, True, True]
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    data = page.pdf(format="A4")
    assert data.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 12


def test_folded_samples_are_printed(opened):
    page = opened()
    closed = page.locator("details.samples:not([open])")
    assert closed.count() == 1
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert closed.count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert closed.count() == 1


def test_tables_need_no_script(opened):
    page = opened(java_script_enabled=False)
    assert page.get_by_role("row", name="LSTM reference").is_visible()
    assert page.get_by_text("The curves need JavaScript, which is disabled.").is_visible()


NAME = """(node) => node.getAttribute("aria-label") || node.alt || node.textContent.trim()
  || node.closest("label")?.textContent.trim() || node.querySelector("img")?.alt"""


def test_everything_has_a_name_and_can_be_reached(opened):
    """Roles and names as assistive technology has them, and the tab key's way through a section."""
    page = opened()
    for node in page.locator("button, select, input, svg[tabindex], [role=region], section, nav, img").all():
        assert node.evaluate(NAME), node.evaluate("(n) => n.outerHTML.slice(0, 100)")
    page.locator("#unique-smoke .legend button").first.focus()
    reached = []
    for _ in range(12):
        reached.append(page.evaluate("[document.activeElement.tagName, document.activeElement.name || '']"))
        page.keyboard.press("Tab")
    boxes = [["INPUT", name] for name in ("log-y", "log-x", "runs", "panels")]
    assert reached == [["BUTTON", ""]] * 5 + boxes + [["svg", ""]] * 3
    names = page.evaluate("[...document.querySelectorAll('[id]')].map((node) => node.id)")
    assert len(set(names)) == len(names)


def test_hostile_runs_cannot_run_script(browser, runs, tmp_path):
    out = shutil.copytree(runs, tmp_path / "runs")
    report_cases.add_attacks(out)
    path = report.write(out, tmp_path / "report.html")
    context = browser.new_context(offline=True)
    page = context.new_page()
    asked, failed = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    page.get_by_role("checkbox", name="every run").check()
    for svg in page.locator("svg").all():
        svg.focus()
        page.keyboard.press("End")
    assert page.evaluate("window.hacked") is None
    assert failed == []
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    text = page.locator("body").inner_text()
    for seen in (report_cases.ATTACK, "<img src=x onerror=window.hacked=4>", "<img src=x onerror=window.hacked=5>"):
        assert seen in text  # shown, as what it is
    assert page.locator("img[src=x]").count() == 0
    # Injected markup could not run code either, because the page's policy only allows its own script.
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 7\">')")
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.hacked = 8'}))")
    page.wait_for_timeout(100)
    assert page.evaluate("window.hacked") is None
    context.close()
