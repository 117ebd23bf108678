"""The fleet card: how often a training on many devices is harmed, from published or own rates of incidents.

FIT are failures in 1e9 device hours.  Expected events a month are

.. math::
  devices · hours · FIT / 10^9 · P(outcome | fault) · P(not detected | outcome)

P(outcome | fault) is the campaign's rate, P(not detected | outcome) is a scoreboard's.  Of the k of them that are
estimated, each has an interval at the confidence 1 − (1 − c)/k (Bonferroni).  So the range from the product of their
low ends to that of their high ends holds at the confidence c, whatever depends on what.  A rate of incidents is taken
as given: where it is a range, its low end goes with the low ends, and its high end with the high ones.

Published rates, per GPU: 6 incidents in 54 days on 16,384 GPUs (Llama 3), about 280 FIT; 18 in 3.5e7 GPU hours (AEGIS),
about 510 FIT.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ....campaign.box import BoxAnswer
from ....campaign.page import Cell, Section, Table, page
from ....campaign.rates import Rate, wilson
from ....campaign.wording import level as in_percent
from ....campaign.wording import number
from ....machine.errors import InputError
from ....machine.files import write_json, write_text
from ....runs.outcome import DIVERGED, LATENT
from ..answer import answer_of
from ..store import Store
from ..wanted import outcome_name
from .facts import Facts
from .queries import QUERIES

PUBLISHED_FIT = (280.0, 510.0)
MONTH = 24 * 365.25 / 12  # hours


class Fleet(NamedTuple):
    """A training's devices.

    Attributes:
      devices: how many.
      fit: the lowest and the highest rate of incidents, in failures per 1e9 device hours; the same where one is known.
    """

    devices: int
    fit: tuple[float, float] = PUBLISHED_FIT

    def incidents(self) -> tuple[float, float]:
        """Expected incidents a month, for both rates.

        >>> [round(n, 3) for n in Fleet(16384).incidents()]
        [3.351, 6.104]
        """
        low, high = (self.devices * MONTH * rate / 1e9 for rate in self.fit)
        return low, high


class Detected(NamedTuple):
    """What a scoreboard says of a detector.

    Attributes:
      detector: its name.
      title, details: of the workload that was watched.
      after: of each silent experiment that was watched, steps from the fault to the alarm; None without one.
      guesses: how many of the experiments watched have an early verdict that nobody followed.
    """

    detector: str
    title: str
    details: str
    after: Sequence[int | None]
    guesses: int


class Expected(NamedTuple):
    """Expected events a month.

    Attributes:
      what: they are.
      low, middle, high: the range, and the product of the shares with the middle of a range of incidents.
    """

    what: str
    low: float
    middle: float
    high: float


class Card(NamedTuple):
    """What a fleet card says.

    Attributes:
      fleet: the devices.
      rates: shares by what they are of, each at the confidence that holds for their product.
      expected: events a month.
      steps: of the training, from the first to the last.
      sentences: the card in words.
    """

    fleet: Fleet
    rates: dict[str, Rate]
    expected: list[Expected]
    steps: int
    sentences: list[str]

    def as_dict(self) -> dict[str, Any]:
        """For machines to read."""
        return {
            "devices": self.fleet.devices,
            "fit": list(self.fleet.fit),
            "hours_a_month": MONTH,
            "rates": {name: rate._asdict() for name, rate in self.rates.items()},
            "expected_a_month": {one.what: [one.low, one.middle, one.high] for one in self.expected},
            "steps_of_the_training": self.steps,
            "sentences": self.sentences,
        }


def fleet_card(facts: Facts, fleet: Fleet, detected: Detected | None = None) -> Card:
    """The card of a campaign's training on a fleet.

    Args:
      detected: a detector that watches the training; None where nothing does.

    Raises:
      InputError: no experiment is decided, or the scoreboard is of another training or has no silent outcome.
    """
    workload, confidence = facts.plan.workload, facts.plan.confidence
    if not facts.decided:
        raise InputError("no experiment is decided yet, so nothing is known of a fleet", facts.store.path)
    if detected is not None and (detected.title, detected.details) != (workload.title, workload.details):
        theirs, ours = (f"{one.title} ({one.details})" for one in (detected, workload))
        raise InputError(f"the scoreboard is of {theirs}, the campaign of {ours}; expected one training")
    if detected is not None and not detected.after:
        raise InputError("the scoreboard has watched no silent outcome, so nothing is known of what is detected")
    level = confidence if detected is None else 1 - (1 - confidence) / 2
    harm, silent, loud = _shares(facts, level)
    low, high = fleet.incidents()
    rates = {"not masked": harm, "outcomes with a loss that is not finite": loud, "silent outcomes": silent}
    expected = [Expected("faults", low, (low + high) / 2, high)]
    expected += [_times(name, fleet, [rate]) for name, rate in rates.items()]
    if detected is not None:
        missed = sum(after is None for after in detected.after)
        rates["not detected, of silent outcomes"] = wilson(missed, len(detected.after), level)
        expected.append(
            _times("silent outcomes that are not detected", fleet, [silent, rates["not detected, of silent outcomes"]])
        )
    steps = facts.epochs * facts.plan.steps_per_epoch
    expected.append(Expected("steps of such runs, which are lost as a whole", *(steps * n for n in expected[-1][1:])))
    return Card(fleet, rates, expected, steps, _sentences(facts, fleet, expected, detected, level))


def _shares(facts: Facts, confidence: float) -> tuple[Rate, Rate, Rate]:
    """What is not masked, silent, and with a loss that is not finite, of the decided; weighted by strata if any."""
    plan, groups = facts.plan, ((*LATENT, *DIVERGED), LATENT, DIVERGED)
    if plan.wanted is None:
        harm, silent, loud = (facts.tally.rate(names, confidence, decided=True) for names in groups)
        return harm, silent, loud
    answer = answer_of(facts.store, dataclasses.replace(plan, confidence=confidence), groups)
    rates = {one.outcome: one.rate for one in answer.rates() if not one.dimension}
    harm, silent, loud = (rates[outcome_name(names)] for names in groups)
    return harm, silent, loud


def _times(what: str, fleet: Fleet, rates: Sequence[Rate]) -> Expected:
    low, high = fleet.incidents()
    ends = ((rate.low, rate.share, rate.high) for rate in rates)
    return Expected(what, *(float(n) for n in np.prod([(low, (low + high) / 2, high), *ends], axis=0)))


def _sentences(
    facts: Facts, fleet: Fleet, expected: Sequence[Expected], detected: Detected | None, level: float
) -> list[str]:
    confidence, (low, high) = facts.plan.confidence, fleet.fit
    by_name = {one.what: one for one in expected}
    ruined = expected[-2]
    rate = f"{low:g} FIT" if low == high else f"{low:g} to {high:g} FIT"
    source = " (published: Llama 3, and AEGIS)" if fleet.fit == PUBLISHED_FIT else ""
    said = [
        f"On {fleet.devices:,} devices at {rate}{source}, {_range(by_name['faults'])} faults are expected a month; "
        f"{_range(by_name['not masked'])} of them are not masked, and {_range(ruined)} are {ruined.what}.",
        "The campaign's faults are its plan's mix of fault models, places and steps, each taken to be one incident; "
        "what defective devices do is another mix, so this card is no better than that premise.",
        f"Each range holds at {in_percent(confidence)}, with the rate of incidents taken as given"
        + (
            ""
            if detected is None
            else f": of two shares that are multiplied each has an interval at {in_percent(level)}"
        )
        + "; published rates count incidents that somebody noticed.",
        "A loss that is not finite is noticed by itself; silent outcomes end worse without one. A silent outcome that "
        f"nobody detects loses its run, all {facts.epochs * facts.plan.steps_per_epoch:,} steps of it.",
    ]
    done = facts.total
    if facts.plan.wanted is None and done < facts.plan.experiments:
        said.append(f"{done} of {facts.plan.experiments} experiments are done, epoch after epoch: shares may change.")
    if undecided := done - facts.decided:
        said.append(f"{undecided} of {done} experiments are undecided, and left out of the shares.")
    latencies = facts.latencies() if facts.plan.wanted is None else {}  # else no sample of the plan's faults
    if latencies:
        steps = np.repeat(list(latencies), list(latencies.values()))
        said.append(
            f"A loss that is not finite showed after {np.median(steps):g} steps (median; at most {steps.max()})."
        )
    if detected is None:
        said.append("Nothing is taken to detect silent outcomes; score=FOLDER and detector=NAME say what does.")
        return said
    found = [after for after in detected.after if after is not None]
    soon = f", after {np.median(found):g} steps (median; at most {max(found)})" if found else ""
    said.append(
        f"{detected.detector} detected {len(found)} of the {len(detected.after)} silent outcomes that it "
        f"watched{soon}; these steps have to be taken again, at least."
    )
    if detected.guesses:
        said.append(f"{detected.guesses} of the experiments watched have early verdicts that nobody followed.")
    return said


def _range(one: Expected) -> str:
    return f"{number(one.low)} to {number(one.high)}"


def write_fleet_card(folder: pathlib.Path, fleet: Fleet, detected: Detected | None = None) -> tuple[pathlib.Path, Card]:
    """Write `fleet.html` and `fleet.json` of the campaign in `folder`.

    Returns:
      the path of `fleet.html`, and the card.

    Raises:
      InputError: as `fleet_card`; or there is no campaign, it has not begun, or it cannot be read.
    """
    with Store(folder) as store:
        facts = Facts(store)
        card, title = fleet_card(facts, fleet, detected), facts.plan.workload.title
        queries = {"outcomes": QUERIES["outcomes"]} if facts.plan.wanted is None else {}  # others are weighted
    shares: list[dict[str, Cell]] = [{"share of faults": name, "share": rate} for name, rate in card.rates.items()]
    events: list[dict[str, Cell]] = [
        {"a month": one.what, "from": one.low, "middle": one.middle, "to": one.high} for one in card.expected
    ]
    tables = [
        Table("", "Expected events a month.", events),
        Table("outcomes" if queries else "", "Shares, with their intervals.", shares),
    ]
    section = Section("fleet", "Fleet", [], tables)
    box = [BoxAnswer("" if at else "Expected", sentence) for at, sentence in enumerate(card.sentences)]
    write_text(folder / "fleet.html", page(f"Fleet card: {title}", box, [section], queries))
    write_json(folder / "fleet.json", card.as_dict())
    return folder / "fleet.html", card
