"""Changes of settings as the command line has them: name=value, lists of values, a TOML file."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["combinations", "from_file", "from_flags"]

_KEYS = ("arm", "seed", "preset", "device", "out", "settings")


def from_flags(flags: Sequence[str]) -> dict[str, str]:
    """The changes that ``--set name=value`` names.

    >>> from_flags(["hidden=16", "scheme=none"])
    {'hidden': '16', 'scheme': 'none'}
    """
    changes = {}
    for flag in flags:
        name, equals, value = flag.partition("=")
        if not equals or not name or not value:
            raise ValueError(f"--set {flag!r}: must be name=value")
        if name in changes:
            raise ValueError(f"--set {flag!r}: {name} is set twice")
        changes[name] = value
    return changes


def combinations(flags: Sequence[str]) -> list[dict[str, str]]:
    """Every combination of the values that ``--set name=v1,v2`` lists.

    >>> combinations(["c=0.5,1", "hidden=16"])
    [{'c': '0.5', 'hidden': '16'}, {'c': '1', 'hidden': '16'}]
    """
    lists = {}
    for name, text in from_flags(flags).items():
        lists[name] = text.split(",")
        if "" in lists[name] or len(set(lists[name])) < len(lists[name]):
            raise ValueError(f"--set {name}={text}: a value is empty or there twice")
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def from_file(path: Path) -> dict[str, Any]:
    """A file of what the flags of `run` say otherwise, with the changes of settings in a table `[settings]`."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"--config {path} is not TOML: {error}") from None
    for key in content:
        if key not in _KEYS:
            raise ValueError(f"--config {path}: {key!r} is unknown; allowed are {', '.join(_KEYS)}")
    kinds = {"seed": (int, "a whole number"), "settings": (dict, "a table")}
    for key, value in content.items():
        kind, words = kinds.get(key, (str, "text"))
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"--config {path}: {key}={value!r}: must be {words}")
    return content
