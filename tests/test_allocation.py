"""Allocation of trials to strata: rates that are covered at every look, as narrow as asked, for few trials."""

import functools
import math

import numpy as np
import pytest
from enumerated import Enumerated, dlrm, dlrm_components
from test_sequences import too_few

from fault_injection.campaign.allocation import Allocation, KnownStratum, Proxy, WantedRate
from fault_injection.campaign.design import design
from fault_injection.machine.errors import InputError

pytestmark = pytest.mark.law


@functools.cache
def flips(reads=True):
    return dlrm(reads=reads)


def synthetic(name):
    """Populations that are hard for an interval: 20,000 cases in four strata."""
    rng, of = np.random.default_rng(5), np.repeat([0, 1, 2, 3], [200, 1800, 8000, 10_000])
    outcomes = {
        "rare": np.isin(np.arange(20_000), [50, 15_000]),
        "heavy": np.where(rng.random(20_000) < np.array([0.5, 0.05, 0.001, 0])[of], rng.random(20_000), 0),
        "nothing": np.zeros(20_000),
        "all": np.ones(20_000),
        "hidden": of == 3,  # harm is where a pilot may not look
        "one case": np.arange(20_000) == 0,
    }[name]
    return Enumerated(outcomes, np.where(np.arange(20_000) == 0, 9, of) if name == "one case" else of)


SYNTHETIC = ["rare", "heavy", "nothing", "all", "hidden", "one case"]


def covered(population, samples, wanted, **options):
    """Of each rate, how many of so many campaigns contained it at every look."""
    return np.sum([population.campaign(seed, wanted, **options).covered for seed in range(samples)], axis=0)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", SYNTHETIC)
def test_intervals_cover_at_every_look(name, again):
    wanted = [WantedRate("all", 1e-6), WantedRate("a part", math.inf, (0, 2))]
    found = covered(synthetic(name), 5, wanted, again=again, most=1500)
    assert not any(too_few(each, 5) for each in found)


def test_intervals_cover_on_all_flips_of_dlrm():
    wanted = [WantedRate("all", 1e-6), *dlrm_components(flips())]
    found = covered(flips(), 8, wanted, most=2000)
    assert not any(too_few(each, 8) for each in found)


