"""Optional dependencies: how to install them."""

from __future__ import annotations

__all__ = ["how_to_install"]


def how_to_install(extra: str) -> str:
    """The command that installs one of the extras of pyproject.toml. The package is on no index, so it names no name.

    >>> how_to_install("ray")
    "pip install '.[ray]' in a checkout of noisyact"
    """
    return f"pip install '.[{extra}]' in a checkout of noisyact"
