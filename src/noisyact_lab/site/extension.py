"""The Sphinx extension of the documentation: generated parts, public names and links to them, MathML, the playground.

The generated parts of every page are generated again when it is read. The directive ``public`` documents the names of
``noisyact`` that a module defines. Formulas become MathML, which browsers show without a script, so the site needs no
network.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import noisyact
from noisyact_lab.site import drawings, playground
from noisyact_lab.site.gallery import Gallery
from noisyact_lab.site.generated import refreshed

__all__ = ["public_names", "setup"]


def public_names(module: str) -> list[str]:
    """The names in ``noisyact.__all__`` that a module or a module below it defines, in the order of the source.

    >>> public_names("noisyact.diagnostics")
    ['FiniteWatch', 'saturation']
    """
    found = []
    for name in noisyact.__all__:
        value = getattr(noisyact, name)
        home = _home(name, value)
        if home == module or home.startswith(f"{module}."):
            found.append((_RANK.get(type(value).__name__, 0), home, _line(value), name))
    return [name for *_, name in sorted(found, key=lambda place: (place[1] != module, *place))]


_RANK = {"HardPair": 1}
"""Constants come after classes and functions."""


def _home(name: str, value: Any) -> str:
    """The module that defines a public name; a constant is defined where its type is."""
    return getattr(value, "__module__", None) or type(value).__module__ if not inspect.ismodule(value) else ""


def _line(value: Any) -> int:
    try:
        return inspect.getsourcelines(value)[1]
    except (OSError, TypeError):
        return sys.maxsize


def _inherits_forward(value: Any) -> bool:
    """Whether a layer has its call from a class of ours that is not public."""
    forward = getattr(value, "forward", None)
    ours = getattr(forward, "__module__", "").startswith("noisyact.")
    return inspect.isclass(value) and ours and "forward" not in vars(value)


_COLON = "\N{INVISIBLE SEPARATOR}"


class PublicNames(SphinxDirective):
    """The documentation of the public names of a module, from their docstrings."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Let autodoc document each name as ``noisyact.NAME``."""
        names = public_names(self.arguments[0])
        if not names:
            raise self.error(f"public: {self.arguments[0]} defines no public name of noisyact")
        lines = ["```{eval-rst}", ".. currentmodule:: noisyact", ""]
        for name in names:
            value = getattr(noisyact, name)
            kind = "class" if inspect.isclass(value) else "function" if callable(value) else "data"
            lines += [f".. auto{kind}:: {name}", *(["   :members:"] if kind == "class" else []), ""]
            if _inherits_forward(value):
                lines += ["   .. automethod:: forward", ""]
        return self.parse_text_to_nodes("\n".join([*lines, "```"]))


def _refresh(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = refreshed(Path(app.srcdir).parent, source[0])


def _resolve(app: Sphinx, env: Any, node: Any, content: nodes.Node) -> nodes.Node | None:
    """Lead a reference such as :class:`Pair` or ``noisyact.pairs.Pair`` to ``noisyact.Pair``, wherever it stands."""
    parts = node.get("reftarget", "").split(".")
    first = next((i for i, part in enumerate(parts) if part in noisyact.__all__), None)
    if node.get("refdomain") != "py" or first is None:
        return None
    domain = env.get_domain("py")
    full = ".".join(["noisyact", *parts[first:]])
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", full, node, content)


def _prepare(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Prepare a docstring of ours for reStructuredText and napoleon.

    ``|xi|`` outside of code would be a substitution. What stands before a colon in the first line of a property's
    docstring would be its type, so the colon is hidden until napoleon is done.
    """
    for i, line in enumerate(lines):
        if ">>>" not in line:
            parts = line.split("``")
            lines[i] = "``".join(part.replace("|", "\\|") if j % 2 == 0 else part for j, part in enumerate(parts))
    if what in ("property", "attribute", "data"):
        lines[:1] = [line.replace(":", _COLON) for line in lines[:1]]


def _restore(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [line.replace(_COLON, ":") for line in lines]


_CODE = re.compile(r"(?:na\.|noisyact\.)?([A-Za-z]\w*)(?:\(.*\))?", re.DOTALL)


def _link_names(app: Sphinx, doctree: nodes.document) -> None:
    """Let code in a sentence that is a public name or a call of one, such as `na.noisify(model)`, lead to it."""
    for code in list(doctree.findall(nodes.literal)):
        match = _CODE.fullmatch(code.astext())
        name = match[1] if match else None
        inside = isinstance(code.parent, (nodes.reference, nodes.title, addnodes.pending_xref))
        if name not in noisyact.__all__ or inspect.ismodule(getattr(noisyact, name)) or inside:
            continue
        place = {"refdomain": "py", "reftype": "obj", "reftarget": f"noisyact.{name}", "refdoc": app.env.docname}
        reference = addnodes.pending_xref("", **place, refexplicit=True, refwarn=True)
        code.replace_self(reference)
        reference += code


def _add_anchors(app: Sphinx, doctree: nodes.document) -> None:
    """Let a name be found under each module that shows it: viewcode's links back know one of them for a whole file."""
    for signature in doctree.findall(addnodes.desc_signature):
        for module in ("noisyact", "noisyact.functional"):
            anchor = f"{module}.{signature.get('fullname')}"
            if anchor not in doctree.ids:
                signature["ids"].append(anchor)
                doctree.ids[anchor] = signature


def _math(self: Any, node: nodes.Node, block: bool) -> None:
    source = node.astext()
    self.body.append(latex2mathml.tex2mathml(source, as_block=block))
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register everything."""
    app.add_directive("public", PublicNames)
    app.add_directive("gallery", Gallery)
    app.add_html_math_renderer(
        "mathml",
        (lambda self, node: _math(self, node, False), None),
        (lambda self, node: _math(self, node, True), None),
    )
    app.connect("source-read", _refresh)
    app.connect("doctree-read", _add_anchors)
    app.connect("doctree-read", _link_names)
    app.connect("missing-reference", _resolve)
    app.connect("autodoc-process-docstring", _prepare, priority=100)  # napoleon has 500
    app.connect("autodoc-process-docstring", _restore, priority=900)
    app.connect("builder-inited", lambda app: drawings.draw_all(Path(app.srcdir).parent, Path(app.srcdir) / "_drawn"))
    app.connect("build-finished", _write_playground)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _write_playground(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        playground.write(Path(app.outdir) / "_static")
