"""The fleet card: rates of incidents times shares, with ranges that hold."""

import json

import campaign_stores
import numpy as np
import pytest
from strict_html import check_html

from fault_injection.campaign.rates import wilson
from fault_injection.commands.main import main
from fault_injection.machine.errors import InputError
from fault_injection.questions.outcomes.report.facts import Facts
from fault_injection.questions.outcomes.report.fleet import PUBLISHED_FIT, Detected, Fleet, fleet_card
from fault_injection.questions.outcomes.store import Store
from fault_injection.runs.outcome import IMMEDIATE, MASKED, UNDECIDED


@pytest.fixture
def followed(tmp_path):
    """A campaign of 40 runs that were all followed: 4 silent, 3 with a loss that is not finite, 1 undecided."""

    def changes(number):
        known = {"exit": "end", "early_rule": None, "early_outcome": None, "early_after": None, "first_nonfinite": None}
        if number == 13:
            return known | {"outcome": UNDECIDED, "exit": "horizon"}
        return known if number % 12 == 0 else known | {"outcome": IMMEDIATE if number % 6 == 0 else MASKED}

    return campaign_stores.fill(tmp_path / "followed", campaign_stores.toy_plan(), changes)


def card_of(folder, *arguments):
    with Store(folder) as store:
        return fleet_card(Facts(store), *arguments)


def test_expected_events_are_devices_times_hours_times_rates(followed):
    card = card_of(followed, Fleet(1000, (400.0, 400.0)))
    hours = 24 * 365.25 / 12
    faults = 1000 * hours * 400e-9
    expected = {one.what: one for one in card.expected}
    assert expected["faults"][1:] == pytest.approx([faults] * 3)
    for what, found in (("not masked", 7), ("silent outcomes", 4)):
        rate = wilson(found, 39, 0.95)
        assert expected[what][1:] == pytest.approx([faults * rate.low, faults * rate.share, faults * rate.high])
    assert "1 of 40 experiments are undecided, and left out of the shares." in card.sentences
    lost = expected["steps of such runs, which are lost as a whole"]
    assert lost[1:] == pytest.approx([32 * n for n in expected["silent outcomes"][1:]])


def test_a_published_range_goes_with_the_ends_of_the_intervals(followed):
    one, other = (card_of(followed, Fleet(7, (fit, fit))).expected for fit in PUBLISHED_FIT)
    both = card_of(followed, Fleet(7)).expected
    assert [e.low for e in both] == pytest.approx([e.low for e in one])
    assert [e.high for e in both] == pytest.approx([e.high for e in other])
    assert [e.middle for e in both] == pytest.approx(
        [(a.middle + b.middle) / 2 for a, b in zip(one, other, strict=True)]
    )


def test_published_rates_are_those_of_the_published_counts():
    for counts, rate in zip(((6, 54 * 24 * 16384), (18, 3.5e7)), PUBLISHED_FIT, strict=True):
        assert 1e9 * counts[0] / counts[1] == pytest.approx(rate, rel=0.02)


def test_what_is_detected_is_not_silent(followed):
    details = campaign_stores.toy_plan().workload
    after = [None, 3, 5, None, 2, 4, 4, 1]
    detected = Detected("history_bound", details.title, details.details, after, guesses=2)
    card = card_of(followed, Fleet(1000, (400.0, 400.0)), detected)
    level = 0.975
    silent, missed = wilson(4, 39, level), wilson(2, 8, level)
    faults = card.expected[0].low
    (ruined,) = (one for one in card.expected if one.what == "silent outcomes that are not detected")
    products = [silent.low * missed.low, silent.share * missed.share, silent.high * missed.high]
    assert ruined[1:] == pytest.approx([faults * p for p in products])
    assert "history_bound detected 6 of the 8 silent outcomes that it watched, after 3.5 steps" in " ".join(
        card.sentences
    )
    assert "2 of the experiments watched have early verdicts that nobody followed" in " ".join(card.sentences)


