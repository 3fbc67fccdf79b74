"""The gallery of examples: each program of `examples/` with what its docstring says and its source."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

__all__ = ["Gallery", "described"]


def described(source: str) -> tuple[str, list[tuple[bool, str]]]:
    """The first line of a program's docstring, and its other paragraphs with whether each is preformatted.

    >>> described('\\"\\"\\"A model: it learns.\\n\\nMore of it.\\n\\nRun: python it.py\\n\\"\\"\\"')
    ('A model: it learns', [(False, 'More of it.'), (True, 'Run: python it.py')])
    """
    text = inspect.cleandoc(ast.get_docstring(ast.parse(source)) or "")
    title, *parts = text.split("\n\n")
    return title.rstrip("."), [(part.startswith((" ", "Run:", "Draw:")), part) for part in parts]


class Gallery(SphinxDirective):
    """A section for each example, in the order of their names."""

    def run(self) -> list[nodes.Node]:
        """Read the examples of the repository."""
        found: list[nodes.Node] = []
        for path in sorted((Path(self.env.srcdir).parent / "examples").glob("*.py")):
            self.env.note_dependency(str(path))
            found.append(self._section(path))
        return found

    def _section(self, path: Path) -> nodes.section:
        source = path.read_text(encoding="utf-8")
        first, parts = described(source)
        title, _, rest = first.partition(": ")
        section = nodes.section(ids=[nodes.make_id(path.stem)], names=[path.stem])
        section += nodes.title(title, title)
        section += _paragraph(f"`examples/{path.name}`" + (f": {rest}." if rest else "."))
        for preformatted, part in parts:
            section += nodes.literal_block(part, part, language="text") if preformatted else _paragraph(part)
        section += nodes.raw("", "<details><summary>Source</summary>", format="html")
        section += nodes.literal_block(source, source, language="python")
        section += nodes.raw("", "</details>", format="html")
        return section


def _paragraph(text: str) -> nodes.paragraph:
    """A paragraph in which what stands between backticks is code."""
    parts = (nodes.literal(part, part) if i % 2 else nodes.Text(part) for i, part in enumerate(text.split("`")))
    return nodes.paragraph(text, "", *parts)
