"""Intervals that hold at every look: what the capital is, that it is fair, and that intervals cover.

Coverage is counted on populations that are known in full, and bounded by the exact binomial distribution.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fault_injection.campaign.allocation import Allocation, Draws, KnownStratum, Proxy, WantedRate
from fault_injection.campaign.audited import audited, audited_bounds
from fault_injection.campaign.sequences import KEPT, PARTS, SIZES, ConfidenceSequence
from fault_injection.machine.errors import InputError

pytestmark = pytest.mark.law


def too_few(covered, samples):
    """Whether so few would come of a coverage of 94 % in fewer than one test of a thousand; seeds are fixed."""
    return stats.binom.cdf(covered, samples, 0.94) < 1e-3


def test_the_capital_is_what_bets_with_a_part_of_it_each_have_come_to():
    """The oracle takes one bet after the other, as λ(X − m)."""
    rng, sequence, m = np.random.default_rng(0), ConfidenceSequence(), 0.3
    capitals = {side: np.exp(PARTS) for side in (1, -1)}
    unit = None
    for low, high, center, chosen in ((0, 1, 0.2, 0.4), (-0.5, 2, 0.25, 3.0), (0.1, 0.9, 0.3, 0.1)):
        x = rng.uniform(low, high, 20)
        sequence.update(x, low, high, center, (chosen, chosen))
        unit = unit or 1 / (high - low)
        for side, start in ((1, low), (-1, high)):
            distance = side * (center - start)
            for i, size in enumerate([chosen, *SIZES * unit]):
                at_center = min(size, (1 - KEPT) / distance)
                kappa = at_center / (1 - at_center * distance)
                stake = kappa / (1 + kappa * side * (m - start))
                for each in x:
                    capitals[side][i] *= 1 + stake * side * (each - m)
    assert sequence.log_capital(m) == pytest.approx([math.log(capitals[side].sum()) for side in (1, -1)])


def expected_capital(outcomes, again, blocks, n, m):
    """The mean of both capitals against m, over all that so many blocks of n draws can draw, by its probability."""
    sizes = [len(values) for values in outcomes]
    strata = [KnownStratum(size / sum(sizes), None if again else size) for size in sizes]
    chances = np.array([[1.0], [0.7, 0.3]][len(sizes) - 1])
    edges, places, nothing = np.cumsum([0, *chances]), np.arange(n)[:, None] / n, np.zeros(len(sizes))
    # What a place's part of [0, 1) has of each stratum, [place, stratum].
    overlap = n * (np.minimum(edges[1:], places + 1 / n) - np.maximum(edges[:-1], places)).clip(0)
    moves = list(itertools.product(itertools.product(range(len(sizes)), repeat=n), repeat=blocks))
    mean, total = np.zeros(2), 0.0
    for of in moves:
        odds = math.prod(overlap[place, h] for block in of for place, h in enumerate(block))
        flat = [h for block in of for h in block]
        drawn = [flat.count(h) for h in range(len(sizes))]
        hands = [itertools.product(range(k), repeat=d) if again else itertools.permutations(range(k), d)
                 for k, d in zip(sizes, drawn, strict=True)]  # fmt: skip
        hands = list(itertools.product(*hands))
        for hand in hands if odds else []:
            next_case = [iter(cases) for cases in hand]
            allocation = Allocation(strata, [WantedRate("all", 0.01)])
            for block in of:
                y = np.array([outcomes[h][next(next_case[h])] for h in block])
                allocation.observe(Draws(np.array(block), n, chances, Proxy(nothing, nothing, nothing)), y)
            mean += odds / len(hands) * np.exp(allocation._sequences[0].log_capital(m))
            total += odds / len(hands)
    assert total == pytest.approx(1)
    return mean


@pytest.mark.parametrize(
    ("outcomes", "again", "blocks", "n"),
    [
        ([[0, 0, 1, 0.5]], False, 2, 2),
        ([[0, 0, 1, 0.5]], True, 2, 2),
        ([[0, 1], [0, 0, 0.7]], False, 1, 2),
        ([[1, 1, 0], [0.2, 0.9]], False, 2, 1),
        ([[0, 1], [0, 0, 0.7]], True, 2, 2),
    ],
)
def test_against_the_true_rate_the_capital_is_not_expected_to_grow(outcomes, again, blocks, n):
    """Exact, without a random number.  A block has one place in each of its equal parts, and draws cases of a stratum
    once: so its draws depend on one another in both ways that `sequences` speaks of."""
    rate = float(np.concatenate(outcomes).mean())
    assert (expected_capital(outcomes, again, blocks, n, rate) <= 1 + 1e-9).all()
    assert expected_capital(outcomes, again, blocks, n, rate - 0.1)[0] > 1 + 1e-3
    assert expected_capital(outcomes, again, blocks, n, rate + 0.1)[1] > 1 + 1e-3


values = st.lists(st.sampled_from([0.0, 0.01, 0.3, 0.7, 1.0]), min_size=1, max_size=60)


@given(values, values)
@settings(max_examples=40)
def test_an_interval_only_narrows_and_that_of_the_complement_is_its_complement(first, second):
    one, other, before = ConfidenceSequence(), ConfidenceSequence(), (0.0, 1.0)
    for block in (first, second):
        one.update(np.array(block), 0, 1, 0.25)
        other.update(1 - np.array(block), 0, 1, 0.75)
        low, high = one.interval()
        assert before[0] <= low <= high <= before[1]
        assert other.interval() == pytest.approx((1 - high, 1 - low), abs=1e-7)
        before = low, high


def test_blocks_of_the_same_bounds_are_one_block_in_any_order():
    x = np.random.default_rng(0).random(100) < 0.1
    one, parts = ConfidenceSequence(), ConfidenceSequence()
    one.update(x, 0, 1, 0.1)
    for part in np.split(np.sort(x), 4):
        parts.update(part, 0, 1, 0.1)
    assert parts.interval() == pytest.approx(one.interval())
    assert parts.observations == one.observations == 100


def test_nothing_seen_is_an_interval_of_about_as_much_as_can_be_said():
    """Whoever has seen nothing in n trials can exclude log(2/α)/n at best."""
    sequence = ConfidenceSequence()
    sequence.update(np.zeros(1000), 0, 1)
    low, high = sequence.interval()
    assert low == 0 and math.log(40) / 1000 < high < 1.4 * math.log(40) / 1000


@pytest.mark.parametrize("rate", [0.001, 0.03, 0.5])
def test_an_interval_for_all_times_is_little_wider_than_one_for_a_single_time(rate):
    """√(2 log(2/α))/1.96 = 1.4 times as wide at best, if the stake is right for the number of trials."""
    n = round(2000 / rate)
    rng, chosen, left_alone = np.random.default_rng(0), ConfidenceSequence(), ConfidenceSequence()
    stake = math.sqrt(2 * math.log(40) / (n * rate * (1 - rate)))
    for block in np.split(rng.random(n) < rate, range(5000, n, 5000)):
        chosen.update(block, 0, 1, rate, (stake, stake))
        left_alone.update(block, 0, 1)
    once = 2 * 1.96 * math.sqrt(rate * (1 - rate) / n)
    widths = [sequence.interval()[1] - sequence.interval()[0] for sequence in (chosen, left_alone)]
    assert 1.4 * once < widths[0] < 1.6 * once and widths[1] < 2.2 * once


def heavy(rng, size):
    """Most do nothing, few do much."""
    return np.where(rng.random(size) < 0.02, rng.beta(0.4, 1, size), 0), 0.02 * 0.4 / 1.4


def rare(rng, size):
    return rng.random(size) < 1e-4, 1e-4


def common(rng, size):
    return rng.random(size) < 0.4, 0.4


@pytest.mark.parametrize("draw", [heavy, rare, common])
@pytest.mark.parametrize("first", [1, 64])
def test_intervals_cover_at_every_look(draw, first):
    rng, covered, samples = np.random.default_rng(1), 0, 80
    for _ in range(samples):
        sequence, seen, inside = ConfidenceSequence(), 0, True
        while seen < 8_000:
            x, mean = draw(rng, max(first, seen // 8))
            sequence.update(x, 0, 1)
            seen += len(x)
            inside &= max(sequence.log_capital(mean)) < sequence.threshold
        covered += inside
    assert not too_few(covered, samples)


def test_observations_of_any_weight_have_the_mean_that_they_are_bet_on():
    """Chances that change with the past, as whoever follows the outcomes would change them."""
    rng, covered, samples = np.random.default_rng(2), 0, 80
    harm, weights = np.array([0.5, 0.001]), np.array([0.02, 0.98])
    mean = float(harm @ weights)
    for _ in range(samples):
        sequence, seen, inside = ConfidenceSequence(), 0, True
        share = 0.5
        for _ in range(40):
            q = np.array([share, 1 - share])
            of = (rng.random(64) > share).astype(int)
            y = rng.random(64) < harm[of]
            sequence.update(weights[of] / q[of] * y, 0, (weights / q).max())
            seen += 64
            inside &= max(sequence.log_capital(mean)) < sequence.threshold
            share = 0.9 if y.mean() > share / 2 else 0.1
        covered += inside
    assert not too_few(covered, samples)


def test_audits_say_what_early_verdicts_do_not():
    rng, n = np.random.default_rng(3), 40_000
    ends = (rng.random(n) < 0.2).astype(float)
    early = np.where(rng.random(n) < 0.5, ends, rng.random(n) < 0.02)  # half of the harm is missed, some invented
    chances = np.where(early == 1, 0.5, 0.05)
    x = audited(early, np.where(rng.random(n) < chances, ends, np.nan), chances)
    low, high = audited_bounds([(0, 0.05), (1, 0.5)])
    assert (low, high) == pytest.approx((x.min(), x.max()))  # all four cases are there
    sequence = ConfidenceSequence()
    sequence.update(x, low, high)
    least, most = sequence.interval()
    assert least <= 0.2 <= most and early.mean() < least


def test_what_is_known_for_certain_counts_more_than_bets():
    sequence = ConfidenceSequence()
    sequence.update(np.ones(1000), 0, 1)
    sequence.within(0.2, 0.3)
    assert sequence.interval() == (0.3, 0.3)


@pytest.mark.parametrize("x", [1.5, -0.1, np.nan, np.inf])
def test_an_observation_outside_its_bounds_is_refused(x):
    sequence = ConfidenceSequence()
    with pytest.raises(InputError, match="expected one from 0 to 1"):
        sequence.update(np.array([0, x]), 0, 1)
    assert sequence.observations == 0


@pytest.mark.parametrize("confidence", [0, 1, 95])
def test_a_confidence_is_a_fraction(confidence):
    with pytest.raises(InputError, match="above 0 and below 1"):
        ConfidenceSequence(confidence)
