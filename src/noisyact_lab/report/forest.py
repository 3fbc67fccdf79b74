"""The effects of all experiments as one figure: a mark and its 95% interval for each, on a common axis, as SVG.

The axis is the relative change in per cent. It is linear near 0 and logarithmic beyond (asinh), since effects lie
between a hundredth of a per cent and the whole. The colours are those of the page, and follow the reader's choice of
light or dark, also where the file is shown as an image.
"""

from __future__ import annotations

import dataclasses
import html
import itertools
import math
from collections.abc import Sequence

from noisyact_lab.analysis.effects import KINDS, Effect

__all__ = ["forest"]

_HEAD, _BOTTOM = 30, 58


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The places of things, in pixels. The axis goes from `left` to `right`."""

    width: int
    left: int
    right: int
    row: int
    beside: bool
    """Whether names are to the left of the axis and numbers to its right; otherwise both are above the mark."""

    def x(self, percent: float) -> float:
        """The place of a change on the axis.

        >>> _WIDE.x(0.0), _WIDE.x(1e9) == _WIDE.x(_LIMIT) == _WIDE.right
        (462.5, True)
        """
        bounded = max(-_LIMIT, min(_LIMIT, percent))
        share = math.asinh(bounded) / math.asinh(_LIMIT)
        return round((self.left + self.right) / 2 + (self.right - self.left) / 2 * share, 1)


_WIDE = _Layout(880, 285, 640, 20, True)
_NARROW = _Layout(360, 12, 348, 36, False)
_LIMIT = 130.0
"""The axis ends at plus and minus this; an interval that goes on has an arrow."""
_TICKS = (-100, -30, -10, -3, -1, 0, 1, 3, 10, 30, 100)
_STYLE = """
.forest { --f-ink: #1c2026; --f-muted: #565e6a; --f-grid: #e9ebee; --f-clear: #0a5da8; --f-paper: #fcfcfb;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
@media screen and (prefers-color-scheme: dark) {
  .forest { --f-ink: #e6e9ed; --f-muted: #a4adba; --f-grid: #2a2f38; --f-clear: #83bdf5; --f-paper: #14171c; } }
.forest text { font-size: 12px; fill: var(--f-ink); font-variant-numeric: tabular-nums; }
.forest .kind { font-weight: 600; } .forest .muted { fill: var(--f-muted); } .forest .middle { text-anchor: middle; }
.forest .end { text-anchor: end; } .forest a text { text-decoration: underline; text-decoration-color: var(--f-muted); }
.forest .grid { stroke: var(--f-grid); } .forest .zero { stroke: var(--f-muted); }
.forest .interval { stroke: var(--f-ink); stroke-width: 1.5; fill: none; }
.forest .clear .interval { stroke: var(--f-clear); }
.forest .mark { fill: var(--f-paper); stroke: var(--f-ink); stroke-width: 1.5; }
.forest .clear .mark { fill: var(--f-clear); stroke: var(--f-clear); } .forest .bare .mark { stroke: var(--f-muted); }
"""


def forest(effects: Sequence[Effect], page: str | None = None, *, narrow: bool = False) -> str:
    """The figure as the text of an SVG element.

    Args:
        effects: as :func:`noisyact_lab.analysis.effects.effects_of` has them.
        page: the address of the report page, to whose sections the names link: "" for the page itself, None for no
            links, as an image needs it.
        narrow: 360 pixels wide, for a phone, instead of 880.
    """
    at, top = _NARROW if narrow else _WIDE, 18
    groups = [(kind, list(rows)) for kind, rows in itertools.groupby(effects, key=lambda effect: effect.kind)]
    inner = sum(_HEAD + at.row * len(rows) for _, rows in groups)
    height = top + inner + _BOTTOM
    parts = [
        f'<svg class="forest" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {at.width} {height}" width="{at.width}" '
        f'height="{height}" role="img" aria-label="Effects of the leak and of noise in every experiment">',
        f"<style>{_STYLE}</style>",
    ]
    for tick in _TICKS:
        x, style = at.x(tick), "grid" if tick else "zero"
        parts.append(f'<line class="{style}" x1="{x}" x2="{x}" y1="{top}" y2="{top + inner + 4}"/>')
        parts += [_text(x, y, f"{tick:+d}" if tick else "0", "muted middle") for y in (14, top + inner + 20)]
    y = top
    for kind, rows in groups:
        parts.append(_text(0, y + 20, KINDS[kind][0].upper() + KINDS[kind][1:], "kind"))
        y += _HEAD
        for effect in rows:
            parts.append(_row(effect, y + at.row / 2, at, page))
            y += at.row
    legend = (
        ("change in % of the arm compared with; right is better", "logarithmic beyond ±1%; filled: p < 0.05 after Holm")
        if narrow
        else (
            "change in % of the arm compared with; right is better; logarithmic beyond ±1%",
            "filled: p < 0.05 after Holm's correction over all; grey: too few seeds for an interval",
        )
    )
    middle = (at.left + at.right) / 2
    parts += [_text(middle, y + 38 + 16 * i, line, "muted middle") for i, line in enumerate(legend)]
    return "\n".join([*parts, "</svg>"])


def _row(effect: Effect, y: float, at: _Layout, page: str | None) -> str:
    style = "clear" if effect.clear else "bare" if effect.low is None else "open"
    name = f"{effect.experiment}: {effect.arm}" if effect.arm != "leak" else effect.experiment
    label = _text(at.left - 12, y + 4, name, "end") if at.beside else _text(0, y - 4, name, "")
    if page is not None:
        label = f'<a href="{html.escape(page)}#{html.escape(effect.section)}">{label}</a>'
    if at.beside:
        metric = effect.metric.replace("_", " ")
        numbers = _text(at.right + 12, y + 4, f"{effect.shown}  {metric}, n = {effect.seeds}", "muted")
    else:
        count = f", n = {effect.seeds}" if len(name) < 32 else ""
        numbers = _text(at.width, y - 4, f"{effect.shown}{count}", "muted end")
        y += 7
    inside = [f'<g class="{style}"><title>{html.escape(effect.sentence)}</title>']
    if effect.low is not None and effect.high is not None:
        inside.append(f'<path class="interval" d="{_interval(effect.low, effect.high, y, at)}"/>')
    if abs(effect.estimate) <= _LIMIT:
        inside.append(f'<circle class="mark" cx="{at.x(effect.estimate)}" cy="{y}" r="4"/>')
    return "".join([label, *inside, numbers, "</g>"])


def _interval(low: float, high: float, y: float, at: _Layout) -> str:
    """A line, with an arrow at an end that is beyond the axis."""
    a, b = at.x(low), at.x(high)
    path = f"M{a} {y}H{b}"
    if low < -_LIMIT:
        path += f"M{a + 5} {y - 4}L{a} {y}L{a + 5} {y + 4}"
    if high > _LIMIT:
        path += f"M{b - 5} {y - 4}L{b} {y}L{b - 5} {y + 4}"
    return path


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x}" y="{y}" class="{style}">{html.escape(text)}</text>'
