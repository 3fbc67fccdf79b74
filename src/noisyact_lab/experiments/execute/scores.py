"""What a model says that programs print: its predictions, how much of them is right, programs with both."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from noisyact_lab.experiments.execute.programs import IGNORED, SYMBOLS, decoded

__all__ = ["Score", "predictions", "sample", "score"]


def predictions(model: nn.Module, x: Tensor, steps: int) -> Tensor:
    """The likeliest next symbol, uint8 [rows - 1, columns], after each but the last of x; the noise is its expectation.

    The state begins at zero and is carried from window to window of `steps`.
    """
    training, state, found = model.training, None, []
    model.eval()
    with torch.no_grad():
        for window in x[:-1].split(steps):
            logits, state = model(window.long(), state)
            found.append(logits.argmax(dim=2).to(torch.uint8))
    model.train(training)
    return torch.cat(found)


class Score(NamedTuple):
    """How much of what programs print is right, in per cent."""

    accuracy: float
    """Share of symbols that are right, each given those before it."""
    standard_error: float
    """Standard error of the accuracy over the drawing of programs."""
    whole: float
    """Share of programs with every symbol right: the model would also write them right by itself."""


def score(x: Tensor, y: Tensor, predicted: Tensor) -> Score:
    """Score predictions, [rows - 1, columns], for packed programs x and y.

    With n_i symbols of program i, c_i of them right, and the accuracy a = sum c_i / sum n_i, the standard error is
    sqrt(m / (m - 1) sum (c_i - a n_i)^2) / sum n_i over the m programs.

    >>> from noisyact_lab.experiments.execute.programs import Columns
    >>> x, y = Columns(iter(["print(7)@7.", "print(8)@8."]), 11, 2).packed()
    >>> predicted = x[1:].clone()
    >>> predicted[-2, 0] = 3  # of the first program one symbol of two is wrong
    >>> score(x, y, predicted)
    Score(accuracy=75.0, standard_error=25.0, whole=50.0)
    """
    x, y, predicted = x.cpu(), y.cpu(), predicted.cpu()
    asked = y != IGNORED
    begun = (x[:-1] == SYMBOLS.index("@")).cumsum(0)
    program = (begun + len(x) * torch.arange(x.shape[1]))[asked]
    count = program.bincount().double()
    right = program.bincount((predicted == y)[asked].double(), len(count))
    complete = program.bincount((y == SYMBOLS.index("."))[asked].double(), len(count)) > 0
    count, right, complete = (part[count > 0] for part in (count, right, complete))
    accuracy, m = right.sum() / count.sum(), len(count)
    spread = (right - accuracy * count).square().sum() * m / max(1, m - 1)
    whole = (right == count)[complete].double().mean()
    return Score(*(100 * value.item() for value in (accuracy, spread.sqrt() / count.sum(), whole)))


def sample(title: str, x: Tensor, predicted: Tensor, most: int) -> dict[str, Any]:
    """A table of the first programs of a column x: the program, what it prints, and what is predicted of that.

    Args:
        title: of the table.
        x: [rows].
        predicted: [rows - 1], each given all before it.
        most: programs.
    """
    text, rows, start = decoded(x), [], 0
    while len(rows) < most and (stop := text.find(".", start)) >= 0:
        code, printed = text[start:stop].split("@")
        at = start + len(code)  # after it the first printed symbol is predicted
        rows.append([code.replace("#", "\n"), printed + ".", decoded(predicted[at : at + len(printed) + 1])])
        start = stop + 1
    return {"title": title, "columns": ["program", "target", "prediction"], "rows": rows}
