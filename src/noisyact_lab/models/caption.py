"""Captions with soft attention, after Xu et al. (2015): an LSTM that looks at places of an image while it writes.

The model is plain PyTorch and has no noise; `noisyact.noisify` gives it some, wherever it has a tanh or sigmoid.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisyact.attention import additive_scores
from noisyact_lab.models.beam_search import BEGIN

__all__ = ["CaptionModel", "doubly_stochastic", "mask_of"]


class CaptionModel(nn.Module):
    """Annotations of an image to a caption.

    From the last word y and the state h, at each step, with annotations a_l of places l:

    - ``alpha = softmax_l(v . tanh(W_a a_l + W_h h))``, where it looks; ``z = beta sum_l alpha_l a_l`` with
      ``beta = sigmoid(w . h)``, what it sees;
    - an LSTM step from (E y, z);
    - ``logits = L tanh(E y + L_h h + L_z z)``, with dropout of h and after the tanh.

    The first h and c are two tanh layers of the mean annotation's hidden layer; before the first word E y is zero.
    Square matrices begin orthogonal, times a factor, the others normal with deviation 0.01, biases zero.

    Args:
        words: of the vocabulary.
        features: of an annotation.
        embedding: of a word, and width of the output's hidden layer.
        hidden: units of the LSTM.
        attention: width of the layer that scores the places.
        dropout: of h, of the output's hidden layer, of the mean annotation's.
        orthogonal: the factor of the square matrices.

    >>> model = CaptionModel(9, features=4, embedding=5, hidden=6, attention=7)
    >>> logits, alpha = model(torch.rand(2, 49, 4), torch.tensor([[3, 5, 0], [4, 0, 0]]))
    >>> logits.shape, alpha.shape
    (torch.Size([2, 3, 9]), torch.Size([2, 3, 49]))
    """

    def __init__(
        self, words: int, *, features: int = 512, embedding: int = 512, hidden: int = 1000, attention: int = 512,
        dropout: float = 0.5, orthogonal: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = {"words": words, "features": features, "embedding": embedding, "hidden": hidden, "attention": attention}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"CaptionModel: {name}={size}: must be at least 1")
        if not 0 <= dropout < 1:
            raise ValueError(f"CaptionModel: dropout={dropout}: must be at least 0 and below 1")
        self.words, self.orthogonal = words, orthogonal
        self.embedding = nn.Embedding(words + 1, embedding, padding_idx=words)  # the last stands for no word
        self.summary = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Dropout(dropout))
        self.first_h = nn.Sequential(nn.Linear(features, hidden), nn.Tanh())
        self.first_c = nn.Sequential(nn.Linear(features, hidden), nn.Tanh())
        self.key = nn.Linear(features, attention)
        self.query = nn.Linear(hidden, attention, bias=False)
        self.score = nn.Sequential(nn.Tanh(), nn.Linear(attention, 1))
        self.beta = nn.Sequential(nn.Linear(hidden, 1), nn.Sigmoid())
        self.cell = nn.LSTMCell(embedding + features, hidden)
        self.from_h = nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden, embedding))
        self.from_z = nn.Linear(features, embedding, bias=False)
        self.output = nn.Sequential(nn.Tanh(), nn.Dropout(dropout), nn.Linear(embedding, words))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all weights again."""
        for parameter in self.parameters():
            if parameter.dim() < 2:
                parameter.zero_()
                continue
            # The LSTM's matrices hold one for each gate.
            gates = 4 if parameter is self.cell.weight_ih or parameter is self.cell.weight_hh else 1
            for block in parameter.chunk(gates):
                if parameter is not self.embedding.weight and block.shape[0] == block.shape[1]:
                    nn.init.orthogonal_(block, self.orthogonal)
                else:
                    nn.init.normal_(block, std=0.01)
        self.embedding.weight[self.words].zero_()

    @torch.no_grad()
    def begin_with(self, logits: Tensor) -> None:
        """Set the output's biases: the logits of the words, [words], where the layers before them give zero."""
        layer = self.output[-1]
        assert isinstance(layer, nn.Linear)
        layer.bias.copy_(logits)

    def begin(self, annotations: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The state before the first word and what stays the same at every step, as a search takes them.

        Args:
            annotations: [batch, places, features].

        Returns: h and c, [batch, 1, hidden]; the annotations, and their keys W_a a, [batch, places, attention].
        """
        features = self.key.in_features
        if annotations.dim() != 3 or annotations.shape[2] != features:
            raise ValueError(f"annotations must be [batch, places, {features}], not {list(annotations.shape)}")
        summary = self.summary(annotations.mean(dim=1, keepdim=True))
        return (self.first_h(summary), self.first_c(summary)), (annotations, self.key(annotations))

    def step(
        self, tokens: Tensor, state: Sequence[Tensor], constants: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The log-probabilities of the next word, a `beam_search.Step`: tokens are [batch, width]."""
        word = self.embedding(torch.where(tokens == BEGIN, self.words, tokens))
        h, c, z, _ = self._advance(word, *state, *constants)
        return F.log_softmax(self._logits(word, h, z), dim=-1), (h, c)

    def forward(self, annotations: Tensor, captions: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of every word given those before it, [batch, steps, words], and alpha, [batch, steps, places].

        Args:
            annotations: [batch, places, features].
            captions: [batch, steps], each with its end and then anything.
        """
        before = F.pad(captions[:, :-1], (1, 0), value=self.words)
        words = self.embedding(before)
        (h, c), constants = self.begin(annotations)
        seen = []
        for word in words.split(1, dim=1):
            h, c, z, alpha = self._advance(word, h, c, *constants)
            seen.append((h, z, alpha))
        states, contexts, alphas = (torch.cat(parts, dim=1) for parts in zip(*seen, strict=True))
        return self._logits(words, states, contexts), alphas

    def _advance(
        self, word: Tensor, h: Tensor, c: Tensor, annotations: Tensor, keys: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One step of all hypotheses, [batch, width, ...]: the new h and c, what was seen, and where."""
        tanh, weigh = self.score
        assert isinstance(weigh, nn.Linear)
        alpha = additive_scores(keys, self.query(h), tanh, weigh.weight, weigh.bias).softmax(dim=2)
        z = self.beta(h) * torch.matmul(alpha, annotations)
        shape = h.shape
        new_h, new_c = self.cell(torch.cat([word, z], dim=2).flatten(0, 1), (h.flatten(0, 1), c.flatten(0, 1)))
        return new_h.reshape(shape), new_c.reshape(shape), z, alpha

    def _logits(self, word: Tensor, h: Tensor, z: Tensor) -> Tensor:
        return self.output(word + self.from_h(h) + self.from_z(z))


def mask_of(lengths: Tensor, steps: int) -> Tensor:
    """Which steps belong to captions of these lengths: bool [batch, steps].

    >>> mask_of(torch.tensor([1, 3]), 3).int()
    tensor([[1, 0, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    return torch.arange(steps, device=lengths.device) < lengths[:, None]


def doubly_stochastic(alpha: Tensor, mask: Tensor) -> Tensor:
    """``mean_batch sum_l (1 - sum_t alpha_tl)^2``: small where a caption looks at all places about as much.

    Args:
        alpha: [batch, steps, places].
        mask: bool [batch, steps], the steps that count.

    >>> doubly_stochastic(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]), torch.tensor([[True, True]]))  # 0.5^2 + 0.5^2
    tensor(0.5000)
    """
    return (1.0 - (alpha * mask[..., None]).sum(dim=1)).square().sum(dim=1).mean()
