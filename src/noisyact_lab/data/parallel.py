"""English-French parallel corpora: pairs of lines, tokenised and numbered.

Pairs with an empty side and training pairs with too many words are dropped and counted. Words outside the training
vocabulary become <unk>. Tokenising a large corpus takes minutes and needs sacremoses, so the result is stored in the
cache (packed.py). Training needs only this packed file: another machine can use a copy of it in the folder packed/ of
NOISYACT_DATA or of the cache, without the text and without sacremoses.
"""

from __future__ import annotations

import array
import collections
import concurrent.futures
import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import torch

from noisyact_lab.data import moses
from noisyact_lab.data.locate import Missing, cache, find, home, places
from noisyact_lab.data.packed import LANGUAGES, PARTS, PackedCorpus, Pairs, Sentences, numbers_of
from noisyact_lab.data.text import EOS, UNKNOWN, Vocabulary, lines

__all__ = ["CORPORA", "check", "corpus", "pack", "packed_path", "pairs_of", "text_path"]

_SHARDS = 18
_PIECE = 20_000
"""The number of lines that a process tokenises at a time."""

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The files of a corpus as pairs (data set, file name without the suffixes for language and compression)."""

    train: Callable[[int | None], list[tuple[str, str]]]
    valid: tuple[str, str]
    test: tuple[str, str]


def _europarl(shards: int | None) -> list[tuple[str, str]]:
    published = ("europarl", "europarl-v7.fr-en")  # the complete corpus in one file for each language
    if shards is None and text_path(*published, LANGUAGES[0]) is not None:
        return [published]
    if shards is not None and not 1 <= shards <= _SHARDS:
        raise ValueError(f"shards={shards}: must be 1 to {_SHARDS}, or none for all")
    return [("europarl", f"europarl-v7.fr-en.train.{number:02d}") for number in range(shards or _SHARDS)]


def _multi30k(shards: int | None) -> list[tuple[str, str]]:
    if shards is not None:
        raise ValueError(f"shards={shards}: multi30k has none")
    return [("multi30k", "train")]


CORPORA = {
    "europarl": _Layout(_europarl, ("wmt-news", "newstest2010"), ("wmt-news", "newstest2011")),
    "multi30k": _Layout(_multi30k, ("multi30k", "val"), ("multi30k", "test_2016_flickr")),
}
"""The corpora. As in the paper, Europarl is tested on news; it is validated on the news of the previous year."""


def corpus(name: str, words: int, longest: int, shards: int | None = None, say: Say | None = None) -> PackedCorpus:
    """Load a packed corpus, or pack it first if there is no packed file or it was made from other text files.

    Args:
        name: one of :data:`CORPORA`.
        words: the size of each vocabulary, including <eos> and <unk>.
        longest: the maximum number of words in a training sentence. Validation and test sentences have no limit.
        shards: the number of Europarl training files to use, 100,000 pairs each, or None for all.
        say: called with a message before each slow step.

    Raises: :class:`noisyact_lab.data.locate.Missing` if there is neither a packed file nor the text.
    """
    check(name, words, longest, shards)
    try:
        checksums = _checksums(name, shards)
    except Missing:
        checksums = None  # without the text, a packed file from another machine is used as it is
    for path in _packed_there(packed_path(name, words, longest, shards)):
        found = PackedCorpus.read(path)
        if checksums in (None, found.about["files"]):
            return found
    return pack(name, words, longest, shards, say)


def check(name: str, words: int, longest: int, shards: int | None = None) -> None:
    """Raise :class:`noisyact_lab.data.locate.Missing` if :func:`corpus` would."""
    path = packed_path(name, words, longest, shards)
    try:
        _paths(name, shards)
    except Missing as missing:
        if not _packed_there(path):
            raise Missing(f"{missing} Or copy a packed corpus to {home() / 'packed' / path.name}.") from None


def packed_path(name: str, words: int, longest: int, shards: int | None = None) -> Path:
    """Return the path in the cache to which :func:`pack` writes a corpus."""
    if name not in CORPORA:
        raise ValueError(f"corpus={name!r}: allowed are {', '.join(map(repr, CORPORA))}")
    for setting, value, least in (("words", words, 3), ("longest", longest, 1)):
        if value < least:
            raise ValueError(f"{setting}={value}: must be at least {least}")
    part = "" if shards is None else f"-{shards}-shards"
    return cache() / "packed" / f"{name}{part}-{words}-words-{longest}-long.npz"


def pairs_of(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Read two files with the same number of lines and return the stripped lines of each."""
    texts = [[line.strip() for line in lines(path)] for path in (source, target)]
    if len(texts[0]) != len(texts[1]):
        raise ValueError(f"{source} has {len(texts[0]):,} lines and {target} has {len(texts[1]):,}: not parallel")
    return texts[0], texts[1]


