"""Statistics against values worked out by hand, independent computations, and simulations with a fixed seed."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from noisyact_lab.analysis.statistics import intervals
from noisyact_lab.analysis.statistics.differences import equivalence, holm, paired_difference
from noisyact_lab.analysis.statistics.intervals import Pooled, mean_interval, pooled_deviation, residual_deviation
from noisyact_lab.analysis.statistics.survival import Times, log_rank

NUMBERS = st.floats(-1e6, 1e6).map(lambda value: round(value, 6))
P_VALUES = st.lists(st.floats(0, 1), max_size=12)


def by_seed(values):
    return {str(seed): value for seed, value in enumerate(values)}


def drawn(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


class TestMeanInterval:
    def test_by_hand(self):
        # Mean 4, s = 2; t(2) = 4.302653; 4.302653 * 2 / sqrt(3) = 4.96828.
        assert mean_interval([2.0, 4.0, 6.0]) == pytest.approx((4.0, 4 - 4.96828, 4 + 4.96828), abs=1e-5)
        # Two: s = sqrt(2), t(1) = tan(0.475 pi) = 12.7062.
        t = math.tan(0.475 * math.pi)
        assert mean_interval([1.0, 3.0]) == pytest.approx((2.0, 2 - t, 2 + t))

    def test_covers_the_mean_in_95_of_100(self):
        hits = [low <= 0 <= high for _, low, high in (mean_interval(list(row)) for row in drawn(0, 4000, 4))]
        assert np.mean(hits) == pytest.approx(0.95, abs=0.012)  # 3.5 standard errors

    @given(st.lists(NUMBERS, min_size=2, max_size=8), st.randoms(use_true_random=False))
    def test_the_order_of_seeds_does_not_matter(self, values, random):
        again = random.sample(values, len(values))
        assert mean_interval(again) == pytest.approx(mean_interval(values), rel=1e-9, abs=1e-9)


class TestPooling:
    def test_by_hand(self):
        # Sums of squares 2, 2 and 0.5 with 1 + 2 + 1 degrees of freedom.
        pooled = pooled_deviation([[1.0, 3.0], [2.0, 3.0, 4.0], [0.0, 1.0], [7.0]])
        assert pooled.deviation == pytest.approx(math.sqrt(4.5 / 4))
        assert pooled.freedom == 4
        t = stats.t.ppf(0.975, 4)
        assert mean_interval([7.0], pooled)[2] == pytest.approx(7 + t * math.sqrt(4.5 / 4))
        assert mean_interval([6.0, 8.0], pooled)[2] == pytest.approx(7 + t * math.sqrt(4.5 / 8))

    def test_nothing_to_pool(self):
        assert pooled_deviation([[1.0, 2.0, 3.0], [4.0]]) is None
        assert residual_deviation([{"0": 1.0}, {"0": 2.0}]) is None
        assert residual_deviation([{"0": 1.0, "1": 2.0}, {"2": 2.0, "3": 3.0}]) is None  # no seed in common

    def test_unequal_variances_are_not_pooled(self):
        quiet, loud = drawn(1, 5) * 0.01, drawn(2, 5)
        assert not pooled_deviation([quiet, quiet + 1, loud]).usable
        assert pooled_deviation([loud, loud + 1, drawn(3, 5)]).usable
        assert not pooled_deviation([[5.0, 5.0], [1.0, 2.0]]).usable  # an arm that does not vary
        assert pooled_deviation([[5.0, 5.0], [1.0, 1.0]]).usable

    def test_covers_the_mean_of_two_seeds_in_95_of_100(self):
        hits = []
        for arms in drawn(4, 500, 5, 2):
            pooled = pooled_deviation(arms.tolist())
            _, low, high = mean_interval(arms[0].tolist(), pooled)
            hits.append(low <= 0 <= high)
        assert np.mean(hits) == pytest.approx(0.95, abs=0.035)

    def test_residuals_are_those_of_a_two_way_analysis_of_variance(self):
        table = drawn(5, 4, 6) + 10 * drawn(6, 6)  # arms x seeds; seeds shift all arms
        residual = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
        found = residual_deviation([by_seed(row) for row in table.tolist()])
        assert found.freedom == 3 * 5
        assert found.deviation == pytest.approx(math.sqrt((residual**2).sum() / 15))

    def test_a_pooled_difference_of_two_seeds_covers_in_95_of_100(self):
        hits = []
        for noise, shift in zip(drawn(7, 200, 5, 2), drawn(8, 200, 2), strict=True):
            arms = [by_seed(row) for row in (noise + 3 * shift).tolist()]
            residuals = residual_deviation(arms)
            low, high = paired_difference(
                arms[0], arms[1], Pooled(residuals.deviation, residuals.freedom, 1.0)
            ).interval
            hits.append(low <= 0 <= high)
        assert np.mean(hits) == pytest.approx(0.95, abs=0.05)


class TestPairedDifference:
    def test_against_scipy(self):
        a, b = drawn(9, 2, 7)
        found, expected = paired_difference(by_seed(a), by_seed(b)), stats.ttest_rel(a, b)
        assert found.p == pytest.approx(expected.pvalue)
        assert found.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))
        assert found.effect == pytest.approx((a - b).mean() / (a - b).std(ddof=1))

    def test_against_a_permutation_of_signs(self):
        a, b = drawn(10, 2, 12)
        a += 0.7
        flips = np.array(list(itertools.product((-1, 1), repeat=12)))
        means = (flips * (a - b)).mean(axis=1)
        exact = np.mean(np.abs(means) >= abs((a - b).mean()) - 1e-12)
        assert paired_difference(by_seed(a), by_seed(b)).p == pytest.approx(exact, abs=0.02)

    def test_the_interval_of_the_effect_has_the_right_tails(self):
        found = paired_difference(by_seed([3.0, 5.0, 7.0, 6.0]), by_seed([2.0, 3.0, 4.0, 5.5]))
        t = found.effect * 2  # sqrt(4) seeds
        for end, tail in zip(found.effect_interval, (0.975, 0.025), strict=True):
            # The noncentral t is (z + delta) / sqrt(chi2 / f): integrate its distribution function over chi2.
            below, _ = integrate.quad(
                lambda v, shift=2 * end: stats.norm.cdf(t * math.sqrt(v / 3) - shift) * stats.chi2.pdf(v, 3), 0, 80
            )
            assert below == pytest.approx(tail, abs=1e-5)

    @given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=8), st.randoms(use_true_random=False))
    @settings(max_examples=50)
    def test_order_swap_and_lone_seeds(self, pairs, random):
        ours, theirs = (by_seed(values) for values in zip(*pairs, strict=True))
        found = paired_difference(ours, theirs)
        seeds = random.sample(sorted(ours), len(ours))
        again = paired_difference({s: ours[s] for s in seeds} | {"x": 1e5}, {s: theirs[s] for s in seeds} | {"y": 7.0})
        assert again.seeds == found.seeds == len(pairs)
        assert again.mean == pytest.approx(found.mean, rel=1e-9, abs=1e-9)
        swapped = paired_difference(theirs, ours)
        assert swapped.mean == pytest.approx(-found.mean, rel=1e-9, abs=1e-9)
        if found.p is not None:
            assert 0 <= found.p <= 1
            assert again.p == pytest.approx(found.p, rel=1e-6, abs=1e-9)
            assert swapped.p == pytest.approx(found.p, rel=1e-6, abs=1e-9)
            assert (found.p < 0.05) == (not found.interval[0] <= 0 <= found.interval[1])

    def test_covers_in_95_of_100_and_p_is_uniform(self):
        found = [paired_difference(by_seed(a), by_seed(b)) for a, b in drawn(11, 200, 2, 5)]
        assert np.mean([f.interval[0] <= 0 <= f.interval[1] for f in found]) == pytest.approx(0.95, abs=0.05)
        assert np.mean([f.effect_interval[0] <= 0 <= f.effect_interval[1] for f in found]) > 0.91
        assert stats.kstest([f.p for f in found], "uniform").pvalue > 0.01

    def test_few_seeds_have_no_interval_of_their_own(self):
        two = paired_difference(by_seed([1.0, 2.0]), by_seed([3.0, 9.0]))
        assert (two.seeds, two.mean, two.interval, two.p, two.effect) == (2, -4.5, None, None, None)
        pooled = paired_difference(by_seed([1.0, 2.0]), by_seed([3.0, 9.0]), Pooled(1.0, 4, 0.5))
        assert pooled.pooled
        assert pooled.effect == pytest.approx(-4.5 / math.sqrt(2))
        assert pooled.p == pytest.approx(2 * stats.t.cdf(-4.5, 4))
        assert paired_difference({"0": 1.0}, {"0": 2.0}, Pooled(1.0, 4, 0.01)).p is None

    def test_differences_that_do_not_vary(self):
        same = paired_difference(by_seed([1.0, 2.0, 3.0]), by_seed([1.0, 2.0, 3.0]))
        assert (same.mean, same.interval, same.p, same.effect) == (0.0, (0.0, 0.0), 1.0, None)
        assert paired_difference(by_seed([1.0, 2.0, 3.0]), by_seed([0.0, 1.0, 2.0])).p is None

    def test_vast_numbers(self):
        found = paired_difference(by_seed([1e308, 1.1e308, 1.2e308]), by_seed([-1e308, 1e308, 1e308]))
        assert (found.mean, found.interval) == (pytest.approx(2.3e308 / 3), None)
        assert paired_difference(by_seed([1e308] * 3), by_seed([-1e308] * 3)).mean == math.inf

    def test_no_seed_in_common(self):
        with pytest.raises(ValueError, match=r"no seed is in both arms: \['0'\] and \['1'\]"):
            paired_difference({"0": 1.0}, {"1": 1.0})


class TestEquivalence:
    def test_is_the_larger_of_two_one_sided_tests(self):
        a, b = drawn(12, 2, 6)
        found = equivalence(by_seed(a), by_seed(b), 0.8)
        low, high = (stats.ttest_1samp(a - b, m, alternative=side) for m, side in ((-0.8, "greater"), (0.8, "less")))
        assert found.p == pytest.approx(max(low.pvalue, high.pvalue))

    @given(st.lists(st.floats(-1, 1), min_size=3, max_size=8), st.floats(0.01, 3))
    @settings(max_examples=50)
    def test_below_5_percent_just_where_the_90_percent_interval_is_inside(self, values, margin):
        found = equivalence(by_seed(values), by_seed([0.0] * len(values)), margin)
        error = stats.sem(values)
        half = stats.t.ppf(0.95, len(values) - 1) * error
        inside = abs(np.mean(values)) + half < margin
        if error > 1e-9 and abs(abs(np.mean(values)) + half - margin) > 1e-9:
            assert (found.p < 0.05) == inside

    def test_identical_arms_and_unknown_intervals(self):
        arm = by_seed([1.0, 2.0, 3.0])
        assert equivalence(arm, arm, 0.1).p == 0.0
        assert equivalence(arm, by_seed([2.0, 3.0, 4.0]), 0.5).p == 1.0
        assert equivalence({"0": 1.0}, {"0": 1.0}, 0.1).p is None

    @pytest.mark.parametrize("margin", [0.0, -1.0, math.inf, math.nan])
    def test_wrong_margins(self, margin):
        with pytest.raises(ValueError, match=f"margin={margin}: must be a finite number above 0"):
            equivalence({"0": 1.0}, {"0": 1.0}, margin)


class TestHolm:
    def test_by_hand(self):
        assert holm([0.02, 0.01, 0.2]) == pytest.approx([0.04, 0.03, 0.2])
        assert holm([]) == []

    @given(P_VALUES)
    def test_between_the_raw_p_value_and_bonferronis(self, values):
        for raw, corrected in zip(values, holm(values), strict=True):
            assert raw <= corrected <= min(1.0, len(values) * raw) + 1e-12

    @given(P_VALUES, st.randoms(use_true_random=False))
    def test_order_does_not_matter_and_ranks_stay(self, values, random):
        places = random.sample(range(len(values)), len(values))
        corrected = holm(values)
        assert holm([values[i] for i in places]) == [corrected[i] for i in places]
        ranked = [p for _, p in sorted(zip(values, corrected, strict=True))]
        assert ranked == sorted(ranked)

    @pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
    def test_no_p_value(self, p):
        with pytest.raises(ValueError, match=f"p={p}: must be between 0 and 1"):
            holm([0.5, p])


class TestLogRank:
    def test_by_hand(self):
        # Ours at 1 and 3, theirs at 2 and one censored at 4. At 1: E = 2/4, V = 1/4; at 2: E = 1/3, V = 2/9; at 3: of
        # one of each, E = 1/2, V = 1/4. O = 2, so z = (2 - 4/3) / sqrt(13/18).
        found = log_rank(Times((1.0, 3.0)), Times((2.0,), censored=(4.0,)))
        assert found.p == pytest.approx(2 * stats.norm.sf((2 / 3) / math.sqrt(13 / 18)))
        assert found.means == pytest.approx((2.0, 3.0))
        assert found.until == 4.0

    def test_against_a_permutation_of_the_arms(self):
        generator = np.random.default_rng(13)
        times = np.round(generator.exponential(10, 24), 1)
        times[:12] *= 0.5
        ended = np.minimum(times, 15.0)

        def compared(ours):
            arms = [
                Times(tuple(ended[mine & (times <= 15)]), tuple(ended[mine & (times > 15)])) for mine in (ours, ~ours)
            ]
            return log_rank(*arms).p

        ours = np.arange(24) < 12
        p = compared(ours)
        drawn = [compared(generator.permutation(ours)) for _ in range(200)]
        assert np.mean([other <= p for other in drawn]) == pytest.approx(p, abs=0.05)

    def test_a_run_censored_before_all_others_says_nothing(self):
        one, other = Times((5.0, 6.0, 7.0)), Times((5.0, 8.0))
        early = log_rank(one, Times((5.0, 8.0), censored=(1.0,)))
        assert early.p == pytest.approx(log_rank(one, other).p)
        assert log_rank(one, Times((1.0, 5.0, 8.0))).p != pytest.approx(early.p)  # as if it had reached it then
        assert log_rank(one, Times((5.0, 8.0), censored=(100.0,))).p < early.p

    def test_median_and_restricted_mean(self):
        times = Times((10.0, 20.0), censored=(15.0, 40.0))
        # After 10: 3/4. At 20 two are left: 3/8.
        assert times.median == 20.0
        assert times.restricted_mean(40.0) == pytest.approx(10 + 0.75 * 10 + 0.375 * 20)
        assert times.restricted_mean(5.0) == 5.0
        assert Times((), censored=(9.0,)).median is None
        assert Times((3.0, 5.0, 7.0)).restricted_mean(10.0) == pytest.approx(5.0)

    def test_nothing_to_see(self):
        assert log_rank(Times((), censored=(9.0, 9.0)), Times((), censored=(9.0,))).p == 1.0
        assert log_rank(Times((5.0, 5.0)), Times((5.0,))).p == 1.0
        assert log_rank(Times((), censored=(1.0,)), Times((5.0,))).p == 1.0

    @given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.lists(st.integers(0, 9), min_size=1, max_size=6))
    @settings(max_examples=60)
    def test_swap(self, ours, theirs):
        one, other = Times(tuple(map(float, ours[1:])), (float(ours[0]),)), Times(tuple(map(float, theirs)))
        found, swapped = log_rank(one, other), log_rank(other, one)
        assert 0 <= found.p <= 1
        assert swapped.p == pytest.approx(found.p)
        assert swapped.means == found.means[::-1]

    def test_wrong_times(self):
        with pytest.raises(ValueError, match="an arm has no run"):
            Times(())
        for bad in (-1.0, math.inf, math.nan):
            with pytest.raises(ValueError, match=f"time={bad}: must be a finite number of at least 0"):
                Times((1.0, bad))


def test_without_scipy(monkeypatch):
    monkeypatch.setattr(intervals.importlib.util, "find_spec", lambda name: None)
    assert "scipy, which is not installed: pip install '.[experiments]'" in intervals.missing()
    assert mean_interval([1.0, 2.0, 3.0]) == (2.0, None, None)
    found = paired_difference(by_seed([1.0, 2.0, 4.0]), by_seed([0.0, 0.0, 0.0]))
    assert (found.mean, found.interval, found.p) == (pytest.approx(7 / 3), None, None)
    assert log_rank(Times((1.0,)), Times((2.0,))).p is None
    with pytest.raises(ValueError, match="need scipy"):
        intervals.scipy_module("stats")
