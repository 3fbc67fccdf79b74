"""Write the generated parts of README.md and docs/, and draw the figure of speed: ``python -m noisyact_lab.site``."""

from __future__ import annotations

import argparse
from pathlib import Path

from noisyact_lab.engine.folder.files import write_text
from noisyact_lab.site.generated import pages, refreshed
from noisyact_lab.site.speed_figure import save_speed_figure


def main(arguments: list[str] | None = None) -> None:
    """Do both, in the repository of the working directory or of `--root`."""
    parser = argparse.ArgumentParser(prog="python -m noisyact_lab.site", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(), help="the repository")
    root = parser.parse_args(arguments).root
    if not (root / "benchmarks").is_dir():
        parser.error(f"--root {root}: there are no records in it; it must be a checkout of the repository")
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        if (new := refreshed(root, text)) != text:
            write_text(page, new)
            print(page)
    print(save_speed_figure(root, root / "docs" / "_static" / "speed.png"))


if __name__ == "__main__":
    main()
