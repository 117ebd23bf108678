"""Rates that rest on early verdicts: their intervals contain the rate of the whole campaign as often as they say."""

import collections
import csv
import dataclasses
import functools
import itertools
import json
import shutil

import campaign_stores
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whole import WHOLE

from fault_injection.campaign.rates import Rate, wilson
from fault_injection.campaign.two_phase import Guesses, two_phase
from fault_injection.campaign.wording import share as in_words
from fault_injection.commands.main import main
from fault_injection.machine.errors import InputError
from fault_injection.questions.outcomes.audits import EARLY, WIDER, expected, share_to_audit
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.outcomes.store import Store
from fault_injection.questions.outcomes.tally import GuessKind, Tally, Verdicts, tally_of, weighted_not_masked
from fault_injection.runs.outcome import LOW_TEST, MASKED, SLOW, UNDECIDED

counts = st.integers(0, 400)


@st.composite
def kinds(draw):
    audited, rest, open = draw(counts), draw(counts), draw(st.integers(0, 3))
    total = audited + rest + open
    return Guesses(total, draw(st.integers(0, total)), audited, draw(st.integers(0, audited)), open)


@given(counts, counts, st.lists(kinds(), min_size=1, max_size=3).filter(lambda early: sum(one.total for one in early)))
def test_the_rate_of_an_outcome_and_that_of_all_others_are_one(found, others, early):
    rate = two_phase(found, others, early)
    assert 0 <= rate.low <= rate.share <= rate.high <= 1
    mirrored = [Guesses(e.total, e.total - e.saying, e.audited, e.audited - e.found, e.open) for e in early]
    other = two_phase(others, found, mirrored)
    assert other.share == pytest.approx(1 - rate.share)
    # Each end is a quantile of draws, which are not the same ones.
    near = 0.15 * (rate.high - rate.low) + 0.002
    assert (other.low, other.high) == pytest.approx((1 - rate.high, 1 - rate.low), abs=near)


def test_more_audits_make_an_interval_narrower_and_no_audit_leaves_everything_open():
    widths = [
        rate.high - rate.low for m in (0, 10, 100, 1000) for rate in [two_phase(300, 300, [Guesses(1800, 0, m, 0)])]
    ]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 0.75
    full = wilson(300, 2400)
    assert widths[-1] < 1.1 * (full.high - full.low)


def test_an_audit_without_an_end_may_have_had_either():
    known, open = (two_phase(0, 100, [Guesses(100, 0, 20, 0, n)]) for n in (0, 10))
    assert open.share == known.share == 0 and open.high > known.high + 0.1


def row(n: int, outcome: str = MASKED, exit: str = "conditions", near: int = 0, ended: str | None = None):
    return {
        "exit": exit,
        "outcome": outcome,
        "near": near,
        "early_rule": "at once",
        "ended": ended,
        "nested": None,
        "n": n,
    }


PLAN = parse_plan('workload = "resnet18"\n[faults]\nexperiments = 100\n[faults.models]\nRD = 1\nZERO = 3')


def test_without_a_guess_the_interval_is_wilsons():
    """Proofs, and kinds of which every one was followed, are known."""
    rows = [row(5, SLOW, "end"), row(20, MASKED, "exact"), row(3, UNDECIDED, "horizon")]
    audited = [row(9, ended=MASKED), row(1, ended=SLOW)]
    assert tally_of(rows, PLAN).not_masked(0.95) == wilson(5, 25)
    rate = tally_of([*rows, *audited], PLAN).not_masked(0.95)
    assert rate == wilson(6, 35)._replace(audits=10)
    assert tally_of([*rows, *audited, row(1)], PLAN).not_masked(0.95).guesses == 1


def test_shares_of_all_outcomes_add_up_to_one_and_are_what_audits_say():
    rows = [
        *(row(10, SLOW, "end"), row(70), row(15, ended=MASKED), row(5, ended=SLOW)),
        *(row(6, LOW_TEST), row(4, UNDECIDED), row(10, UNDECIDED, "horizon")),
    ]
    tally = tally_of(rows, PLAN)
    assert tally.early.keys() == {GuessKind(False, True), GuessKind(False, False)}
    assert tally.counts == {MASKED: 85, SLOW: 15, LOW_TEST: 6, UNDECIDED: 14}
    shares = tally.shares()
    assert sum(shares.values()) == pytest.approx(1)
    assert shares[SLOW] == pytest.approx((10 + 90 * 5 / 20) / 120)
    assert shares[LOW_TEST] == pytest.approx(6 / 120)  # of a kind without an audit the verdict is believed
    for outcome, share in shares.items():
        rate = tally.rate([outcome], 0.95)
        assert rate.share == pytest.approx(share)
        assert (rate.guesses, rate.audits, rate.unaudited) == (76, 20, 6)
        assert rate.found == tally.counts[outcome] and rate.total == 120
    assert tally.rate([LOW_TEST], 0.95).high > 6 / 120 + 0.05 and tally.rate([LOW_TEST], 0.95).low == 0


