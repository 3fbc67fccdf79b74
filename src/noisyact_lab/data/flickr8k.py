"""Flickr8k: photos with five captions each, and the VGG-19 features of a photo at 14 x 14 places, its annotations.

Annotations stay in memory as stored, one byte for each number, and are expanded one batch at a time: the 8,000 images
take 0.8 GB this way and 3.2 GB as float32. Words are in lower case and without punctuation, as standard scorers expect.
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
"""The number of places along each side of a photo."""
_CHUNK = 200
"""The number of images whose annotations are expanded at once."""

Words = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Annotations:
    """VGG-19 features of images: `factor q^2` at each place. If `side` < 14, squares of places are averaged.

    Args:
        q: uint8 [images, 196, channels]. The places are in row-major order.
        factor: [channels].
        side: the number of places along each side after averaging, 14 or a divisor of it.
    """

    q: Tensor
    factor: Tensor
    side: int = SIDE

    def __post_init__(self) -> None:
        if self.side < 1 or SIDE % self.side:
            raise ValueError(f"side={self.side}: must divide {SIDE}")

    def at(self, images: Tensor) -> Tensor:
        """Return the annotations of the images with these indices, float32 [images, side^2, channels].

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
        """Return the root mean square of each channel over all images and places."""
        every = torch.arange(len(self.q), device=self.q.device).split(_CHUNK)
        sums = sum((self.at(images).double().square().sum(dim=(0, 1)) for images in every), torch.zeros(()))
        return (sums / (len(self.q) * self.side**2)).sqrt().float()

    def divided(self, by: Tensor) -> Annotations:
        """Return the annotations with each channel divided by its element of `by`. A channel with 0 is unchanged."""
        return dataclasses.replace(self, factor=self.factor / torch.where(by > 0, by, 1.0))

    def to(self, device: torch.device) -> Annotations:
        """Return a copy on a device."""
        return dataclasses.replace(self, q=self.q.to(device), factor=self.factor.to(device))


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of the split: image names, captions and annotations, in the order of the split's list."""

    images: tuple[str, ...]
    captions: tuple[tuple[Words, ...], ...]
    annotations: Annotations


def words_of(caption: str) -> Words:
    """Split a caption into lower-case words and drop punctuation.

    >>> words_of("A dog 's ball , in mid-air .")
    ('a', 'dog', "'s", 'ball', 'in', 'mid-air')
    """
    return tuple(word for word in caption.lower().split() if any(map(str.isalnum, word)))


def read(part: str, *, images: int | None = None, side: int = SIDE, verified: bool = True) -> Part:
    """Read one part of Flickr8k.

    Args:
        part: "train", "dev" or "test".
        images: the number of images, taken from the start of the split's list, or None for all.
        side: the number of places along each side of an image, 14 or a divisor of it.
        verified: whether the files' checksums must match the catalogue. Otherwise any files of this form will do.
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
    """Return the vocabulary of <eos>, <unk> and the words of captions by frequency, cut to `size` symbols.

    >>> vocabulary_of([[("a", "dog"), ("a", "cat")]], size=4).symbols
    ('<eos>', '<unk>', 'a', 'dog')
    """
    counts = Counter(word for some in captions for caption in some for word in caption)
    most = len(counts) + 2
    if size is not None and not 3 <= size <= most:
        raise ValueError(f"vocabulary={size}: must be 3 to {most:,}")
    ranked = sorted(counts, key=lambda word: -counts[word])  # a stable sort: ties go to the word that occurs first
    return Vocabulary([EOS, UNKNOWN, *ranked][:size])


def photo(name: str) -> Path | None:
    """Return the path of a photo (the square its annotations were computed from) in `images`, or None if missing."""
    path = find("flickr8k") / "images" / name
    return path if path.is_file() else None


def _path(folder: Path, name: str) -> Path:
    path = file_in(folder, next(file for file in dataset("flickr8k").files if file.name == name))
    assert path is not None  # find() has checked that every file exists
    return path


def _captions(path: Path) -> dict[str, list[Words]]:
    """Read the captions of each image from lines such as `name.jpg#0<tab>A dog runs .`"""
    found: dict[str, list[Words]] = {}
    for number, line in enumerate(lines(path), 1):
        key, tab, caption = line.rstrip("\n").partition("\t")
        name, mark, _ = key.rpartition("#")
        if not tab or not mark:
            raise ValueError(f"{path}, line {number}: expected name#number, a tab and a caption, got {line[:60]!r}")
        words = words_of(caption)
        if not words:
            raise ValueError(f"{path}, line {number}: the caption has no words: {caption!r}")
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
    """Return the shape of q in an archive and q of the first images. The rest is not decompressed."""
    import numpy as np

    with zipfile.ZipFile(path) as archive, archive.open("q.npy") as stream:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("q is not in version 1.0 of NumPy's format")
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
        if dtype != np.uint8 or by_columns or not shape:
            raise ValueError(f"q must be rows of uint8, not {dtype} {list(shape)}")
        count = shape[0] if images is None else min(images, shape[0])
        size = count * math.prod(shape[1:])
        content = bytearray(stream.read(size))
    if len(content) != size:
        raise ValueError(f"q ends after {len(content):,} of {size:,} bytes")
    return shape, torch.frombuffer(content, dtype=torch.uint8).reshape(count, *shape[1:])
