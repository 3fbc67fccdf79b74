"""Schedules: exact values, laws that hold at every step, values that compare and pickle, and wrong arguments."""

import copy
import math
import pickle

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from noisyact.anneal import constant, cosine, exponential, inverse_sqrt, join, linear, piecewise

BILLION = 10**9
steps = st.integers(0, BILLION)
counts = st.integers(1, BILLION)
levels = st.floats(0, 1e6)


# step, and t + 1 with t = step // 200 counted by hand; the value is 30 / sqrt(t + 1).
@pytest.mark.parametrize(
    ("step", "t_plus_1"),
    [
        (0, 1), (1, 1), (199, 1), (200, 2), (399, 2), (400, 3), (600, 4), (799, 4), (800, 5), (1_600, 9), (1_799, 9),
        (1_800, 10), (3_000, 16), (9_999, 50), (19_800, 100), (20_000, 101), (100_000, 501), (179_800, 900),
        (319_800, 1_600), (719_599, 3_598), (719_799, 3_599),
    ],
)  # fmt: skip
def test_inverse_sqrt_values(step, t_plus_1):
    assert inverse_sqrt(30.0, 0.5, 200)(step) == 30.0 / math.sqrt(t_plus_1)
    assert inverse_sqrt()(step) > 0.5


def test_inverse_sqrt_reaches_the_floor_at_exactly_this_step():
    schedule = inverse_sqrt()
    assert schedule == inverse_sqrt(30.0, 0.5, 200)
    assert schedule(719_799) > 0.5
    assert [schedule(step) for step in (719_800, 719_801, 720_000, 10**6, BILLION)] == [0.5] * 5


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (constant(0.3), {0: 0.3, BILLION: 0.3}),
        (linear(1.0, 0.2, steps=8), {0: 1.0, 2: 0.8, 4: 0.6, 8: 0.2, 9: 0.2, BILLION: 0.2}),
        (linear(0.0, 2.0, steps=4), {0: 0.0, 1: 0.5, 3: 1.5, 4: 2.0, 100: 2.0}),
        (linear(0.1, 0.7, steps=1), {0: 0.1, 1: 0.7}),
        (cosine(2.0, 0.0, steps=6), {0: 2.0, 2: 1.5, 3: 1.0, 4: 0.5, 6: 0.0, BILLION: 0.0}),
        (cosine(0.1, 0.7, steps=3), {0: 0.1, 3: 0.7}),
        (exponential(8.0, rate=0.5, every=10, end=1.0), {0: 8.0, 10: 4.0, 20: 2.0, 30: 1.0, 40: 1.0, BILLION: 1.0}),
        (exponential(4.0, rate=0.25, every=2), {0: 4.0, 1: 2.0, 2: 1.0, BILLION: 0.0}),
        (inverse_sqrt(4, 1, 1), {0: 4.0, 3: 2.0, 15: 1.0, BILLION: 1.0}),
    ],
    ids=repr,
)
def test_values_by_hand(schedule, values):
    for step, value in values.items():
        assert schedule(step) == pytest.approx(value, rel=1e-14, abs=1e-15), step
        assert type(schedule(step)) is float
    ends = min(values), max(values)
    assert [schedule(step) for step in ends] == [values[step] for step in ends]  # the ends exactly


@st.composite
def falling(draw):
    start = draw(levels)
    end = draw(st.floats(0, start))
    kind = draw(st.sampled_from(["inverse_sqrt", "linear", "cosine", "exponential", "constant"]))
    count = draw(counts)
    return {
        "inverse_sqrt": lambda: inverse_sqrt(start, end, count),
        "linear": lambda: linear(start, end, count),
        "cosine": lambda: cosine(start, end, count),
        "exponential": lambda: exponential(start, draw(st.floats(1e-300, 1.0)), count, end),
        "constant": lambda: constant(start),
    }[kind]()


@settings(deadline=None)
@given(falling(), steps, steps)
@example(linear(0.1, 0.1, 10), 3, 7)
@example(linear(0.7, 0.1, 3), 2, 3)
@example(exponential(1.0, 1e-300), BILLION, BILLION)
def test_falling_schedules_fall_within_their_bounds(schedule, one, other):
    first, second = sorted((one, other))
    start = schedule(0)
    end = getattr(schedule, "end", start)
    assert start == getattr(schedule, "start", start)
    assert math.isfinite(schedule(second))
    assert start >= schedule(first) >= schedule(second) >= end


@settings(deadline=None)
@given(levels, levels, counts, steps, steps, st.sampled_from([linear, cosine]))
def test_rising_ones_rise_within_their_bounds(one, other, count, step, later, kind):
    start, end = sorted((one, other))
    first, second = sorted((step, later))
    schedule = kind(start, end, count)
    assert start <= schedule(first) <= schedule(second) <= end


