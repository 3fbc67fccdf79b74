"""The programs of Learning to Execute: what they print, how they are spread, how they are packed."""

import contextlib
import io
import itertools
import random
import re
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noisyact_lab.experiments.execute.programs import (
    CURRICULA,
    IGNORED,
    SYMBOLS,
    Columns,
    Difficulty,
    Writer,
    curriculum,
    decoded,
    programs,
)

TARGET = Difficulty(6, 3)


def printed(text: str) -> str:
    """What Python prints for the program in a text."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(text.split("@")[0].replace("#", "\n"), {})
    return output.getvalue()


def written(difficulty, count, seed=0):
    writer = Writer(random.Random(seed).random, lambda: difficulty)
    return [writer.program() for _ in range(count)]


@pytest.mark.parametrize("length", range(1, 7))
@pytest.mark.parametrize("nesting", range(1, 4))
def test_python_prints_the_target(length, nesting):
    for text in written(Difficulty(length, nesting), 300):
        assert printed(text) == text.split("@")[1][:-1] + "\n", text


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**64), st.integers(1, 12), st.integers(1, 10))
def test_python_prints_the_target_of_any_difficulty(seed, length, nesting):
    for text in written(Difficulty(length, nesting), 3, seed):
        assert printed(text) == text.split("@")[1][:-1] + "\n", text
        assert set(text) <= set(SYMBOLS)


def test_a_wrong_target_would_be_seen():
    assert printed("a=3;#print((a-5))@-2.") == "-2\n"
    assert printed("a=3;#print((a-5))@2.") != "2\n"


SHAPES = {
    r"print\(\(\d+[+-]\d+\)\)": "sum",
    r"print\(\(\d+\*\d+\)\)": "product",
    r"print\(\d+\)": "same",
    r"([a-j])=\d+;#print\(\(\1[+-]\d+\)\)": "assigned",
    r"([a-j])=\d+#for x in range\(\d+\):\1[+-]=\d+#print\(\1\)": "loop",
    r"print\(\(\d+ if \d+[<>]\d+ else \d+\)\)": "choice",
}


def test_operations_are_equally_likely_and_nothing_else_is_written():
    texts = written(Difficulty(3, 1), 6000)
    found = Counter(name for text in texts for shape, name in SHAPES.items() if re.fullmatch(shape, text.split("@")[0]))
    assert sum(found.values()) == len(texts)
    for name in SHAPES.values():  # 1000 expected, with a standard deviation of 29
        assert abs(found[name] - 1000) < 120, found


def test_numbers_cover_their_ranges():
    """Numbers 1 to 10 ** length; factors and loops 1 to 4 * length; both signs and comparisons."""
    texts = written(Difficulty(1, 1), 6000)
    numbers = {int(n) for text in texts if (m := re.fullmatch(r"print\((\d+)\)@\d+\.", text)) for n in m.groups()}
    loops = {int(n) for text in texts for n in re.findall(r"range\((\d+)\)", text)}
    assert numbers == set(range(1, 11))
    assert loops == set(range(1, 5))
    factors = Counter()
    for text in written(Difficulty(2, 1), 6000):
        if m := re.fullmatch(r"print\(\((\d+)\*(\d+)\)\)@\d+\.", text):
            factors[int(m[1]) > 8] += 1
            assert min(int(m[1]), int(m[2])) <= 8
    assert min(factors[True], factors[False]) > 300  # the factor stands on both sides
    assert all(any(sign in text for text in texts) for sign in ("+=", "-=", "<", ">"))


def test_one_operand_is_the_last_result_at_any_place():
    places = Counter()
    for text in written(Difficulty(1, 2), 8000):
        # A product of numbers inside a choice: at which of the four places?
        if m := re.fullmatch(r"print\(\((\S+) if (\S+)[<>](\S+) else (\S+)\)\)", text.split("@")[0]):
            nested = [place for place, operand in enumerate(m.groups()) if "*" in operand]
            assert len(nested) <= 1
            places.update(nested)
    assert sorted(places) == [0, 1, 2, 3]
    assert min(places.values()) > 25  # about 55 each


def test_statistics_are_those_of_the_original_generator():
    """Measured on 20,000 programs of the original code at length 6, nesting 3."""
    texts = list(written(TARGET, 20_000))
    codes, targets = zip(*(text.split("@") for text in texts), strict=True)
    assert sum(len(code) + 1 for code in codes) / len(texts) == pytest.approx(59.0, abs=0.5)
    assert sum(map(len, targets)) / len(texts) == pytest.approx(8.19, abs=0.05)
    assert sum(code.count("#") + 1 for code in codes) / len(texts) == pytest.approx(2.5, abs=0.03)
    assert sum(target.startswith("-") for target in targets) / len(texts) == pytest.approx(0.27, abs=0.015)
    assert len(SYMBOLS) == len(set(SYMBOLS)) == 42
    assert set("".join(texts)) == set(SYMBOLS)


def test_parts_share_no_program():
    easy = Difficulty(1, 1)  # there are few of these, so that a shared one would be met
    drawn = {}
    for part in ("train", "valid", "test"):
        stream = programs(part, "0", "naive", easy, TARGET)
        drawn[part] = {next(stream) for _ in range(3000)}
    assert min(map(len, drawn.values())) > 300
    assert not drawn["train"] & drawn["valid"]
    assert not drawn["train"] & drawn["test"]
    assert not drawn["valid"] & drawn["test"]


def test_a_stream_follows_from_its_number():
    def first(number, part="train"):
        stream = programs(part, number, "combined", Difficulty(2, 2), TARGET)
        return [next(stream) for _ in range(20)]

    assert first("3 7") == first("3 7")
    assert first("3 7") != first("3 8")
    with pytest.raises(ValueError, match="part 'exam' is unknown; allowed are train, valid, test"):
        first("0", "exam")


@pytest.mark.parametrize("name", CURRICULA)
def test_curricula(name):
    current = Difficulty(2, 1)
    difficulty = curriculum(name, random.Random(0).random, current, TARGET)
    found = Counter(difficulty() for _ in range(18_000))
    everything = {(length, nesting) for length in range(1, 7) for nesting in range(1, 4)}
    if name == "baseline":
        assert set(found) == {TARGET}
    elif name == "naive":
        assert set(found) == {current}
    else:
        # mix: 1000 each; combined: a fifth of that, and the other four fifths current.
        share = 1.0 if name == "mix" else 0.2
        assert set(found) == everything
        for pair, count in found.items():
            expected = 1000 * share + (18_000 * (1 - share) if pair == current else 0)
            assert abs(count - expected) < 5 * expected**0.5, (pair, count)


def test_unknown_curriculum_and_impossible_difficulty_are_named():
    with pytest.raises(ValueError, match="curriculum 'blend' is unknown; allowed are baseline, naive, mix, combined"):
        curriculum("blend", random.random, TARGET, TARGET)
    assert Difficulty(6, 10).checked("target") == (6, 10)
    for wrong in ((0, 1), (1, 0), (6, 11)):
        with pytest.raises(ValueError, match=rf"target: length {wrong[0]}, nesting {wrong[1]}: allowed"):
            Difficulty(*wrong).checked("target")


def test_packed_columns_are_programs_and_the_next_symbols_their_targets():
    rows, columns = 301, 7
    x, y = Columns(programs("valid", "1", "baseline", TARGET, TARGET), rows, columns).packed()
    assert (x.shape, y.shape) == ((rows, columns), (rows - 1, columns))
    assert x.dtype == y.dtype == torch.uint8
    stream = programs("valid", "1", "baseline", TARGET, TARGET)
    for column in range(columns):
        expected = ""
        while len(expected) < rows:
            expected += next(stream)
        expected = expected[:rows]
        assert decoded(x[:, column]) == expected
        within, asked = False, []
        for symbol, following in itertools.pairwise(expected):
            within = symbol == "@" or (within and symbol != ".")
            asked.append(SYMBOLS.index(following) if within else IGNORED)
        assert y[:, column].tolist() == asked
