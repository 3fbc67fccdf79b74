"""Flickr8k: photos with five captions each, as words, and as annotations, what VGG-19 sees at 14 x 14 places of them.

Annotations are kept as they are stored, a byte a number, and expanded a batch at a time: all 8,000 images are 0.8 GB so
and 3.2 GB as float32. Words are in lower case and without punctuation, as the standard scorers have them.
"""

from __future__ import annotations

import dataclasses
import math
import zipfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from noisyact_lab.data.catalog import dataset
from noisyact_lab.data.locate import file_in, find
from noisyact_lab.data.text import EOS, UNKNOWN, Vocabulary, lines
from noisyact_lab.data.verify import verify

__all__ = ["PARTS", "Annotations", "Part", "photo", "read", "vocabulary_of", "words_of"]

PARTS = ("train", "dev", "test")
SIDE = 14
"""Places along a side of a photo."""
_CHUNK = 200
"""Images expanded at once."""

Words = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Annotations:
    """What VGG-19 sees in images: `factor q^2` at each place, averaged over squares of places where `side` is less.

    Args:
        q: uint8 [images, 196, channels], the places row by row.
        factor: [channels].
        side: 14, or a divisor of it.
    """

    q: Tensor
    factor: Tensor
    side: int = SIDE

    def __post_init__(self) -> None:
        if self.side < 1 or SIDE % self.side:
            raise ValueError(f"side={self.side}: must divide {SIDE}")

    def at(self, images: Tensor) -> Tensor:
        """The annotations of some images, float32 [images, side^2, channels].

        >>> tiny = Annotations(torch.full((3, 196, 2), 2, dtype=torch.uint8), torch.tensor([1.0, 0.5]), side=7)
        >>> tiny.at(torch.tensor([2])).shape, tiny.at(torch.tensor([0]))[0, 0]
        (torch.Size([1, 49, 2]), tensor([4., 2.]))
        """
        seen = self.q[images].float().square() * self.factor
        if self.side == SIDE:
            return seen
        square = seen.unflatten(1, (SIDE, SIDE)).permute(0, 3, 1, 2)
        return F.avg_pool2d(square, SIDE // self.side).flatten(2).transpose(1, 2)

    def root_mean_square(self) -> Tensor:
        """Of each channel, over all images and places."""
        every = torch.arange(len(self.q), device=self.q.device).split(_CHUNK)
        sums = sum((self.at(images).double().square().sum(dim=(0, 1)) for images in every), torch.zeros(()))
        return (sums / (len(self.q) * self.side**2)).sqrt().float()

    def divided(self, by: Tensor) -> Annotations:
        """The same in other units, channel by channel; a channel whose unit is 0 stays as it is."""
        return dataclasses.replace(self, factor=self.factor / torch.where(by > 0, by, 1.0))

    def to(self, device: torch.device) -> Annotations:
        """The same on a device."""
        return dataclasses.replace(self, q=self.q.to(device), factor=self.factor.to(device))


@dataclasses.dataclass(frozen=True)
class Part:
    """Images with their captions and annotations, in the order of the split's list."""

    images: tuple[str, ...]
    captions: tuple[tuple[Words, ...], ...]
    annotations: Annotations


def words_of(caption: str) -> Words:
    """The words of a caption: lower case, without what is punctuation alone.

    >>> words_of("A dog 's ball , in mid-air .")
    ('a', 'dog', "'s", 'ball', 'in', 'mid-air')
    """
    return tuple(word for word in caption.lower().split() if any(map(str.isalnum, word)))


def read(part: str, *, images: int | None = None, side: int = SIDE, verified: bool = True) -> Part:
    """A part of Flickr8k.

    Args:
        part: train, dev or test.
        images: so many, from the start of the split's list; None for all.
        side: places along a side, 14 or a divisor of it.
        verified: the files must be those the results were made from, by their checksums; else any of that form do.
    """
    if part not in PARTS:
        raise ValueError(f"part={part!r}: allowed are {', '.join(map(repr, PARTS))}")
    folder = find("flickr8k")
    if verified and (problems := verify("flickr8k")):
        raise ValueError(f"data set 'flickr8k' is not what it should be: {'; '.join(problems)}")
    listed = _path(folder, f"Flickr_8k.{part}Images.txt")
    names = [line.strip() for line in lines(listed)]
    if images is not None and not 1 <= images <= len(names):
        raise ValueError(f"images={images}: must be 1 to {len(names):,}, the images of {listed}")
    token = _path(folder, "Flickr8k.token.txt")
    captions = _captions(token)
    for number, name in enumerate(names, 1):
        if name not in captions:
            raise ValueError(f"{listed}, line {number}: {name!r} has no caption in {token}")
    annotations = _annotations(_path(folder, f"vgg19-conv5_4.{part}.npz"), names, listed, images, side)
    names = names[:images]
    return Part(tuple(names), tuple(tuple(captions[name]) for name in names), annotations)


def vocabulary_of(captions: Iterable[Iterable[Words]], size: int | None = None) -> Vocabulary:
    """<eos>, <unk> and the words of captions, commonest first; at most `size` symbols in all.

    >>> vocabulary_of([[("a", "dog"), ("a", "cat")]], size=4).symbols
    ('<eos>', '<unk>', 'a', 'dog')
    """
    counts = Counter(word for some in captions for caption in some for word in caption)
    most = len(counts) + 2
    if size is not None and not 3 <= size <= most:
        raise ValueError(f"vocabulary={size}: must be 3 to {most:,}")
    ranked = sorted(counts, key=lambda word: -counts[word])  # stable: of words as common the one that comes first
    return Vocabulary([EOS, UNKNOWN, *ranked][:size])


def photo(name: str) -> Path | None:
    """The photo of an image, cut to the square its annotations are of, if it is in the data set's folder `images`."""
    path = find("flickr8k") / "images" / name
    return path if path.is_file() else None


def _path(folder: Path, name: str) -> Path:
    path = file_in(folder, next(file for file in dataset("flickr8k").files if file.name == name))
    assert path is not None  # find() has seen it
    return path


def _captions(path: Path) -> dict[str, list[Words]]:
    """The captions of each image, from lines such as `name.jpg#0<tab>A dog runs .`"""
    found: dict[str, list[Words]] = {}
    for number, line in enumerate(lines(path), 1):
        key, tab, caption = line.rstrip("\n").partition("\t")
        name, mark, _ = key.rpartition("#")
        if not tab or not mark:
            raise ValueError(f"{path}, line {number}: not of the form name#number, a tab, a caption: {line[:60]!r}")
        words = words_of(caption)
        if not words:
            raise ValueError(f"{path}, line {number}: a caption without a word: {caption!r}")
        found.setdefault(name, []).append(words)
    return found


def _annotations(path: Path, names: list[str], listed: Path, images: int | None, side: int) -> Annotations:
    import numpy as np

    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            ids = [str(name) for name in arrays["ids"]]
            scale, levels = arrays["scale"], float(arrays["levels"])
        shape, q = _first(path, images)
    except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: not an archive of ids, q, scale and levels: {error}") from None
    if len(shape) != 3 or shape[2] != SIDE**2 or scale.shape != shape[1:2]:
        raise ValueError(
            f"{path}: q must be [images, channels, {SIDE**2}] and scale [channels], not {list(shape)} and "
            f"{list(scale.shape)}"
        )
    if len(ids) != shape[0]:
        raise ValueError(f"{path}: {len(ids):,} ids, but annotations of {shape[0]:,} images")
    if len(ids) != len(names):
        raise ValueError(f"{path} has {len(ids):,} images, but {listed} has {len(names):,}")
    for number, (mine, theirs) in enumerate(zip(ids, names, strict=True), 1):
        if mine != theirs:
            raise ValueError(f"{path}: image {number} is {mine!r}, but in {listed} {theirs!r}")
    return Annotations(q.transpose(1, 2).contiguous(), torch.from_numpy(scale).float() / levels**2, side)


def _first(path: Path, images: int | None) -> tuple[tuple[int, ...], Tensor]:
    """The shape of q in an archive, and q of its first images: the whole would be decompressed for nothing."""
    import numpy as np

    with zipfile.ZipFile(path) as archive, archive.open("q.npy") as stream:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("q is not of version 1.0 of numpy's format")
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
        if dtype != np.uint8 or by_columns or not shape:
            raise ValueError(f"q must be rows of uint8, not {dtype} {list(shape)}")
        count = shape[0] if images is None else min(images, shape[0])
        size = count * math.prod(shape[1:])
        content = bytearray(stream.read(size))
    if len(content) != size:
        raise ValueError(f"q ends after {len(content):,} of {size:,} bytes")
    return shape, torch.frombuffer(content, dtype=torch.uint8).reshape(count, *shape[1:])
