"""The page in a real browser: Debian's chromium, driven by Playwright."""

import importlib.util
import shutil

import pytest
from report_cases import add_extras, real_runs

from noisyact_lab.report import page as report

PIXEL = "data:image/svg+xml;base64,PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciIHdpZHRoPSI5IiBoZWlnaHQ9IjkiLz4="
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if importlib.util.find_spec("playwright") is None:
    MISSING = "Python's package playwright is not installed: pip install -r requirements.txt"
elif CHROMIUM is None:
    MISSING = "none of chromium, chromium-browser, google-chrome is on the PATH: apt-get install chromium"
else:
    MISSING = ""
in_a_browser = [pytest.mark.browser, pytest.mark.skipif(bool(MISSING), reason=MISSING)]


@pytest.fixture(scope="module", name="browser")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module", name="runs")
def runs_with_extras(tmp_path_factory):
    out = real_runs(tmp_path_factory.mktemp("page") / "runs")
    add_extras(out)
    return out


@pytest.fixture(scope="module", name="written")
def written_page(runs):
    return report.write(runs, runs.parent / "report.html", [{"caption": "a figure", "source": PIXEL}])


@pytest.fixture(name="opened")
def opened_page(browser, written):
    """Opens the page; whatever it complains of or asks for is an error at the end of the test."""
    contexts, said = [], []

    def opening(path=written, width=1280, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if not own(request.url, path) else None)
        page.goto(path.as_uri())
        return page

    yield opening
    for context in contexts:
        context.close()
    assert said == []


def own(url, path):
    return url == path.as_uri() or url.startswith("data:")
