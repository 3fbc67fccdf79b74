"""The playground for a page of the site: the report's scripts, and its styles confined to the playground."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from noisyact_lab.engine.folder.files import write_text

__all__ = ["SCRIPTS", "styles", "write"]

SCRIPTS = ("phi.js", "scale.js", "chart.js", "playground.js")
_START = """
document.addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("phi-playground");
  place.replaceChildren();
  playground(place);
});
"""


def styles(css: str) -> str:
    """The report's styles, nested so that they apply inside the playground only, with its colours for either theme.

    The first rule for ``:root`` has the light colours and the second the dark ones. The site's theme is an attribute of
    the body, because a reader can choose it.
    """
    light, dark, *_ = re.findall(r":root\s*\{([^}]*)\}", css)
    return (
        f"#phi-playground {{ {light} }}\n"
        f'body[data-theme="dark"] #phi-playground {{ {dark} }}\n'
        "@media (prefers-color-scheme: dark) {\n"
        f'body:not([data-theme="light"]) #phi-playground {{ {dark} }}\n}}\n'
        f"#phi-playground {{\n{css}\n}}\n"
    )


def write(folder: Path) -> None:
    """Write `playground.js` and `playground.css`."""
    parts = {
        name: (resources.files("noisyact_lab.report") / "assets" / name).read_text(encoding="utf-8")
        for name in (*SCRIPTS, "page.css")
    }
    write_text(folder / "playground.js", "\n".join([*(parts[name] for name in SCRIPTS), _START]))
    write_text(folder / "playground.css", styles(parts["page.css"]))
