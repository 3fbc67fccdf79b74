"""Beam search finds what exhaustive search finds, where the beam is wide enough, and what greedy search finds at 1."""

import itertools
import math

import pytest
import torch

from noisyact_lab.models.beam_search import BEGIN, Beam, beam

END = 0


class Bigrams:
    """A decoder whose next token depends on the last one and on a number its state counts up."""

    def __init__(self, tokens, steps, batch, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(batch, steps, tokens + 1, tokens, generator=generator).mul(2).log_softmax(-1)

    def __call__(self, tokens, state, constants):
        (count,), (which,) = state, constants
        rows = which[:, None].expand_as(tokens)
        return self.table[rows, count.clamp(max=self.table.shape[1] - 1), tokens], [count + 1]  # BEGIN is the last row

    def start(self):
        batch = len(self.table)
        return [torch.zeros(batch, 1, dtype=torch.int64)], [torch.arange(batch)]

    def log_p(self, which, sequence):
        pairs = zip((BEGIN, *sequence), sequence, strict=False)
        return sum(self.table[which, place, a, b].item() for place, (a, b) in enumerate(pairs))


def exhaustive(model, which, tokens, longest, power):
    """Every sequence that ends, and every one cut at the greatest length."""
    others = [token for token in range(tokens) if token != END]
    ended = [(*s, END) for size in range(longest) for s in itertools.product(others, repeat=size)]
    cut = list(itertools.product(others, repeat=longest))
    scored = [(model.log_p(which, s) / len(s) ** power, s) for s in [*ended, *cut]]
    score, best = max(scored)
    return score, best[:-1] if best[-1] == END else best


@pytest.mark.parametrize("power", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_wide_beam_is_exhaustive(seed, power):
    tokens, longest = 3, 4
    model = Bigrams(tokens, longest, batch=3, seed=seed)
    found = beam(model, *model.start(), width=40, end=END, longest=longest, length_power=power)
    for which, hypotheses in enumerate(found):
        score, best = exhaustive(model, which, tokens, longest, power)
        assert hypotheses[0].tokens == best
        assert hypotheses[0].score == pytest.approx(score, abs=1e-5)
        assert len({(h.tokens, h.ended) for h in hypotheses}) == len(hypotheses) == 2**0 + 2 + 4 + 8 + 16
        assert sum(math.exp(h.log_probability) for h in hypotheses) == pytest.approx(1, abs=1e-5)


def test_a_beam_of_one_takes_the_likeliest_at_every_step():
    model = Bigrams(7, 9, batch=20, seed=3)
    for which, (found,) in enumerate(beam(model, *model.start(), width=1, end=END, longest=9)):
        sequence, last = [], BEGIN
        for place in range(9):
            last = int(model.table[which, place, last].argmax())
            if last == END:
                break
            sequence.append(last)
        assert found.tokens == tuple(sequence)
        assert found.ended == (last == END)
        assert found.log_probability == pytest.approx(
            model.log_p(which, (*sequence, END) if found.ended else sequence), abs=1e-5
        )


def test_inputs_do_not_meet():
    model = Bigrams(6, 8, batch=5, seed=1)
    (state,), (which,) = model.start()
    together = beam(model, [state], [which], width=4, end=END, longest=8)
    for row in range(5):
        [alone] = beam(model, [state[row : row + 1]], [which[row : row + 1]], width=4, end=END, longest=8)
        assert [h.tokens for h in alone] == [h.tokens for h in together[row]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[row]])


def test_what_has_ended_keeps_its_place():
    """After the first step 'end' is second; two tokens later everything else is likelier, and it is still there."""
    step_1, later = torch.tensor([0.3, 0.36, 0.34]).log(), torch.tensor([0.0, 0.5, 0.5]).log()

    def step(tokens, state, constants):
        return torch.where((tokens == BEGIN)[..., None], step_1, later), state

    [found] = beam(step, [torch.zeros(1, 1)], width=3, end=END, longest=6, length_power=0)
    assert found[0].tokens == ()
    assert found[0].ended
    assert [len(h.tokens) for h in found] == [0, 6, 6]


def test_the_search_stops_when_all_have_ended():
    calls = []

    def step(tokens, state, constants):
        calls.append(tokens)
        return torch.tensor([0.6, 0.4]).log().expand(*tokens.shape, 2), state

    found = beam(step, [torch.zeros(2, 1)], width=2, end=END, longest=1000)
    assert [[h.tokens for h in hypotheses] for hypotheses in found] == [[(), (1,)], [(), (1,)]]
    assert len(calls) == 8


def test_recording_changes_nothing():
    model, seen = Bigrams(6, 8, batch=5, seed=2), []

    def record(function):
        def overwriting(*inputs):
            outputs = function(*[tensor.clone() for tensor in inputs])
            for old in seen:
                for tensor in old:
                    tensor.fill_(1)
            seen[:] = [outputs]
            return outputs

        return overwriting

    plain = Beam(model, width=3, end=END, longest=8)(*model.start())
    assert Beam(model, width=3, end=END, longest=8, record=record)(*model.start()) == plain


def test_bad_settings_are_named():
    for settings, message in (
        ({"width": 0}, "width=0"),
        ({"longest": 0}, "longest=0"),
        ({"length_power": -1.0}, "=-1"),
    ):
        with pytest.raises(ValueError, match=message):
            Beam(Bigrams(3, 3, 1), **{"width": 2, "end": END, "longest": 3, **settings})
