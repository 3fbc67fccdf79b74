"""The attention model of Bahdanau et al. in the form of dl4mt: two GRUs that read, two GRU cells that look and write.

It is plain PyTorch and has no noise; every saturating function in it is a module, so `noisyact.noisify` finds them all.
A batch is padded; what the padding holds has no part in anything that is computed of a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisyact.attention import additive_scores

__all__ = ["Attention", "Encoded", "Encoder", "Translation", "sentence_nll"]


class Encoded(NamedTuple):
    """A batch of sentences as the decoder looks at them."""

    annotations: Tensor
    """[batch, source, 2 hidden]: the states of both directions at each word; of padding, anything."""
    keys: Tensor
    """[batch, source, attention]: their part of the attention's energies."""
    padding: Tensor
    """[batch, source]: what is added to the energies: 0 where there is a word, -inf where there is none."""
    first: Tensor
    """[batch, hidden]: the decoder's first state."""


class Encoder(nn.Module):
    """Words to annotations: the states of a GRU from the left and of one from the right.

    Each is a separate layer that reads a sentence from its first step on, the second one in reverse, so that padding
    comes after the sentence for both.
    """

    def __init__(self, words: int, word_size: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, word_size)
        self.rightward = nn.GRU(word_size, hidden)
        self.leftward = nn.GRU(word_size, hidden)

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Words, [source, batch], and the lengths, [batch], to annotations, [source, batch, 2 hidden]."""
        places = torch.arange(len(source), device=source.device)[:, None]
        mirrored = torch.where(places < lengths, lengths - 1 - places, places)
        right, _ = self.rightward(self.embedding(source))
        left, _ = self.leftward(self.embedding(source.gather(0, mirrored)))
        return torch.cat([right, left.gather(0, mirrored[..., None].expand_as(left))], dim=2)


class Attention(nn.Module):
    """Additive attention: the softmax over the source of v tanh(W a + U h)."""

    def __init__(self, annotation_size: int, query_size: int, size: int) -> None:
        super().__init__()
        self.keys = nn.Linear(annotation_size, size)
        self.query = nn.Linear(query_size, size, bias=False)
        self.tanh = nn.Tanh()
        self.energy = nn.Linear(size, 1, bias=False)

    def forward(self, h: Tensor, keys: Tensor, padding: Tensor) -> Tensor:
        """Queries, [batch, width, query], to weights, [batch, width, source], that are 0 where the padding is -inf."""
        energies = additive_scores(keys, self.query(h).to(keys.dtype), self.tanh, self.energy.weight)
        return (energies + padding[:, None]).softmax(dim=2).to(h.dtype)


class Translation(nn.Module):
    """Sentences to sentences.

    Both sides are numbers of words, each sentence ended by `end`. For each word the decoder's first GRU cell reads the
    word before it, the attention looks at the source with that state, and the second cell reads what it saw; before the
    first word it reads zeros.

    Args:
        source_words: how many there are.
        target_words: how many there are.
        word_size: of embeddings, and of the layer before the softmax.
        hidden: units of each GRU.
        attention: units of the attention; 2 hidden if not given.
        end: the number that ends a sentence, on both sides.

    >>> model = Translation(20, 30, word_size=8, hidden=16)
    >>> source, lengths = torch.tensor([[5, 6], [7, 0], [0, 0]]), torch.tensor([3, 2])
    >>> model.nll(source, lengths, torch.tensor([[9, 4], [0, 3], [0, 0]]), torch.tensor([2, 3])).shape
    torch.Size([2])
    """

    def __init__(
        self, source_words: int, target_words: int, *, word_size: int = 500, hidden: int = 1024,
        attention: int | None = None, end: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.hidden, self.end = hidden, end
        self.encoder = Encoder(source_words, word_size, hidden)
        self.first = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.Tanh())
        self.embedding = nn.Embedding(target_words, word_size)
        self.asking = nn.GRUCell(word_size, hidden)
        self.attention = Attention(2 * hidden, hidden, attention or 2 * hidden)
        self.answering = nn.GRUCell(2 * hidden, hidden)
        self.readout = nn.Sequential(nn.Linear(hidden + word_size + 2 * hidden, word_size), nn.Tanh())
        self.output = nn.Linear(word_size, target_words)

    def initialise(self, generator: torch.Generator | None = None, orthogonal_scale: float = 1.0) -> None:
        """Weights as dl4mt draws them: square matrices orthogonal, the others normal with 0.01, biases 0.

        Args:
            generator: on the CPU.
            orthogonal_scale: of the orthogonal matrices; the paper has 0.01 for its noisy models.
        """
        for name, parameter in self.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
            if parameter.dim() == 1:
                continue  # also what noise has brought
            drawn = torch.empty(parameter.shape)
            # A GRU's recurrence has a matrix for each gate.
            for matrix in drawn.chunk(3) if "weight_hh" in name else [drawn]:
                if matrix.shape[0] == matrix.shape[1]:
                    nn.init.orthogonal_(matrix, orthogonal_scale, generator)
                else:
                    nn.init.normal_(matrix, 0.0, 0.01, generator)
            with torch.no_grad():
                parameter.copy_(drawn)

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        """Words, [source, batch], and the lengths with the end counted, [batch]."""
        annotations = self.encoder(source, lengths).transpose(0, 1).contiguous()
        real = torch.arange(len(source), device=source.device) < lengths[:, None]
        shares = (real / lengths[:, None]).to(annotations.dtype)
        mean = torch.einsum("bs,bsa->ba", shares, annotations)
        # In a model of 16 bits the scores may be float32, which their kernels on a GPU are.
        keys = self.attention.keys(annotations).to(self.attention.energy.weight.dtype)
        padding = torch.where(real, 0.0, -torch.inf).to(keys.dtype)
        return Encoded(annotations, keys, padding, self.first(mean))

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Given each target word's predecessors, logits of it, and where the decoder looked.

        Args:
            source: [source, batch], int64.
            lengths: of its sentences, the end counted, [batch].
            target: [target, batch], int64.

        Returns: logits, [target, batch, target words], and weights of the attention, [target, batch, source].
        """
        encoded = self.encode(source, lengths)
        before = F.pad(self.embedding(target[:-1]), (0, 0, 0, 0, 1, 0))
        h, states, contexts, weights = encoded.first, [], [], []
        for embedded in before.unbind():
            h, context, looked = self._look(embedded, h, encoded.annotations, encoded.keys, encoded.padding)
            states.append(h)
            contexts.append(context)
            weights.append(looked[:, 0])
        return self._logits(torch.stack(states), before, torch.stack(contexts)), torch.stack(weights)

    def nll(self, source: Tensor, lengths: Tensor, target: Tensor, target_lengths: Tensor) -> Tensor:
        """-log p of each target sentence, its end counted, in nats: [batch]."""
        logits, _ = self(source, lengths, target)
        return sentence_nll(logits, target, target_lengths)

    def start(self, source: Tensor, lengths: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The state and the constants with which a search begins (:mod:`noisyact_lab.models.beam_search`)."""
        encoded = self.encode(source, lengths)
        return [encoded.first[:, None]], [encoded.annotations, encoded.keys, encoded.padding]

    def step(
        self, tokens: Tensor, state: Sequence[Tensor], constants: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """One step of a search: the last words, [batch, width], to log-probabilities of the next."""
        batch, width = tokens.shape
        embedded = self.embedding(tokens.clamp(min=0)).masked_fill(tokens[..., None] < 0, 0.0).flatten(0, 1)
        h, context, _ = self._look(embedded, state[0].flatten(0, 1), *constants)
        log_p = self._logits(h, embedded, context).log_softmax(dim=1)
        return log_p.view(batch, width, -1), [h.view(batch, width, -1)]

    def _look(
        self, embedded: Tensor, h: Tensor, annotations: Tensor, keys: Tensor, padding: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The next state and what was seen, a row for each hypothesis, and the weights, [batch, width, source]."""
        h = self.asking(embedded, h)
        weights = self.attention(h.view(len(keys), -1, self.hidden), keys, padding)
        context = torch.bmm(weights, annotations).flatten(0, 1)
        return self.answering(context, h), context, weights

    def _logits(self, h: Tensor, before: Tensor, context: Tensor) -> Tensor:
        return self.output(self.readout(torch.cat([h, before, context], dim=-1)))


def sentence_nll(logits: Tensor, target: Tensor, lengths: Tensor) -> Tensor:
    """-log p of each sentence, its end counted, in nats.

    Args:
        logits: [target, batch, target words].
        target: [target, batch], int64; what follows a sentence's end does not count.
        lengths: of the sentences, the end counted, [batch].

    Returns: [batch].

    >>> sentence_nll(torch.zeros(3, 2, 4), torch.zeros(3, 2, dtype=torch.long), torch.tensor([1, 3]))  # log 4 a word
    tensor([1.3863, 4.1589])
    """
    padding = torch.arange(len(target), device=target.device)[:, None] >= lengths
    wanted = target.masked_fill(padding, -100)
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none").view(wanted.shape).sum(dim=0)