@settings(deadline=None)
@given(st.lists(falling(), min_size=1, max_size=5), st.data())
def test_join_hands_each_step_to_one_schedule_counted_from_its_own_start(parts, data):
    n = len(parts) - 1
    boundaries = sorted(data.draw(st.sets(st.integers(1, BILLION), min_size=n, max_size=n)))
    whole = join(parts, boundaries)
    starts = [0, *boundaries]
    for schedule, begin, end in zip(parts, starts, [*boundaries, 2 * BILLION], strict=True):
        assert whole(begin) == schedule(0)
        assert whole(end - 1) == schedule(end - 1 - begin)
        step = data.draw(st.integers(begin, end - 1))
        assert whole(step) == schedule(step - begin)


@settings(deadline=None)
@given(levels, st.dictionaries(counts, levels, max_size=6), steps)
def test_piecewise_holds_the_value_of_the_last_change(start, changes, step):
    past = [at for at in sorted(changes) if at <= step]
    assert piecewise(start, changes)(step) == (changes[past[-1]] if past else start)


SCHEDULES = [
    constant(0.5),
    inverse_sqrt(),
    inverse_sqrt(2.0, 0.1, 3),
    linear(1.0, 0.0, steps=4),
    cosine(1.0, 0.0, steps=4),
    exponential(1.0, rate=0.9),
    join([constant(2.0), linear(2.0, 0.0, steps=10)], boundaries=[100]),
    piecewise(3.0, {200: 0.5, 100: 1.0}),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_schedules_are_values(schedule):
    for twin in (pickle.loads(pickle.dumps(schedule)), copy.deepcopy(schedule), eval(repr(schedule))):
        assert twin == schedule
        assert hash(twin) == hash(schedule)
        assert twin(123) == schedule(123)
    assert sum(other == schedule for other in SCHEDULES) == 1
    with pytest.raises(AttributeError):
        schedule.start = 1.0


def test_a_joined_schedule_does_not_follow_the_list_it_was_made_from():
    parts, boundaries = [constant(1.0), constant(2.0)], [5]
    schedule = join(parts, boundaries)
    parts[0], boundaries[0] = constant(9.0), 1
    assert [schedule(4), schedule(5)] == [1.0, 2.0]


WRONG = [
    (lambda: constant(-0.1), ValueError, "value=-0.1"),
    (lambda: constant(math.nan), ValueError, "value=nan"),
    (lambda: constant("0.5"), ValueError, "value='0.5'"),
    (lambda: constant(True), ValueError, "value=True"),
    (lambda: inverse_sqrt(math.inf), ValueError, "start=inf"),
    (lambda: inverse_sqrt(0.1, 0.5), ValueError, r"end=0\.5 is above start=0\.1"),
    (lambda: inverse_sqrt(every=0), ValueError, "every=0"),
    (lambda: inverse_sqrt(every=2.0), ValueError, r"every=2\.0"),
    (lambda: linear(1.0, -1.0, 5), ValueError, r"end=-1\.0"),
    (lambda: linear(1.0, 0.0, 0), ValueError, "steps=0"),
    (lambda: cosine(None, 0.0, 5), ValueError, "start=None"),
    (lambda: cosine(1.0, 0.0, -3), ValueError, "steps=-3"),
    (lambda: exponential(1.0, rate=0.0), ValueError, r"rate=0\.0"),
    (lambda: exponential(1.0, rate=1.5), ValueError, r"rate=1\.5"),
    (lambda: exponential(1.0, rate=math.nan), ValueError, "rate=nan"),
    (lambda: exponential(1.0, 0.5, end=2.0), ValueError, r"end=2\.0 is above"),
    (lambda: join([], []), ValueError, r"schedules=\(\)"),
    (lambda: join([constant(1.0)], [5]), ValueError, "1 schedules need 0 boundaries, not 1"),
    (lambda: join([constant(1.0)] * 3, [5, 5]), ValueError, r"\[5, 5\]: must increase"),
    (lambda: join([constant(1.0)] * 3, [7, 5]), ValueError, r"\[7, 5\]: must increase"),
    (lambda: join([constant(1.0)] * 2, [0]), ValueError, "boundary=0"),
    (lambda: join([constant(1.0), 0.5], [5]), TypeError, r"schedule=0\.5"),
    (lambda: piecewise(1.0, {0: 2.0}), ValueError, "boundary=0"),
    (lambda: piecewise(1.0, {5: -2.0}), ValueError, r"value=-2\.0"),
    (lambda: constant(1.0)(-1), ValueError, "step=-1"),
    (lambda: inverse_sqrt()(1.5), ValueError, r"step=1\.5"),
    (lambda: SCHEDULES[-1](-7), ValueError, "step=-7"),
]


@pytest.mark.parametrize(("call", "error", "named"), WRONG)
def test_wrong_arguments_are_named(call, error, named):
    with pytest.raises(error, match=named):
        call()
