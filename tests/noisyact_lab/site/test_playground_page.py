"""The playground on a page of the site, in a real browser."""

import pytest
from browser_cases import chromium, in_a_browser  # noqa: F401

from noisyact_lab.site import playground

pytestmark = in_a_browser

PAGE = """<!doctype html><body data-theme="{theme}"><section id="playground"><h1>Playground</h1>
<link rel="stylesheet" href="playground.css"><div id="phi-playground"></div></section>
<table><tr><td id="outside">text</td></tr></table><script src="playground.js"></script></body>"""


@pytest.mark.parametrize(("theme", "colour"), [("light", "rgb(86, 94, 106)"), ("dark", "rgb(164, 173, 186)")])
def test_it_works_in_either_theme_and_changes_nothing_else(browser, tmp_path, theme, colour):
    playground.write(tmp_path)
    (tmp_path / "page.html").write_text(PAGE.format(theme=theme))
    page = browser.new_page(color_scheme="light" if theme == "dark" else "dark")
    said = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((tmp_path / "page.html").as_uri())
    assert page.locator("h1").inner_text() == "Playground"
    assert page.locator("#phi-playground .chart svg").count() == 2
    page.locator("select[name=scheme]").select_option("nani")
    assert page.locator(".formula").inner_text().startswith("NANI")
    colours = "(place) => getComputedStyle(document.querySelector(place)).color"
    assert page.evaluate(colours, ".formula") == colour
    assert page.evaluate(colours, "#outside") == "rgb(0, 0, 0)"
    page.close()
    assert said == []