def pack(name: str, words: int, longest: int, shards: int | None = None, say: Say | None = None) -> PackedCorpus:
    """Tokenise a corpus, number its words and store the result in the cache. See :func:`corpus` for the arguments."""
    path, say = packed_path(name, words, longest, shards), say or (lambda text: None)
    checksums = _checksums(name, shards)
    tokenizer = moses.version()  # fails before the slow part if sacremoses is not installed
    counts: dict[str, dict[str, int]] = {}
    split: dict[str, list[list[str]]] = {}
    texts: dict[str, list[list[str]]] = {}
    for part, files in _paths(name, shards).items():
        both = [pairs_of(*paths) for paths in files]
        text = [[line for pair in both for line in pair[side]] for side in (0, 1)]
        say(f"{name}: tokenising {len(text[0]):,} pairs ({part})")
        tokens = [_tokenised(side, language) for side, language in zip(text, LANGUAGES, strict=True)]
        empty = [not (a and b) for a, b in zip(*tokens, strict=True)]
        long = [part == "train" and max(a.count(" "), b.count(" ")) >= longest for a, b in zip(*tokens, strict=True)]
        kept = [not (e or over) for e, over in zip(empty, long, strict=True)]
        counts[part] = {"pairs": sum(kept), "empty": sum(empty), "too_long": sum(long)}
        if not any(kept):
            raise ValueError(f"{name}: of {len(kept):,} pairs ({part}) none has 1 to {longest:,} words on both sides")
        split[part], texts[part] = ([list(itertools.compress(side, kept)) for side in both] for both in (tokens, text))
    say(f"{name}: numbering words")
    vocabularies = [_vocabulary(side, words) for side in split["train"]]
    parts: list[Pairs] = []
    for part in PARTS:
        numbered = [_numbered(side, vocabulary) for side, vocabulary in zip(split[part], vocabularies, strict=True)]
        kept = [[], [], [], []] if part == "train" else [*texts[part], *split[part]]
        parts.append(Pairs(numbered[0], numbered[1], *kept))
    about = {"corpus": name, "files": checksums, "sacremoses": tokenizer, "counts": counts}
    packed = PackedCorpus(vocabularies[0], vocabularies[1], parts[0], parts[1], parts[2], about)
    packed.write(path)
    return packed


def _tokenised(text: list[str], language: str) -> list[str]:
    pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
    if len(pieces) < 4:
        return [line for piece in pieces for line in moses.tokenised(piece, language)]
    with concurrent.futures.ProcessPoolExecutor(min(len(pieces), os.cpu_count() or 1)) as workers:
        return [line for piece in workers.map(moses.tokenised, pieces, itertools.repeat(language)) for line in piece]


def _vocabulary(sentences: list[str], words: int) -> Vocabulary:
    """Return the vocabulary of the most frequent words. Ties go to the word that occurs first."""
    counts: collections.Counter[str] = collections.Counter()
    for sentence in sentences:
        counts.update(sentence.split(" "))
    for reserved in (EOS, UNKNOWN):  # Moses escapes < as &lt;, so tokenised text never contains them
        counts.pop(reserved, None)
    return Vocabulary([EOS, UNKNOWN, *(word for word, _ in counts.most_common(words - 2))])


def _numbered(sentences: list[str], vocabulary: Vocabulary) -> Sentences:
    numbers, lengths = array.array("i"), array.array("q")
    for sentence in sentences:
        found = numbers_of(sentence.split(" "), vocabulary)
        numbers.extend(found)
        lengths.append(len(found))
    return Sentences.flat(
        torch.frombuffer(numbers, dtype=torch.int32).clone(), torch.frombuffer(lengths, dtype=torch.int64).clone()
    )


def _packed_there(path: Path) -> list[Path]:
    """Return the existing packed files with this name. A copy in the data folder comes before the cache."""
    return [there for there in dict.fromkeys([home() / "packed" / path.name, path]) if there.exists()]


def text_path(data: str, stem: str, language: str) -> Path | None:
    """Return the path of a text of a data set, plain or compressed; None if it is missing."""
    candidates = (folder / f"{stem}.{language}{end}" for folder in places(data) for end in ("", ".gz", ".xz"))
    return next((path for path in candidates if path.is_file()), None)


def _paths(name: str, shards: int | None) -> dict[str, list[tuple[Path, Path]]]:
    """Return the pairs of files, source and target, of each part."""
    layout = CORPORA[name]
    found: dict[str, list[tuple[Path, Path]]] = {part: [] for part in PARTS}
    for part, files in zip(PARTS, (layout.train(shards), [layout.valid], [layout.test]), strict=True):
        for data, stem in files:
            source, target = (text_path(data, stem, language) for language in LANGUAGES)
            if source is None or target is None:
                find(data)  # raises an error that says how to get the data
                raise Missing(f"{stem}.{LANGUAGES[source is not None]} is not in {places(data)[0]}.")
            found[part].append((source, target))
    return found


def _checksums(name: str, shards: int | None) -> dict[str, str]:
    files = [path for pairs in _paths(name, shards).values() for pair in pairs for path in pair]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
