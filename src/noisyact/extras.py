"""Installation hints for optional dependencies."""

from __future__ import annotations

__all__ = ["how_to_install"]


def how_to_install(extra: str) -> str:
    """The command that installs one of pyproject.toml's extras. The package is not on PyPI, so it uses a checkout.

    >>> how_to_install("ray")
    "pip install '.[ray]' in a checkout of noisyact"
    """
    return f"pip install '.[{extra}]' in a checkout of noisyact"
