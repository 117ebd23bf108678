"""What protecting a small part gains: the worst part is found, and the intervals contain what it is worth."""

import collections

import numpy as np
import pytest
from scipy.stats import binom

from fault_injection.questions.outcomes.report.protection import Half, protections, removed
from fault_injection.questions.outcomes.tally import GuessKind, Tally, Verdicts
from fault_injection.runs.outcome import MASKED, SLOW

OPERATIONS, ROLES = 10, ("sign", "exponent 1", "exponent 2", "mantissa 1")
HARM = np.full((OPERATIONS, len(ROLES)), 0.01)
HARM[3, 1] = HARM[7, 1] = 0.9  # the two cells with nearly all of the harm
HARM[:, 1] += 0.05
GUESSED = GuessKind(False, True)


def drawn(rng: np.random.Generator, experiments: int, audit: float) -> Half:
    """Experiments of the population above; masked ones have an early verdict, as does a tenth of the harmful ones."""
    parts: dict[tuple[str, ...], Tally] = {}
    at = rng.integers([OPERATIONS, len(ROLES)], size=(experiments, 2))
    bad = rng.random(experiments) < HARM[at[:, 0], at[:, 1]]
    early = (audit < 1) & ~(bad & (rng.random(experiments) < 0.9))
    followed = rng.random(experiments) < audit
    for (operation, role), harmful, guessed, seen in zip(at.tolist(), bad, early, followed, strict=True):
        outcome = collections.Counter({SLOW if harmful else MASKED: 1})
        if not guessed:
            one = Tally(outcome)
        elif seen:
            one = Tally(early={GUESSED: Verdicts(ends=outcome)})
        else:
            one = Tally(early={GUESSED: Verdicts(guessed=collections.Counter({MASKED: 1}))})
        cell = (f"op{operation}", ROLES[role], "tenth 1")
        parts[cell] = parts.get(cell, Tally()) + one
    return Half(parts)


def worth(places, checks) -> float:
    """The share of all harm of the population that is inside of the checks."""
    inside = 0.0
    for operation in range(OPERATIONS):
        for number, role in enumerate(ROLES):
            names = (f"op{operation}", role, "tenth 1")
            inside += HARM[operation, number] if tuple(names[place] for place in places) in checks else 0.0
    return inside / HARM.sum()


PLACES = {"operation": (0,), "bit": (1,), "bit of an operation": (0, 1)}


def test_the_part_with_the_harm_is_chosen():
    rng = np.random.default_rng(1)
    found = {(one.by, one.asked): one for one in protections(drawn(rng, 4000, 1), drawn(rng, 4000, 1), 0.95)}
    two = found["bit of an operation", "10% of the faults"]
    assert set(two.checks[:2]) == {("op3", "exponent 1"), ("op7", "exponent 1")}
    assert two.of_faults.share == pytest.approx(0.1, abs=0.02) and two.removed.low > 0.6
    assert found["bit", "90% of the harm"].checks[0] == ("exponent 1",)
    assert {by for by, _ in found} == set(PLACES)  # all of it is of one tenth of the training


@pytest.mark.parametrize(("audit", "campaigns"), [(1, 40), (0.3, 10)])
def test_the_interval_contains_what_protecting_is_worth(audit, campaigns):
    rng, inside, intervals = np.random.default_rng(2), 0, 0
    for _ in range(campaigns):
        for one in protections(drawn(rng, 1200, audit), drawn(rng, 1200, audit), 0.95):
            true = worth(PLACES[one.by], set(one.checks))
            inside += one.removed.low <= true <= one.removed.high
            intervals += 1
    assert intervals > 3 * campaigns and binom.cdf(inside, intervals, 0.95) > 0.01, f"{inside} of {intervals}"


def test_what_nobody_followed_is_in_the_interval():
    bad = Tally(collections.Counter({SLOW: 30}))
    guessed = Tally(early={GUESSED: Verdicts(guessed=collections.Counter({MASKED: 100}))})
    audited = Tally(early={GUESSED: Verdicts(ends=collections.Counter({MASKED: 100}))})
    none, all_of_them = removed(bad, guessed, 0.95), removed(bad, audited, 0.95)
    assert none.low < 0.3 < 0.85 < all_of_them.low and all_of_them.share == none.share == 1


def test_too_little_harm_says_nothing():
    rng = np.random.default_rng(3)
    assert protections(drawn(rng, 60, 1), drawn(rng, 4000, 1), 0.95) == []