@pytest.mark.slow
def test_intervals_cover_on_all_flips_of_dlrm_overall_and_by_component():
    wanted = [WantedRate("all", 1e-6), *dlrm_components(flips())]
    found = covered(flips(), 100, wanted, most=4000)
    assert not any(too_few(each, 100) for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", ["rare", "heavy", "hidden"])
def test_intervals_cover_in_many_campaigns(name, again):
    found = covered(synthetic(name), 60, [WantedRate("all", 1e-6)], again=again, most=4000)
    assert not too_few(found[0], 60)


def test_a_campaign_stops_as_soon_as_every_rate_is_as_narrow_as_asked():
    population = flips()
    wanted = [WantedRate("all", 0.004), *dlrm_components(population, 0.01)]
    campaign = population.campaign(0, wanted)
    for rate, asked in zip(campaign.rates, wanted, strict=True):
        assert rate.high - rate.low <= asked.width and rate.answer == "as wide as asked" and rate.more == 0
        assert rate.low <= population.rate_of(asked) <= rate.high
    assert campaign.rates[0].trials == campaign.trials == sum(rate.trials for rate in campaign.rates[1:])
    # One rate alone needs fewer trials than all of them.
    assert population.campaign(0, wanted[:1]).trials < campaign.trials < 20_000


def test_a_campaign_that_ends_early_says_about_how_many_trials_it_needs():
    population = flips()
    whole = population.campaign(0, 0.001)
    short = population.campaign(0, 0.001, most=1000)
    [rate] = short.rates
    assert rate.answer == f"needs about {rate.more:,} more"
    assert 1 / 2.5 < (short.trials + rate.more) / whole.trials < 2.5


def test_strata_take_a_tenth_of_the_trials_of_simple_random_sampling():
    """Of all flips of `dlrm`, as in a population that is never exhausted, for a rate known within 5 %."""
    plain = Enumerated(flips().outcomes)
    width = 0.1 * plain.rate
    trials = [
        np.mean([population.campaign(seed, width, again=True).trials for seed in range(3)])
        for population in (plain, flips())
    ]
    assert trials[1] <= trials[0] / 10


def test_a_bound_of_outcomes_that_is_known_saves_trials():
    """Rows that few examples read can make few of them wrong; what is proved harmless is not tried."""
    rate = flips().rate
    with_, without = (flips(reads).campaign(1, rate / 5).trials for reads in (True, False))
    assert with_ < without
    of = np.repeat([0, 1], [100, 900])
    population = Enumerated(of == 0, of, np.where(of == 0, 1, 0))
    allocation = Allocation(population.strata(True), [WantedRate("all", 0.02)])
    rng = np.random.default_rng(0)
    while draws := allocation.draw(rng):
        allocation.observe(draws, draws.strata == 0)
    [found] = allocation.rates()
    assert allocation.counts[1] == 0 < allocation.counts[0]
    assert found.low <= 0.1 <= found.high <= 0.1 + 1e-9


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_population_that_is_exhausted_is_known(name):
    population = synthetic(name)
    campaign = population.campaign(0, 1e-12)
    [rate] = campaign.rates
    assert (rate.low, rate.share, rate.high) == pytest.approx((population.rate,) * 3, abs=1e-12)
    assert campaign.trials == 20_000 and rate.answer == "as wide as asked"


def test_a_wrong_proxy_costs_trials_and_nothing_else():
    rng = np.random.default_rng(4)
    chance = rng.beta(0.2, 0.8, 20_000)
    population = Enumerated(rng.random(20_000) < chance, np.arange(20_000) < 2000)
    proxies = {"good": chance, "none": None, "constant": np.full(20_000, 0.5), "inverted": 1 - chance}
    found = {
        name: [population.campaign(seed, 0.04, again=True, proxy=proxy) for seed in range(6)]
        for name, proxy in proxies.items()
    }
    trials = {name: np.mean([campaign.trials for campaign in campaigns]) for name, campaigns in found.items()}
    for campaigns in found.values():
        assert not too_few(sum(campaign.covered[0] for campaign in campaigns), 6)
        assert all(campaign.rates[0].high - campaign.rates[0].low <= 0.04 for campaign in campaigns)
    assert trials["good"] < 0.7 * trials["none"]
    assert trials["constant"] == pytest.approx(trials["none"], rel=0.15)
    assert trials["inverted"] > 1.5 * trials["none"]


def test_a_proxy_that_is_fitted_to_earlier_blocks_may_change_with_each():
    """It is the mean of what was seen of a kind; strata do not know kinds."""
    rng, samples, inside = np.random.default_rng(6), 12, 0
    kind = np.arange(4000) % 4
    outcomes = (rng.random(4000) < np.array([0.02, 0.1, 0.5, 0.95])[kind]).astype(float)
    for _ in range(samples):
        allocation = Allocation([KnownStratum(1, 4000)], [WantedRate("all", 0.03)])
        order, covers, start = rng.permutation(4000), True, 0
        seen, wrong = np.zeros((2, 4))
        while True:
            model = wrong / (seen + 1)
            rest = model[kind[order[start:]]]
            proxy = Proxy(*(np.array([value]) for value in (rest.mean(), rest.min(), rest.max())))
            if not (draws := allocation.draw(rng, proxy=proxy)):
                break
            case = order[start : (start := start + len(draws.strata))]
            allocation.observe(draws, outcomes[case], model[kind[case]])
            np.add.at(seen, kind[case], 1)
            np.add.at(wrong, kind[case], outcomes[case])
            [rate] = allocation.rates()
            covers &= rate.low <= outcomes.mean() <= rate.high
        inside += covers
    assert not too_few(inside, samples)
    assert rate.share == pytest.approx(outcomes.mean(), abs=0.015)


def test_audits_of_early_verdicts_cover_whatever_these_are():
    """Early verdicts that miss half of the harm, audited with unequal chances; believing them would not cover."""
    rng = np.random.default_rng(7)
    of = np.repeat([0, 1], [2000, 18_000])
    ends = (rng.random(20_000) < np.array([0.5, 0.02])[of]).astype(float)
    population = Enumerated(ends, of)
    for early in (np.where(rng.random(20_000) < 0.5, ends, 0), 1 - ends):
        found = [population.campaign(seed, 0.04, again=True, early=early, chances=(0.2, 0.6)) for seed in range(8)]
        assert not too_few(sum(campaign.covered[0] for campaign in found), 8)
        low, high = np.mean([(c.rates[0].low, c.rates[0].high) for c in found], axis=0)
        assert not low <= early.mean() <= high


def test_a_campaign_that_is_made_again_from_its_outcomes_goes_on_as_if_it_had_not_stopped():
    population, outcomes = synthetic("heavy"), {}

    def made(until):
        allocation, trials = Allocation(population.strata(True), [WantedRate("all", 0.004)]), 0
        for block in range(until):
            if not (draws := allocation.draw(np.random.default_rng((11, block)))):
                break
            if block not in outcomes:
                rng = np.random.default_rng((12, block))
                outcomes[block] = np.array([rng.choice(population.outcomes[population.of == h]) for h in draws.strata])
                trials += len(draws.strata)
            allocation.observe(draws, outcomes[block])
        return allocation, trials

    parts = [made(until) for until in (1, 2, 7, 11, 1000)]
    kept, outcomes = parts[-1][0], {}
    whole, trials = made(1000)
    assert whole.rates() == kept.rates()
    assert trials == sum(part[1] for part in parts) == whole.counts.sum()


def test_numbers_by_stratum_are_those_that_chances_say():
    allocation = Allocation([KnownStratum(w) for w in (0.6, 0.3, 0.1)], [WantedRate("all", 0.001)])
    rng = np.random.default_rng(0)
    blocks = [allocation.draw(rng) for _ in range(400)]
    numbers = np.array([np.bincount(block.strata, minlength=3) for block in blocks])
    expected = 64 * blocks[0].chances
    assert (abs(numbers - expected) < 2).all()
    assert numbers.mean(axis=0) == pytest.approx(expected, abs=0.15)


def test_no_other_chances_give_a_narrower_interval():
    """Of three strata, by trying chances; the gap is Bernstein's, computed here by itself."""
    weights, spread, n, threshold = np.array([0.05, 0.25, 0.7]), np.array([0.45, 0.1, 0.01]), 4000, 3.7
    found = design(weights, spread, (np.zeros(3), np.ones(3)), n, threshold)

    def width(q):
        variance, most = ((weights * spread) ** 2 / q).sum(), (weights / q).max()
        best = math.sqrt(2 * threshold / (n * variance))
        return sum(threshold / (n * s) + s * variance / 2 for s in (best, min(best, 1 / most)))

    rng = np.random.default_rng(0)
    others = [width(q) for q in rng.dirichlet(np.ones(3), 1500)]
    assert sum(found.gaps(n)) <= 1.02 * min(others)
    assert sum(found.gaps(n)) == pytest.approx(width(found.chances))
    assert found.trials(sum(found.gaps(n))) == pytest.approx(n, rel=1e-3)


def test_what_is_asked_decides_when_a_campaign_ends_and_not_what_it_draws():
    """So a campaign that is asked for less and then for more has drawn the same, and says the same, at every look."""

    def drawn(width):
        blocks = []
        synthetic("heavy").campaign(
            3, width, most=4000, watch=lambda draws, y: blocks.append((draws.strata, draws.chances, y))
        )
        return blocks

    few, many = drawn(0.02), drawn(0.004)
    assert 1 < len(few) < len(many)
    for one, other in zip(few, many, strict=False):
        assert all(map(np.array_equal, one, other))


def test_a_rate_may_be_chosen_by_what_was_seen():
    """The stratum that looked worst, and the best one: their intervals rest on what is drawn after the choice."""
    rng, covers, samples = np.random.default_rng(8), 0, 40
    harm = np.full(8, 0.1)
    for _ in range(samples):
        outcomes = [rng.random(500) < p for p in harm]
        truth = [each.mean() for each in outcomes]
        allocation, drawn = Allocation([KnownStratum(1 / 8, 500)] * 8, [WantedRate("all", 1e-9)]), np.zeros(8, int)
        seen, asked = [[] for _ in harm], []
        for block in range(8):
            if block == 2:
                means = [np.mean(each) for each in seen]
                asked = [int(np.argmax(means)), int(np.argmin(means))]
                for stratum in asked:
                    allocation.ask(WantedRate(f"stratum {stratum}", math.inf, (stratum,)))
            draws = allocation.draw(rng)
            y = np.zeros(len(draws.strata))
            for stratum in range(8):
                here = np.flatnonzero(draws.strata == stratum)
                y[here] = outcomes[stratum][drawn[stratum] : drawn[stratum] + len(here)]
                drawn[stratum] += len(here)
                seen[stratum] += y[here].tolist()
            allocation.observe(draws, y)
        rates = allocation.rates()[1:]
        covers += all(rate.low <= truth[at] <= rate.high for rate, at in zip(rates, asked, strict=True))
    assert not too_few(covers, samples)


def test_a_block_has_as_many_experiments_as_it_should_though_strata_end_in_it():
    allocation = Allocation(
        [KnownStratum(0.1, 10), KnownStratum(0.2, 200), KnownStratum(0.7, 10**6)], [WantedRate("all", 1e-9)]
    )
    rng, ended = np.random.default_rng(0), 0
    for _ in range(12):
        draws = allocation.draw(rng)
        assert len(draws.strata) == 64
        ended += draws.by_chance < 64
        allocation.observe(draws, rng.random(64) < 0.3)
    assert ended and allocation.counts[0] == 10


ONE = [KnownStratum(1)]
BAD = [
    ([KnownStratum(0.5)], [WantedRate("all", 0.1)], "add up to 0.5: expected 1"),
    ([KnownStratum(1, 0)], [WantedRate("all", 0.1)], "weight and cases above 0"),
    ([KnownStratum(1, None, 1, 0)], [WantedRate("all", 0.1)], "low <= high"),
    ([KnownStratum(1, 10, 0, 5)], [WantedRate("all", 0.1)], "outcomes of audits are not exact"),
    (ONE, [], "no rate is asked for"),
    (ONE, [WantedRate("all", 0)], "'all' with a width of 0"),
    (ONE, [WantedRate("all", math.nan)], "'all' with a width of nan"),
    (ONE, [WantedRate("all", 0.1, (1,))], "expected numbers below 1"),
    (ONE, [WantedRate("all", 0.1, ())], "expected numbers below 1"),
]


@pytest.mark.parametrize(("strata", "wanted", "message"), BAD)
def test_a_plan_that_cannot_be_meant_is_refused(strata, wanted, message):
    with pytest.raises(InputError, match=message):
        Allocation(strata, wanted)


def test_outcomes_that_cannot_be_meant_are_refused_and_change_nothing():
    allocation = Allocation([KnownStratum(0.5), KnownStratum(0.5, None, 0, 0.25)], [WantedRate("all", 0.1)])
    draws = allocation.draw(np.random.default_rng(0))
    good, before = np.zeros(len(draws.strata)), allocation.rates()
    late = good + 0.5 * (draws.strata == 1)
    for outcomes, message in [(good[1:], "of the shape"), (late, r"stratum 1: expected 0 to 0.25"), (good - 1, "to 1")]:
        with pytest.raises(InputError, match=message):
            allocation.observe(draws, outcomes)
    with pytest.raises(InputError, match="within the bounds of the block's proxy"):
        allocation.observe(draws, good, good + 0.5)
    assert allocation.rates() == before and not allocation.counts.any()
