"""How much of what programs print is right: by hand, and its standard error by repeated draws."""

import pytest
import torch

from noisyact_lab.experiments.execute.programs import IGNORED, SYMBOLS, Columns
from noisyact_lab.experiments.execute.scores import score


def test_scores_as_worked_out_by_hand():
    # 7. and 42. and 42. of which the last is cut before its full stop: 2, 3 and 2 symbols to predict.
    texts = ["print(7)@7.", "print(42)@42.", "print(42)@42."]
    x, y = Columns(iter(texts), 36, 1).packed()
    assert (y != IGNORED).sum() == 7
    predicted = torch.where(y == IGNORED, 0, x[1:])
    assert score(x, y, predicted) == (100.0, 0.0, 100.0)
    wrong = predicted.clone()
    places = (y[:, 0] != IGNORED).nonzero()[:, 0]
    wrong[places[2:4]] = SYMBOLS.index("-")  # two of the second program
    wrong[places[5]] = SYMBOLS.index("-")  # one of the third, which is cut and so not among the whole
    found = score(x, y, wrong)
    a = 4 / 7
    spread = (2 - 2 * a) ** 2 + (1 - 3 * a) ** 2 + (1 - 2 * a) ** 2
    assert found.accuracy == pytest.approx(100 * a)
    assert found.standard_error == pytest.approx(100 * (3 / 2 * spread) ** 0.5 / 7)
    assert found.whole == 50.0


def test_standard_error_is_that_of_repeated_draws():
    """Of many test sets of 200 programs that are right or wrong as a whole, with probability 1/2."""
    generator = torch.Generator().manual_seed(0)
    stream = (f"print({n})@{n}." for n in iter(lambda: int(torch.randint(1, 9999, (), generator=generator)), -1))
    accuracies, errors = [], []
    for _ in range(150):
        x, y = Columns(stream, 3000, 1).packed()
        program = (x[:-1] == SYMBOLS.index("@")).cumsum(0)
        wrong = torch.rand(len(x), generator=generator)[program] < 0.5
        found = score(x, y, torch.where(wrong, IGNORED - 1, y))
        accuracies.append(found.accuracy)
        errors.append(found.standard_error)
    spread = torch.tensor(accuracies).std().item()
    assert sum(errors) / len(errors) == pytest.approx(spread, rel=0.2)
