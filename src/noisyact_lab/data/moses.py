"""Text to words and back as Moses has it, by sacremoses."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any

from noisyact.extras import how_to_install

__all__ = ["available", "detokenised", "tokenised", "version"]


def tokenised(lines: Iterable[str], language: str) -> list[str]:
    """Each line as words with a space between them; special characters are written as Moses does, ' as &apos;.

    >>> tokenised(["L'homme court.", ""], "fr")
    ['L&apos; homme court .', '']
    """
    tokenizer = _sacremoses().MosesTokenizer(lang=language)
    return [tokenizer.tokenize(line, return_str=True) for line in lines]


def detokenised(sentences: Iterable[Sequence[str]], language: str) -> list[str]:
    """Words to text as one writes it.

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
    """That of sacremoses."""
    _sacremoses()  # says how to get it
    return metadata.version("sacremoses")


@functools.cache
def _sacremoses() -> Any:
    try:
        import sacremoses
    except ImportError:
        raise ValueError(
            f"words as Moses has them need sacremoses, which is not installed: {how_to_install('translate')}"
        ) from None
    return sacremoses
