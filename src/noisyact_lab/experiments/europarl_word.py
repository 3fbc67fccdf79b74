"""European Parliament speeches, word by word: a small LSTM whose text and words may be redistributed.

The Penn Treebank may not be published, and a model of it has its words. The model that `noisyact generate` uses when no
checkpoint is given is therefore trained here, on the English half of Europarl, which has no known copyright
restrictions. The paper has no such experiment. One layer of 160 units reads the first 1.2 million words of the training
text with a vocabulary of 8,000, in lower case. Adam's rate is warmed up and then falls linearly to 0 in three epochs,
so the last weights are tested. Validation and test are speeches of the last quarter of 2000, which are not in the
training text. alpha and c are those of the authors' code.
"""

from __future__ import annotations

import dataclasses

import torch

import noisyact as na
from noisyact.ops import triton
from noisyact_lab.data.europarl import speeches
from noisyact_lab.engine.experiment import Arm, Experiment
from noisyact_lab.models.language_model import LanguageModel, mean_nll, perplexity
from noisyact_lab.tasks.learning_rate import warmed_up_and_decayed
from noisyact_lab.tasks.noise_settings import NoiseSettings
from noisyact_lab.tasks.text_task import TextTask, columns

__all__ = ["EUROPARL_WORD", "Settings", "Speeches", "model_of"]


@dataclasses.dataclass(frozen=True)
class Settings(NoiseSettings):
    """The defaults are the preset `paper`, which here is the shipped model's size."""

    words: int = 8_000
    """Words of the vocabulary."""
    tokens: int = 1_200_000
    """Words of the training text that are read, from its start."""
    embedding: int = 128
    hidden: int = 160
    bound: float = 0.05
    """Weights, biases and embeddings begin uniform in [-bound, bound]."""
    batch: int = 32
    steps: int = 35
    epochs: int = 3
    learning_rate: float = 4e-3
    """The highest one, after the warm-up."""
    warmup: int = 100
    """Updates in which the rate grows."""
    max_gradient_norm: float = 5.0
    """Limit of the norm of the gradient of the loss summed over the steps."""


def model_of(settings: Settings, words: int, seed: int, device: torch.device) -> LanguageModel:
    """The model of an arm for so many words, with its first weights."""
    lstm = na.NoisyLSTM(
        settings.embedding, settings.hidden, **settings.layer_arguments(),
        backend="auto" if triton.obstacle(device) else "triton",  # as in ptb_word
    )  # fmt: skip
    return LanguageModel(words, lstm, settings.bound, seed).to(device)


class Speeches(TextTask):
    """One run."""

    settings: Settings

    def __init__(self, settings: Settings, seed: int, device: torch.device) -> None:
        corpus = speeches(settings.words, settings.tokens)
        model = model_of(settings, len(corpus.vocabulary), seed, device)
        # A tensor, which a CUDA graph reads anew at every update.
        self.rate = torch.tensor(settings.learning_rate, device=device)
        graphed = device.type == "cuda"
        optimizer = torch.optim.Adam(model.parameters(), self.rate, capturable=graphed)
        super().__init__("europarl-word", settings, corpus, model, optimizer)
        warmed_up_and_decayed(0, self.planned_updates, settings.warmup)  # an error now for a warm-up that is too long
        self.valid = columns(corpus.valid, settings.batch).to(device)

    def update(self, index: int) -> dict[str, float]:
        """The next rows at the update's rate."""
        factor = warmed_up_and_decayed(index, self.planned_updates, self.settings.warmup)
        self.rate.fill_(self.settings.learning_rate * factor)
        self.optimizer.param_groups[0]["lr"] = self.rate  # loading a checkpoint replaces the tensor
        return super().update(index)

    def evaluate(self, index: int) -> dict[str, float]:
        """Perplexities: of the epoch's training, and of validation with the expectation in place of the noise."""
        valid = mean_nll(self.model, self.valid)
        return {"train_perplexity": perplexity(self.mean_loss(index)), "valid_perplexity": perplexity(valid)}

    def result(self, evaluations: list[dict[str, float]]) -> dict[str, float]:
        """Perplexities of the last weights; the test text is read here and nowhere else."""
        test = mean_nll(self.final, self.corpus.test[:, None].to(self.device))
        return {"test_perplexity": perplexity(test), **{n: v for n, v in evaluations[-1].items() if n != "update"}}


EUROPARL_WORD = Experiment(
    name="europarl-word",
    title="Predict the next word of European Parliament speeches: the small model that is shipped",
    reproduces="nothing in the paper",
    settings=Settings,
    presets={
        "smoke": {"tokens": 8_000, "words": 200, "embedding": 16, "hidden": 16, "epochs": 2, "warmup": 2},
        "short": {"tokens": 300_000, "words": 4_000},
    },
    arms=(
        Arm("reference", "LSTM", {"hard": False}),
        Arm("hard", "hard LSTM, no noise", {}),
        Arm("leak", "hard LSTM, the leak alone (c = 0)", {"scheme": "nah", "c": 0.0, "gate_c": 0.0}),
        Arm("nah", "NAH", {"scheme": "nah"}),
    ),
    metric="test_perplexity",
    unit="test perplexity",
    agreement="There is no number of the paper to agree with. A gain counts if its p is below 0.05 after Holm's "
    "correction over all comparisons of the table, and is the noise's only if NAH is below the leak alone.",
    start=Speeches,
    data=("europarl",),
    minutes={"smoke": 0.2, "short": 2.0, "paper": 15.0},
)
