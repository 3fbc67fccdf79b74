"""Generated parts of README.md and of the pages in docs/: tables and numbers from the records.

A part stands between ``<!-- generated: NAME ARGUMENTS -->`` and ``<!-- end -->``. ``python -m noisyact_lab.site``
writes it, Sphinx generates it again, and a test compares it with the records.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from noisyact_lab.site import results, speed

__all__ = ["GENERATORS", "generate", "pages", "refreshed"]

GENERATORS: dict[str, Callable[..., str]] = {
    "about": results.about,
    "accelerated": speed.accelerated,
    "accelerated-on-gpu": speed.accelerated_on_gpu,
    "activations": speed.activations,
    "arms": results.arms,
    "attention": speed.attention,
    "compared": results.compared,
    "difference": results.difference,
    "finding": results.finding,
    "gains": results.gains,
    "gates": results.gates,
    "grid-extent": speed.grid_extent,
    "grid-groups": speed.grid_groups,
    "grid-means": speed.grid_means,
    "grid-options": speed.grid_options,
    "grid-slower": speed.grid_slower,
    "memory-ppo": results.memory_ppo,
    "noise": results.noise,
    "number": results.number,
    "recurrent": speed.recurrent,
    "resets": speed.resets,
    "saturated-start": results.saturated_start,
    "scope": speed.scope,
    "search": speed.search,
    "speed-caption": speed.caption,
}
"""The function of each name. It takes the repository's root and the arguments, and returns Markdown."""

_PART = re.compile(r"(<!-- generated: ([^>]*?) -->)(.*?)(<!-- end -->)", re.DOTALL)


def generate(root: Path, call: str) -> str:
    """The Markdown of a call such as ``arms ptb-word``."""
    name, *arguments = call.split()
    if name not in GENERATORS:
        raise ValueError(f"generated: {name!r} is unknown; allowed are {', '.join(GENERATORS)}")
    return GENERATORS[name](root, *arguments)


def pages(root: Path) -> list[Path]:
    """README.md and every page of the documentation."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def refreshed(root: Path, text: str) -> str:
    """A Markdown text with all its generated parts generated again: blocks, or numbers inside a sentence."""

    def part(match: re.Match[str]) -> str:
        space = "\n\n" if match[3].startswith("\n") else ""
        return f"{match[1]}{space}{generate(root, match[2])}{space}{match[4]}"

    return _PART.sub(part, text)
