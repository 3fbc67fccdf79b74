"""Moses tokenisation and detokenisation, with sacremoses."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any

from noisyact.extras import how_to_install

__all__ = ["available", "detokenised", "tokenised", "version"]


def tokenised(lines: Iterable[str], language: str) -> list[str]:
    """Tokenise each line into words separated by spaces. Moses escapes special characters, such as ' as &apos;.

    >>> tokenised(["L'homme court.", ""], "fr")
    ['L&apos; homme court .', '']
    """
    tokenizer = _sacremoses().MosesTokenizer(lang=language)
    return [tokenizer.tokenize(line, return_str=True) for line in lines]


def detokenised(sentences: Iterable[Sequence[str]], language: str) -> list[str]:
    """Join the words of each sentence to plain text.

    >>> detokenised([["L&apos;", "homme", "court", "."]], "fr")
    ["L'homme court."]
    """
    detokenizer = _sacremoses().MosesDetokenizer(lang=language)
    return [detokenizer.detokenize(list(words)) for words in sentences]


def available() -> bool:
    """Whether sacremoses is installed."""
    try:
        _sacremoses()
    except ValueError:
        return False
    return True


def version() -> str:
    """Return the version of sacremoses."""
    _sacremoses()  # the error says how to install it
    return metadata.version("sacremoses")


@functools.cache
def _sacremoses() -> Any:
    try:
        import sacremoses
    except ImportError:
        raise ValueError(
            f"Moses tokenisation needs sacremoses, which is not installed: {how_to_install('translate')}"
        ) from None
    return sacremoses
