"""Pictures of runs as data URLs, drawn for light and dark pages.

matplotlib draws black on white. In a dark page an SVG gets the page's colours instead, by a style of its own: the
background and the text change, coloured lines stay. A raster in it, such as a map of attention, is inverted if the
picture's rasters are grey and mostly bright, as a map that is white where nothing is; photos and dark maps stay.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from pathlib import Path

__all__ = ["KINDS", "embedded", "in_the_dark", "own_width"]

KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
"""The types of pictures by the ends of their names."""
_MOST_BYTES = 2_000_000
"""The maximum size of a picture in bytes."""
_STYLE = """@media screen and (prefers-color-scheme: dark) {
svg { fill: #e6e9ed; }
[style*="fill: #ffffff"] { fill: #1b1f26 !important; }
[style*="stroke: #000000"] { stroke: #e6e9ed !important; }
[style*="stroke: #ffffff"] { stroke: #1b1f26 !important; }
}"""
_INVERTED = "@media screen and (prefers-color-scheme: dark) { image { filter: invert(1); } }"


def embedded(path: Path) -> str:
    """Return an SVG or PNG file as a data URL."""
    if path.is_symlink() or not path.is_file():
        raise ValueError(f"{path.name} is not a plain file")
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes; at most {_MOST_BYTES:,} are shown")
    data = path.read_bytes()
    if path.suffix == ".svg":
        data = in_the_dark(data)
    if path.suffix == ".png" and not data.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError(f"{path.name} is not a PNG file")
    if path.suffix == ".svg" and b"<svg" not in data:
        raise ValueError(f"{path.name} is not an SVG file")
    return f"data:{KINDS[path.suffix]};base64,{base64.b64encode(data).decode()}"


def in_the_dark(svg: bytes) -> bytes:
    """An SVG file of matplotlib with a style for dark pages. Other SVG files are returned as they are.

    >>> plain = b'<svg><defs><style type="text/css">*{stroke-linejoin: round}</style></defs></svg>'
    >>> b"prefers-color-scheme: dark" in in_the_dark(plain)
    True
    """
    head, mark, rest = svg.partition(b'<style type="text/css">*{stroke-linejoin: round')
    if not mark:
        return svg
    style = _STYLE + (_INVERTED if _bright_and_grey(svg) else "")
    return head + f'<style type="text/css">{style}</style>'.encode() + mark + rest


def own_width(path: Path) -> float:
    """The width in pixels that an SVG file of matplotlib states in points; 0 if there is none."""
    with path.open("rb") as file:
        found = re.search(rb'<svg [^>]*width="([0-9.]+)pt"', file.read(2000))
    return float(found[1]) * 4 / 3 if found else 0.0


def _bright_and_grey(svg: bytes) -> bool:
    """Whether the rasters in an SVG file are grey, and mostly bright."""
    from matplotlib import image

    shares = []
    for data in re.findall(rb'"data:image/png;base64,([^"]*)"', svg):
        try:
            pixels = image.imread(io.BytesIO(base64.b64decode(data)))[..., :3]
        except (OSError, SyntaxError, ValueError, binascii.Error):
            return False
        if pixels.ndim != 3 or (pixels[..., :1] != pixels).any():
            return False
        shares.append(float(pixels.mean()))
    return bool(shares) and sum(shares) / len(shares) > 0.5
