"""The card of a trained model: what it was trained on and how, its licence, its score, and the checksum of its weights.

A card `NAME.json` lies beside `NAME.safetensors`. The parameters are float16; the words of the vocabularies are in
the same file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import types
import typing
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn

from noisyact_lab.data.text import Vocabulary
from noisyact_lab.engine.folder import files
from noisyact_lab.engine.folder.files import read_bytes, read_json, write_bytes, write_json

__all__ = ["Card", "Contents", "Damaged", "read", "shipped", "shipped_names", "write"]

_FOLDER = Path(__file__).parent
_MODEL, _WORDS = "model/", "words/"
"""What the names of the weights and of the vocabularies begin with in the file."""


class Damaged(files.Damaged):
    """A card or a file of weights that does not hold what :func:`write` writes."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(path, why, "Install noisyact again, or export the model again")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.why)


@dataclasses.dataclass(frozen=True)
class Card:
    """What is to be known of a trained model."""

    experiment: str
    title: str
    arm: str
    preset: str
    seed: int
    updates: int
    settings: dict[str, Any]
    """All settings of the run."""
    metric: str
    """The headline among the scores."""
    scores: dict[str, float | None]
    """The result of the run, with the numbers of the test set measured again with the rounded weights of the file."""
    signatures: dict[str, str]
    """How scores are computed, where a scorer has a signature for that."""
    data: str
    """What the model was trained on."""
    licence: str
    """The licence of that text, whose words the file has."""
    rebuilt_by: str
    """The command that trains the model again and writes the file."""
    trained: str
    """The day on which the run ended, in UTC."""
    commit: str | None
    """The commit of the code that trained it."""
    torch_version: str
    parameters: int
    size: int
    """Bytes of the file with weights and words."""
    sha256: str
    """Of that file."""

    @property
    def summary(self) -> str:
        """What the model is, in a line."""
        score = self.scores.get(self.metric)
        said = "" if score is None else f", {self.metric} {score:.2f}"
        name, _, _ = self.data.partition(",")
        return f"{self.experiment} ({self.arm}, {self.parameters:,} parameters{said}), trained on {name}"


@dataclasses.dataclass(frozen=True)
class Contents:
    """A card with the weights and the vocabularies that it is about."""

    card: Card
    weights: dict[str, Tensor]
    """A state_dict, in float32."""
    vocabularies: dict[str, Vocabulary]


def shipped_names() -> tuple[str, ...]:
    """The names of the models that are shipped, which are those of their experiments.

    >>> shipped_names()
    ('europarl-word', 'translate-multi30k')
    """
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def shipped(name: str) -> Path:
    """The card of a shipped model."""
    if name not in shipped_names():
        raise ValueError(f"no model of {name!r} is shipped; there are {', '.join(shipped_names()) or 'none'}")
    return _FOLDER / f"{name}.json"


def read(path: Path) -> Contents:
    """Read a card and the file beside it.

    Raises: Damaged, if they do not belong together or do not hold what :func:`write` wrote; FileNotFoundError.
    """
    try:
        about = read_json(path, dict)
    except files.Damaged as error:
        raise Damaged(path, error.why) from None
    fields = {field.name for field in dataclasses.fields(Card)}
    if about.keys() != fields:
        wrong = sorted(about.keys() ^ fields)
        raise Damaged(path, f"it is no card of a model: {', '.join(map(repr, wrong))} missing or unknown")
    kinds = typing.get_type_hints(Card)
    for name, value in about.items():
        kind = (
            kinds[name] if isinstance(kinds[name], types.UnionType) else typing.get_origin(kinds[name]) or kinds[name]
        )
        if not isinstance(value, kind):
            raise Damaged(path, f"its {name} is {str(value)[:40]!r}, which no card has")
    card = Card(**about)
    weights = _weights(path)
    content = read_bytes(weights)
    if hashlib.sha256(content).hexdigest() != card.sha256:
        raise Damaged(weights, f"its checksum is not the one on its card, {path.name}")
    try:
        tensors = tensors_from_bytes(content)
    except (SafetensorError, ValueError) as error:
        raise Damaged(weights, f"it does not hold tensors ({error})") from None
    words = {name.removeprefix(_WORDS): tensor for name, tensor in tensors.items() if name.startswith(_WORDS)}
    return Contents(
        card,
        {name.removeprefix(_MODEL): value.float() for name, value in tensors.items() if name.startswith(_MODEL)},
        {name: Vocabulary(bytes(tensor.tolist()).decode().split("\n")) for name, tensor in words.items()},
    )


def write(folder: Path, card: dict[str, Any], model: nn.Module, vocabularies: dict[str, tuple[str, ...]]) -> Path:
    """Write a card and its file, the card last; returns the card.

    Args:
        folder: for both files.
        card: the fields of :class:`Card` but those that are about the file.
        model: its parameters are written as float16; its buffers, such as noise scales, as they are.
        vocabularies: of the model.
    """
    tensors = {f"{_MODEL}{name}": value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        tensors[f"{_MODEL}{name}"] = parameter.detach().cpu().half().contiguous()
    for name, symbols in vocabularies.items():
        tensors[f"{_WORDS}{name}"] = torch.tensor(list("\n".join(symbols).encode()), dtype=torch.uint8)
    content = tensors_to_bytes(tensors)
    path = folder / f"{card['experiment']}.json"
    parameters = sum(parameter.numel() for parameter in model.parameters())
    about = Card(**card, parameters=parameters, size=len(content), sha256=hashlib.sha256(content).hexdigest())
    write_bytes(_weights(path), content)
    write_json(path, dataclasses.asdict(about))
    return path


def _weights(card: Path) -> Path:
    return card.with_suffix(".safetensors")