def test_the_range_of_a_product_covers_at_the_stated_confidence():
    """By simulation, at shares that are rare and common: the product of the ends of two intervals at 97.5 %."""
    rng = np.random.default_rng(1)
    for p, q, n, m in ((0.1, 0.2, 400, 60), (0.02, 0.5, 2400, 30), (0.3, 0.05, 200, 200)):
        found, missed = rng.binomial(n, p, 2000), rng.binomial(m, q, 2000)
        ends = [(wilson(int(a), n, 0.975), wilson(int(b), m, 0.975)) for a, b in zip(found, missed, strict=True)]
        covered = np.mean([one.low * other.low <= p * q <= one.high * other.high for one, other in ends])
        assert covered >= 0.94


def test_guesses_widen_the_card_as_they_widen_rates(followed, tmp_path):
    guessed = campaign_stores.fill(tmp_path / "guessed", campaign_stores.toy_plan())
    one, other = (card_of(folder, Fleet(1000)).expected for folder in (followed, guessed))
    assert other[1].high > 2 * one[1].high  # early verdicts of which none was audited


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("devices=0", "devices '0'; expected a whole number from 1"),
        ("fit=400", "devices ''; expected a whole number from 1"),
        ("devices=1024,fit=-3", "fit '-3'; expected failures per 1e9 device hours"),
        ("devices=1024,fit=nan", "fit 'nan'; expected failures per 1e9 device hours"),
        ("devices=1024,fit=500-400", "fit '500-400'; expected failures per 1e9 device hours"),
        ("devices=1024,device=3", "'device' is unknown; did you mean 'devices'?"),
        ("devices=1024,devices=3", "devices is given twice"),
        ("devices", "'devices'; expected such as devices=1024,fit=400"),
        ("devices=1024,score=here", "score=DIR and detector=NAME go together"),
        ("devices=1024,score=here,detector=asd", "no campaign here"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(followed, capsys, given, message):
    assert main(["report", str(followed), "--fleet", given]) == 2
    told = capsys.readouterr().err.strip()
    assert message in told and "\n" not in told
    assert not (followed / "fleet.html").exists()


def test_a_scoreboard_of_another_training_or_without_silent_outcomes_is_refused(followed):
    workload = campaign_stores.toy_plan().workload
    for detected, message in (
        (Detected("asd", "resnet18", "large", [None], 0), "expected one training"),
        (Detected("asd", workload.title, workload.details, [], 0), "has watched no silent outcome"),
    ):
        with pytest.raises(InputError, match=message):
            card_of(followed, Fleet(8), detected)
    with pytest.raises(InputError, match="no experiment is decided"):
        undecided = campaign_stores.fill(
            followed.parent / "open",
            campaign_stores.toy_plan(2),
            lambda number: {"outcome": UNDECIDED, "exit": "horizon"},
        )
        card_of(undecided, Fleet(8))


def test_command_page_and_json_say_the_same(followed, capsys):
    assert main(["report", str(followed), "--fleet", "devices=1024,fit=400", "--json"]) == 0
    stated = json.loads(capsys.readouterr().out)
    kept = json.loads((followed / "fleet.json").read_text())
    assert {**kept, "report": str(followed / "fleet.html")} == stated
    page = (followed / "fleet.html").read_text()
    check_html(page)
    for sentence in kept["sentences"]:
        assert sentence.replace("'", "&#x27;") in page
    assert any("its plan's mix of fault models" in sentence for sentence in kept["sentences"])  # the premise
    low, _, high = kept["expected_a_month"]["silent outcomes"]
    assert 0 < low < high < 1024 * 731 * 400e-9
    assert f"{low:.3g}" in page and f"{high:.3g}" in page
    assert main(["report", str(followed), "--fleet", "devices=1024"]) == 0
    assert "280 to 510 FIT (published: Llama 3, and AEGIS)" in capsys.readouterr().out
