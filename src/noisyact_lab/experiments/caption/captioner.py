"""A trained model of captions at work: images in, captions out, and where the model looked."""

from __future__ import annotations

import torch
from torch import Tensor

from noisyact_lab.data.text import Vocabulary
from noisyact_lab.experiments.caption.photos import END, Shown
from noisyact_lab.models.beam_search import beam
from noisyact_lab.models.caption import CaptionModel

__all__ = ["Captioner"]

_SEARCHED = 100
"""Images of one search."""


class Captioner:
    """Captions images with a beam.

    Args:
        model: trained; it is put into evaluation mode.
        vocabulary: its words.
        width: of the beam.
        longest: words of a caption, at most.
    """

    def __init__(self, model: CaptionModel, vocabulary: Vocabulary, *, width: int, longest: int) -> None:
        self.model, self.vocabulary, self.width, self.longest = model.eval(), vocabulary, width, longest

    @torch.no_grad()
    def captions(self, part: Shown) -> list[tuple[int, ...]]:
        """Captions of all images of a part, as numbers of words, without the end."""
        found: list[tuple[int, ...]] = []
        for images in torch.arange(len(part.images), device=part.numbered.words.device).split(_SEARCHED):
            state, constants = self.model.begin(part.annotations.at(images))
            best = beam(self.model.step, state, constants, width=self.width, end=END, longest=self.longest)
            found += [hypotheses[0].tokens for hypotheses in best]
        return found

    @torch.no_grad()
    def attention(self, part: Shown, image: int, caption: tuple[int, ...]) -> Tensor:
        """Where the model looks in an image at each word of a caption and at its end: [words + 1, places]."""
        device = part.numbered.words.device
        words = torch.tensor([[*caption, END]], device=device)
        _, alpha = self.model(part.annotations.at(torch.tensor([image], device=device)), words)
        return alpha[0].cpu()

    def text(self, caption: tuple[int, ...]) -> str:
        """A caption in words."""
        return " ".join(self.vocabulary.symbols[number] for number in caption)
