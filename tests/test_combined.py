"""Intervals of weighted sums of means: what the ends are, and that they cover, whatever is summed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from test_sequences import too_few

from fault_injection.campaign.combined import combined
from fault_injection.campaign.sequences import ConfidenceSequence

pytestmark = pytest.mark.law


def sequences(rng, means, blocks=4, size=64):
    found = []
    for mean in means:
        one = ConfidenceSequence()
        for _ in range(blocks):
            one.update((rng.random(size) < mean).astype(float), 0, 1)
        found.append(one)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_an_end_is_the_outermost_sum_that_no_product_of_capitals_excludes(seed):
    """Of two means, by trying: of each value of one, the outermost value of the other is a root."""
    rng = np.random.default_rng(seed)
    means, weights = rng.beta(0.3, 3, 2), rng.dirichlet(np.ones(2))
    (one, other), threshold = sequences(rng, means), np.log(2 / 0.1)
    found = combined([one, other], weights, 0.9)
    for side, sign in ((0, 1), (1, -1)):
        inside, outermost, sums = float(np.mean(other.interval())), float(side), []
        tried = np.linspace(0, 1, 3001)
        for m, capital in zip(tried, one.log_capitals(tried, side)[0], strict=True):

            def left(x, capital=capital, side=side):
                return threshold - capital - other.log_capital(x)[side]

            if left(inside) > 0:
                x = outermost if left(outermost) > 0 else brentq(left, *sorted((outermost, inside)))
                sums.append(float(weights @ [m, x]))
        best = sign * min(sign * np.array(sums))
        outside = sign * (best - found[side])  # never inside of what was found by trying
        assert -1e-9 < outside < 0.01 * (found[1] - found[0])


def test_the_slope_of_a_capital_is_that_of_differences():
    [one] = sequences(np.random.default_rng(0), [0.2])
    m, small = np.array([0.05, 0.2, 0.6]), 1e-6
    for side in (0, 1):
        values, slopes = one.log_capitals(m, side)
        assert values == pytest.approx([one.log_capital(x)[side] for x in m])
        ahead, behind = one.log_capitals(m + small, side)[0], one.log_capitals(m - small, side)[0]
        assert slopes == pytest.approx((ahead - behind) / (2 * small), rel=1e-4)


def test_a_mean_by_itself_has_its_own_interval():
    [one] = sequences(np.random.default_rng(0), [0.1], blocks=1)
    low, high = one.interval()
    assert combined([one], [1]) == pytest.approx((low, high), abs=0.005 * (high - low))
    assert combined([one], [1])[0] <= low and combined([one], [1])[1] >= high


@given(st.lists(st.sampled_from([0.0, 0.001, 0.1, 0.5]), min_size=2, max_size=5), st.integers(0, 99))
@settings(max_examples=15)
def test_what_is_known_for_certain_and_what_weighs_nothing_add_nothing(weights, seed):
    rng = np.random.default_rng(seed)
    parts = sequences(rng, rng.random(len(weights)), blocks=1)
    known = ConfidenceSequence()
    known.within(0.25, 0.25)
    low, high = combined(parts, weights)
    slack = 1e-3 * (high - low)
    assert 0 <= low <= high <= sum(weights) + 1e-9
    assert combined([*parts, known], [*weights, 0.4]) == pytest.approx((low + 0.1, high + 0.1), abs=slack)
    assert combined([*parts, parts[0]], [*weights, 0]) == pytest.approx((low, high), abs=slack)


def test_intervals_of_sums_cover_at_every_look():
    """Layers of very different weights and rates; each block comes to the next one."""
    rng, covered, samples = np.random.default_rng(2), 0, 40
    means, weights = np.array([0.5, 0.02, 0.001, 0.1]), np.array([0.01, 0.2, 0.7, 0.09])
    for _ in range(samples):
        parts, inside = [ConfidenceSequence() for _ in means], True
        for block in range(24):
            at = block % 4
            parts[at].update((rng.random(64) < means[at]).astype(float), 0, 1)
            if block % 5 == 3:
                low, high = combined(parts, weights)
                inside &= low <= means @ weights <= high
        covered += inside
    assert not too_few(covered, samples)