def test_verdicts_near_a_threshold_are_a_kind_of_their_own_where_audits_tell_them_apart():
    rows = [row(50), row(5, ended=MASKED), row(4, near=1, ended=MASKED)]
    assert tally_of(rows, PLAN).early.keys() == {GuessKind(False, True)}
    apart = parse_plan('workload = "resnet18"\n[faults]\nexperiments = 9\n[run]\naudit = 0.1\naudit_near = 1\n')
    assert (apart.audit, apart.audit_near) == (0.1, 1)
    found = tally_of(rows, apart)
    assert found.early.keys() == {GuessKind(False, True), GuessKind(True, True)}
    assert found.resolved().known == {MASKED: 4}


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.floats(0.1, 9)), min_size=1, max_size=5
    )
)
def test_parts_of_any_size_and_weight_have_a_rate(parts):
    """Also where shares that add up to one do so but for rounding."""
    tallies = []
    for bad, guessed, audited, weight in parts:
        of = {MASKED: guessed} if guessed else {}
        verdicts = Verdicts(collections.Counter(of), ends=collections.Counter({MASKED: audited} if audited else {}))
        early = {GuessKind(False, True): verdicts} if guessed or audited else {}
        tallies.append((Tally(collections.Counter({SLOW: bad} if bad else {}), early), weight))
    rate = weighted_not_masked(tallies, 0.95)
    assert rate.total == sum(sum(part[:3]) for part in parts)
    assert not rate.total or 0 <= rate.low <= rate.share <= rate.high <= 1


def test_weights_of_parts_hold_with_guesses_too():
    """As `stratified` of known ends, and wider by what audits leave open."""
    full = [(Tally(collections.Counter({SLOW: bad, MASKED: 100 - bad})), w) for bad, w in ((90, 1.0), (0, 3.0))]
    exact = weighted_not_masked(full, 0.95)
    assert exact.share == pytest.approx(0.225)
    masked = Verdicts(collections.Counter({MASKED: 80}), ends=collections.Counter({MASKED: 20}))
    guessed = [full[0], (Tally(early={GuessKind(False, True): masked}), 3.0)]
    rate = weighted_not_masked(guessed, 0.95)
    assert rate.share == pytest.approx(0.225) and rate.found == exact.found
    assert rate.low == pytest.approx(exact.low, abs=0.01) and exact.high + 0.03 < rate.high < 0.5


@pytest.mark.parametrize("experiments", [1, 8, 60, 400, 2400, 9604, 1_000_000])
def test_the_default_audits_enough_for_an_interval_half_as_wide_again(experiments):
    share = share_to_audit(experiments, 0.95)
    early = EARLY * experiments
    fewest = share * early - 1.645 * np.sqrt(share * (1 - share) * early)  # 95 of 100 campaigns draw more
    found = expected(experiments, fewest, 0.95)
    assert share == 1 or found.width <= 1.03 * WIDER * found.full
    fewer = expected(experiments, 0.8 * fewest, 0.95)
    assert experiments < 60 or fewer.width > WIDER * found.full  # and not many more


def test_audits_grow_as_the_square_root_of_the_experiments():
    few, many = (share_to_audit(n, 0.95) * n for n in (2400, 240_000))
    assert many / few == pytest.approx(10, rel=0.1)
    assert 140 <= EARLY * few <= 160


@pytest.fixture
def audited(tmp_path):
    """A campaign's folder: of 40 experiments every sixth is bad, every fifth early verdict was audited; one differs."""

    def changes(number):
        return {} if number % 6 == 0 or number % 5 else {"audit_outcome": SLOW if number == 5 else MASKED}

    return campaign_stores.fill(tmp_path / "audited", campaign_stores.toy_plan(), changes)


def test_every_command_and_page_says_the_same_rates(audited, tmp_path, capsys):
    def told(*command):
        assert main([*map(str, command)]) == 0
        return capsys.readouterr().out

    stated = json.loads(told("status", audited, "--json"))
    rate = Rate(**stated["not_masked"])
    assert (rate.found, rate.total, rate.guesses, rate.audits, rate.unaudited) == (8, 40, 27, 6, 0)
    assert rate.share == pytest.approx((7 + 33 / 6) / 40) and rate.low < 7 / 40 < rate.share < 0.5 < rate.high
    assert stated["outcomes"][MASKED]["share"] == pytest.approx(1 - rate.share)
    assert json.loads(told("report", audited, "--json"))["not_masked"] == stated["not_masked"]
    shown = in_words(rate)
    assert in_words(Rate(**stated["whole"])) in told("status", audited)  # with the plan's weights
    told("export", audited, "--out", tmp_path)
    with (tmp_path / "rates.csv").open() as file:
        rows = {row.pop("outcome"): row for row in csv.DictReader(file)}
    assert rows.keys() == stated["outcomes"].keys() | {"not masked, of the decided"}
    for outcome, known in stated["outcomes"].items():
        assert rows[outcome] == {name: str(value) for name, value in known.items()}
    other = tmp_path / "other"
    shutil.copytree(audited, other)
    told("report", audited, other, "--out", tmp_path / "compared")
    assert (tmp_path / "compared" / "comparison.html").read_text().count(f"not masked {shown}") == 2
    assert f'<td class="number">{shown}</td>' in (audited / "report.html").read_text()  # the group of its one stage
    assert "6 of these to the end, and 1 changed" in (audited / "report.html").read_text()


