"""The table of a scoreboard, what it says to switch on, and where alarms point to."""

import itertools
import math
import re

import numpy as np
import pytest

from fault_injection.detection.localization import Target
from fault_injection.questions.scoreboard.board import Board, ScoredExperiment
from fault_injection.questions.scoreboard.comparison import (
    CHEAP,
    cheapest_pairs,
    latex,
    markdown,
    said,
    standings,
    table,
)
from fault_injection.runs.outcome import IMMEDIATE, MASKED, SLOW, UNDECIDED

SITE = Target("conv2_grad_in", "conv2", 3)


def experiment(number, outcome, stops, model="RD", recovered=None):
    """An experiment.  `stops` says after how many steps each detector stops it; alarms of `b` name the struck layer."""
    names = {"a": "loss", "b": "opt_state/m/conv2/kernel"}
    seen = {
        name: {"stop": stop, "warn": None, "tensor": names.get(name, "loss"), "peaks": [2.0]}
        for name, stop in stops.items()
    }
    return ScoredExperiment(number, model, outcome, True, {"seen": seen, "recovered": recovered or {}}, SITE)


def board(experiments, false, costs, steps=1000):
    names = tuple(false)
    free = {
        "golden 0": {n: {"steps": steps, "stop": false[n], "warn": 0, "beyond": [0] * 97, "first": []} for n in names}
    }
    cost = {n: {"ratios": [1 + c] * 30, "bytes": 110, "plain_bytes": 100, "memory": 0} for n, c in costs.items()}
    return Board("x", "y", names, experiments, 0, free, cost, 5, 0.95)


def test_a_standing_counts_what_its_columns_say():
    def acted(outcome, actions=1):
        return {"rewind": {"b": {"outcome": outcome, "actions": actions, "undone": 2, "golden_after": 1}}}

    ones = [
        experiment(0, SLOW, {"a": 0, "b": 2}, "RD", acted(UNDECIDED)),
        experiment(1, SLOW, {"a": None, "b": 4}, "WT", acted(MASKED)),
        experiment(2, IMMEDIATE, {"a": 0, "b": 0}, "WT", acted(IMMEDIATE, actions=0)),
        experiment(3, MASKED, {"a": 1, "b": None}, "WT"),
    ]
    scored = board(ones, {"a": 0, "b": 3}, {"a": 0.25})
    a, b = standings(scored)
    assert (a.latent[:2], a.nonfinite[:2], a.harmless[:2]) == ((1, 2), (1, 1), (1, 1))
    assert {model: rate[:2] for model, rate in a.models.items()} == {"RD": (1, 1), "WT": (1, 2)}
    assert a.steps == (0, 0) and b.steps == (2, 4)
    assert a.bound == pytest.approx(1e6 * (1 - 0.05 ** (1 / 1000))) and b.bound > 3000  # the rule of three, exactly
    assert (a.layer[:2], b.layer[:2], b.site[:2], b.worker[:2]) == ((0, 2), (3, 3), (0, 3), (0, 3))
    assert a.recovered == {} and b.recovered["rewind"][:2] == (1, 1)
    assert scored.not_recovered("rewind", "b") == 2  # its end is open; it ended before the recovery could act
    assert a.cost == pytest.approx(0.25) and a.memory == pytest.approx(0.1) and b.cost is None and b.memory is None


def best_by_hand(experiments, false, costs, most):
    """How much the best one or two detectors detect that are quiet and cost at most so much, and the lowest cost."""
    quiet, found = [name for name, alarms in false.items() if not alarms], []
    for group in [*itertools.combinations(quiet, 1), *itertools.combinations(quiet, 2)]:
        price = sum(max(0, costs[name]) if name in costs else math.inf for name in group)
        seen = sum(any(one.stop(name) is not None for name in group) for one in experiments if one.outcome == SLOW)
        if price <= most:
            found.append((-seen, price))
    return min(found, default=None)


@pytest.mark.parametrize("seed", range(25))
def test_the_advice_is_the_best_of_all_pairs(seed):
    rng = np.random.default_rng(seed)
    names = [f"d{i}" for i in range(6)]
    stops = lambda: {name: 0 if rng.random() < 0.4 else None for name in names}  # noqa: E731
    ones = [experiment(i, SLOW if rng.random() < 0.7 else IMMEDIATE, stops()) for i in range(12)]
    ones.append(experiment(12, SLOW, stops()))
    false = {name: int(rng.random() < 0.2) for name in names}
    costs = {name: float(rng.choice([-0.01, 0.0, 0.01, 0.03, 0.06, 0.5])) for name in names if rng.random() < 0.8}
    given = cheapest_pairs(board(ones, false, costs))
    cheap, any_cost = (best_by_hand(ones, false, costs, most) for most in (CHEAP, math.inf))
    expected = [one for one in (cheap, any_cost) if one is not None]
    if len(expected) == 2 and expected[0][0] == expected[1][0]:
        expected = expected[:1]
    if len(expected) == 2 and expected[0][0] == 0:
        expected = expected[1:]
    assert [-one.covered.found for one in given] == [seen for seen, _ in expected]
    for one, (_, price) in zip(given, expected, strict=True):
        assert (math.inf if one.cost is None else one.cost) == pytest.approx(price)
        assert one.sentence().startswith(f"Switch on {one.detectors[0]}")


def test_without_fault_free_steps_or_harm_nothing_is_advised():
    harmless = [experiment(0, MASKED, {"a": 0})]
    assert (
        cheapest_pairs(board(harmless, {"a": 0}, {}))
        == []
        == cheapest_pairs(board([experiment(0, SLOW, {"a": 0})], {"a": 1}, {}))
    )
    assert cheapest_pairs(board([experiment(0, SLOW, {"a": 0})], {"a": 0}, {}, steps=0)) == []
    (one,) = cheapest_pairs(board([experiment(0, IMMEDIATE, {"a": 0})], {"a": 0}, {}))
    assert one.outcomes == "harmful outcomes" and one.cost is None and "its cost was not measured" in one.sentence()


def test_what_detects_nothing_is_not_advised_beside_what_detects_some():
    ones = [experiment(0, SLOW, {"a": None, "b": 0})]
    (one,) = cheapest_pairs(board(ones, {"a": 0, "b": 0}, {"a": 0.0, "b": 0.9}))
    assert one.detectors == ("b",)
    (one,) = cheapest_pairs(board([experiment(0, SLOW, {"a": None})], {"a": 0}, {"a": 0.0}))
    assert one.covered.found == 0  # nothing else does


def test_the_table_says_the_same_in_every_form():
    given = board([experiment(0, SLOW, {"a": 0, "b_c": None}), experiment(1, MASKED, {"a": None, "b_c": 0})],
                  {"a": 0, "b_c": 2}, {"a": 0.01})  # fmt: skip
    rows = table(given)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown(rows).splitlines()]
    assert cells[0] == list(rows[0]) and set(cells[1]) == {"---"}
    assert cells[2:] == [list(row.values()) for row in rows]
    lines = [line.removesuffix(r" \\").split(" & ") for line in latex(rows).splitlines() if line.endswith(r"\\")]
    assert [len(line) for line in lines] == [len(rows[0])] * 3 and lines[2][0] == r"b\_c"
    assert re.search(r"(?<!\\)[_%#]", latex(rows)) is None
    known = said(given)["detectors"]["a"]
    assert known["false_alarms_per_million_at_most"] > 0 and known["localized"]["layer"]["total"] == 1
