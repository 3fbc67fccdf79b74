"""Flickr8k as a captioning run reads it: captions as numbers, annotations, and both on the run's device.

Runs of one process that read the same share it: the annotations of the training images are 0.6 GB, and a GPU trains for
several epochs in the time it takes to read them.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from noisyact_lab.data import flickr8k
from noisyact_lab.data.locate import find
from noisyact_lab.data.text import UNKNOWN, Vocabulary
from noisyact_lab.tasks.length_batches import padded_length, sorted_batches

__all__ = ["AT_ONCE", "END", "PADDING", "Material", "Numbered", "Shown", "material"]

END = 0
"""The word that ends a caption."""
AT_ONCE = 200
"""Captions of one piece of an evaluation."""
PADDING = 4
"""Captions are padded to a multiple of so many words: few lengths are left, and a step is recorded for each."""


@dataclasses.dataclass(frozen=True)
class Numbered:
    """Captions as numbers: of words, [captions, longest], lengths with the end, and the images they are of."""

    words: Tensor
    lengths: Tensor
    images: Tensor

    @classmethod
    def of(cls, part: flickr8k.Part, vocabulary: Vocabulary, device: torch.device) -> Numbered:
        """The captions of a part; a word that is not in the vocabulary is the unknown one."""
        unknown = vocabulary.number[UNKNOWN]
        pairs = [(image, caption) for image, some in enumerate(part.captions) for caption in some]
        longest = padded_length(max(len(caption) + 1 for _, caption in pairs), PADDING)
        numbers = [[vocabulary.number.get(word, unknown) for word in caption] for _, caption in pairs]
        words = torch.tensor([caption + [END] * (longest - len(caption)) for caption in numbers])
        lengths = torch.tensor([len(caption) + 1 for _, caption in pairs])
        images = torch.tensor([image for image, _ in pairs])
        return cls(words.to(device), lengths.to(device), images.to(device))

    def log_frequencies(self, words: int) -> Tensor:
        """The logarithm of each word's share of all words and ends, [words], with each counted once more."""
        inside = torch.arange(self.words.shape[1], device=self.words.device) < self.lengths[:, None]
        counts = 1.0 + torch.bincount(self.words[inside], minlength=words)
        return (counts / counts.sum()).log()

    @functools.cached_property
    def pieces(self) -> list[tuple[Tensor, int]]:
        """All captions, some at a time, by length: their rows, and the length of the longest of them."""
        pieces = sorted_batches(self.lengths.cpu(), AT_ONCE)
        return [(rows.to(self.lengths.device), longest) for rows, longest in pieces]


@dataclasses.dataclass(frozen=True)
class Shown:
    """A part on a device: names of images, what people wrote of them, the same as numbers, annotations."""

    images: tuple[str, ...]
    captions: tuple[tuple[flickr8k.Words, ...], ...]
    numbered: Numbered
    annotations: flickr8k.Annotations


class Material:
    """All three parts, in words of the training captions and units of the training images.

    Args:
        device: where it is to be.
        images: of the training part, from the start of its list; None for all.
        held_out: of each of the others.
        side: places along a side of an image.
        vocabulary: commonest words, with the end and the unknown word; None for all.
        verified: the files must be those the results were made from.
    """

    def __init__(
        self, device: torch.device, *, images: int | None, held_out: int | None, side: int, vocabulary: int | None,
        verified: bool,
    ) -> None:  # fmt: skip
        self.device, self._images, self._held_out, self._side, self._verified = device, images, held_out, side, verified
        train = self._read("train")
        self.vocabulary = flickr8k.vocabulary_of(train.captions, vocabulary)
        self._unit = train.annotations.root_mean_square()
        self.train, self.valid = self._shown(train), self._shown(self._read("dev"))

    @functools.cached_property
    def test(self) -> Shown:
        """Read when it is first asked for, which is when a run has ended."""
        return self._shown(self._read("test"))

    def _read(self, part: str) -> flickr8k.Part:
        images = self._images if part == "train" else self._held_out
        read = flickr8k.read(part, images=images, side=self._side, verified=self._verified)
        return dataclasses.replace(read, annotations=read.annotations.to(self.device))

    def _shown(self, part: flickr8k.Part) -> Shown:
        numbered = Numbered.of(part, self.vocabulary, self.device)
        shown = Shown(part.images, part.captions, numbered, part.annotations.divided(self._unit))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # runs that share it read it in other streams
        return shown


def material(device: torch.device, **settings: Any) -> Material:
    """The data set with settings as of :class:`Material`; the same one for all who ask for the same in a row."""
    return _last(find("flickr8k"), device, **settings)


@functools.lru_cache(maxsize=1)
def _last(folder: Path, device: torch.device, **settings: Any) -> Material:
    return Material(device, **settings)