def test_a_campaign_that_grows_keeps_the_share_of_audits_that_it_began_with(audited):
    longer = campaign_stores.toy_plan(4000)
    with Store(audited) as store:
        begun = store.plan()
        assert longer.audit < begun.audit == share_to_audit(40, 0.95)
        assert store.expect(longer) == dataclasses.replace(longer, audit=begun.audit)
        with pytest.raises(InputError, match=r"another plan \(audit differ\)"):
            store.expect(dataclasses.replace(longer, audit_open=False))


class Population:
    """Experiments of which a share `early` gets an early verdict of one of the kinds, a share q of which is wrong."""

    def __init__(self, seed: int, early: float, bad: float, wrong: tuple[float, ...]):
        self.rng, self.wrong = np.random.default_rng(seed), wrong
        self.shares = [(1 - early) * bad, (1 - early) * (1 - bad), *[early / len(wrong)] * len(wrong)]
        self.rate = self.shares[0] + early * float(np.mean(wrong))

    def sample(self, experiments: int, audit: float) -> np.ndarray:
        """Numbers: known bad, known masked, and of each kind those not audited, audited, and of these wrong ones."""
        known_bad, known, *early = self.rng.multinomial(experiments, self.shares)
        audited = self.rng.binomial(early, audit)
        return np.array([known_bad, known, *early, *audited, *self.rng.binomial(audited, self.wrong)])


@functools.cache  # small campaigns often have the same numbers
def estimate(bad: int, known: int, *early: int):
    kinds = np.reshape(early, (3, -1)).T.tolist()
    return two_phase(bad, known, [Guesses(total, 0, m, j) for total, m, j in kinds])


def estimated(numbers: np.ndarray):
    return estimate(*numbers.tolist())


def coverage(population: Population, campaigns: int, experiments: int, audit: float, until: float | None) -> float:
    """The share of campaigns whose interval contains the rate; one that grows stops once it is narrow enough."""
    hits = 0
    for _ in range(campaigns):
        numbers = population.sample(experiments, audit)
        rate = estimated(numbers)
        while until is not None and rate.high - rate.low > until and numbers[:-1].sum() < 20 * experiments:
            numbers = numbers + population.sample(experiments // 2, audit)
            rate = estimated(numbers)
        hits += rate.low <= population.rate <= rate.high
    return hits / campaigns


def test_an_interval_covers_where_every_early_verdict_is_believed_wrongly():
    """A law that a quick simulation sees: believing them covers nothing here."""
    population = Population(1, early=0.75, bad=0.5, wrong=(0.1,))
    assert coverage(population, 200, 400, 0.2, None) >= 0.94
    believed = [wilson(int(numbers[0]), 400) for numbers in (population.sample(400, 0.2) for _ in range(200))]
    assert sum(rate.low <= population.rate <= rate.high for rate in believed) < 20


CASES = {
    "none is wrong": (0.75, 0.5, (0.0,)),
    "few are wrong": (0.75, 0.5, (0.02,)),
    "many are wrong": (0.75, 0.5, (0.4,)),
    "harm is rare": (0.97, 0.05, (0.0,)),
    "harm is rare, some unseen": (0.97, 0.05, (0.01,)),
    "kinds differ": (0.7, 0.5, (0.0, 0.05, 0.5)),
    "nearly all are known": (0.1, 0.1, (0.3,)),
    "all are wrong": (0.5, 0.9, (1.0,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("stops", [False, True], ids=["fixed", "stops early"])
@pytest.mark.parametrize(("case", "experiments"), list(itertools.product(CASES, (60, 2400))))
def test_nominal_95_percent_covers_at_least_94(case, experiments, stops):
    population = Population(len(case), *CASES[case])
    campaigns = 600 if WHOLE else 300
    share = share_to_audit(experiments, 0.95)
    until = None
    if stops:  # at a width that some campaigns have at once, and others only after they have grown
        widths = [
            rate.high - rate.low for rate in (estimated(population.sample(experiments, share)) for _ in range(20))
        ]
        until = 0.8 * float(np.median(widths))
        campaigns = 300 if WHOLE else 150
    found = coverage(population, campaigns, experiments, share, until)
    assert found >= 0.94
