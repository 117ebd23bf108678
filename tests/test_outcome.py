"""A verdict is the first rule that applies, on both sides of every threshold.

At an edge all numbers are binary fractions, so that no rounding decides.
"""

# Above 400 lines: the rules of one function, each on both sides of its threshold.

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault_injection.runs.outcome import (
    IMMEDIATE,
    LOW_TEST,
    MASKED,
    OUTCOMES,
    SHARP,
    SHARP_SLOW,
    SHORT_TERM,
    SLOW,
    UNDECIDED,
    Noise,
    Thresholds,
    Trace,
    classify,
    verdict_of,
)
from fault_injection.runs.records import Run, StepRow, epoch_record
from fault_injection.runs.steps import Address
from fault_injection.seam.measure import Evaluation, Measure

pytestmark = pytest.mark.law

# As the loss head of a network on ten classes says it.
ACCURACY = Measure("accuracy", "higher", chance=0.1, tolerance=0.02, limits=(0.0, 1.0))

# ---- The published traces -----------------------------------------------------------------

PUBLISHED = json.loads((pathlib.Path(__file__).parent / "data" / "published_traces.json").read_text())


def published(name):
    """Accuracies of the golden run and of the example, as far as both are published.

    The golden run's steps are not: its stand-in is the mean over the example's own steps
    before the fault.  Its epochs are published from 30 on.
    """
    example = PUBLISHED[name]
    golden = {epoch: accuracies for epoch, *accuracies in PUBLISHED["fault_free"]["epochs"]}
    both = [(golden[epoch], accuracies) for epoch, *accuracies in example["epochs"] if epoch in golden]
    epochs = np.array(both).reshape(-1, 2, 2)  # [epoch, run, train or test]
    accuracy = np.array([accuracy for _, accuracy in example["steps"]])
    before, since = np.split(accuracy, [example["step"]])
    stand_in = np.full(len(since), before.mean())
    return Trace(stand_in, *epochs[:, 0].T), Trace(since, *epochs[:, 1].T)


def test_the_published_masked_example_is_masked():
    golden, faulty = published("masked")
    found = classify(golden, faulty, ACCURACY, finished=True)
    assert found.outcome == MASKED and found.exactly_masked_after is None
    assert 0 < found.worse["train"] < 0.01 and found.worse["test"] < 0


def test_the_published_slow_degrade_is_a_slow_degrade():
    golden, faulty = published("slow_degrade")
    found = classify(golden, faulty, ACCURACY, finished=True)
    assert found.outcome == SLOW
    assert 0.44 < found.worse["train"] < 0.46 and 0.39 < found.worse["test"] < 0.41


def test_the_published_immediate_example_is_immediate():
    golden, faulty = published("immediate_infs_nans")
    losses = [loss for loss, _ in PUBLISHED["immediate_infs_nans"]["steps"]]
    first = losses.index(None) - PUBLISHED["immediate_infs_nans"]["step"]
    assert first == 0
    assert classify(golden, faulty, ACCURACY, finished=False, first_nonfinite=first).outcome == IMMEDIATE


# ---- Edges --------------------------------------------------------------------------------

BIT = 2**-20
TOLERANCE, STAY = 2**-6, 2**-4
EXACT = Thresholds(tolerance=TOLERANCE, sigmas=4.0, collapse_share=0.75, level_steps=4, stay=2 * STAY)  # of ½
CHANCE = 0.25
GOOD = 0.75  # the golden run's accuracy throughout, ½ above chance
COLLAPSED = 0.375  # ¾ of that ½ lost
EDGE = Measure("accuracy", "higher", CHANCE, tolerance=0.02)  # the tolerance is that of `EXACT`


def trace(train=GOOD, test=GOOD, steps=GOOD, end=None):
    """A run of 20 steps and five epochs; a list gives the first steps or the last epochs, `end` the last steps."""
    steps, train, test = np.atleast_1d(steps), np.atleast_1d(train), np.atleast_1d(test)
    end = np.full(4, steps[-1]) if end is None else np.full(4, end) if np.isscalar(end) else np.array(end)
    return Trace(
        np.concatenate([steps, np.full(20 - len(steps) - len(end), steps[-1]), end]),
        np.concatenate([np.full(5 - len(train), train[0]), train]),
        np.concatenate([np.full(5 - len(test), test[0]), test]),
    )


def verdict(faulty, thresholds=EXACT, **known):
    return classify(trace(), faulty, EDGE, thresholds=thresholds, **{"finished": True, **known})


def noise(train=0.0, test=0.0):
    return {"noise": Noise(3, train, test)}


LOW = {"train": 0.25, "test": 0.25}
# A run that collapsed at the step after the fault, and whose epochs end low.
DOWN = {**LOW, "steps": [GOOD, COLLAPSED]}

EDGES = {
    "equal": ({}, {}, MASKED),
    # Rules 7 and 6: both no worse than the tolerance, and one-sided.
    "train just inside the tolerance": ({"train": GOOD - TOLERANCE + BIT}, {}, MASKED),
    "train at the tolerance": ({"train": GOOD - TOLERANCE}, {}, MASKED),
    "train just outside the tolerance": ({"train": GOOD - TOLERANCE - BIT}, {}, SLOW),
    "test just inside the tolerance": ({"test": GOOD - TOLERANCE + BIT}, {}, MASKED),
    "test at the tolerance": ({"test": GOOD - TOLERANCE}, {}, MASKED),
    "test just outside the tolerance": ({"test": GOOD - TOLERANCE - BIT}, {}, LOW_TEST),
    "better": ({"train": 1.0, "test": 1.0}, {}, MASKED),
    "train better, test outside": ({"train": 1.0, "test": GOOD - TOLERANCE - BIT}, {}, LOW_TEST),
    "test better, train outside": ({"train": GOOD - TOLERANCE - BIT, "test": 1.0}, {}, SLOW),
    # The tolerance: the larger of the fixed one and four sigmas of the twins, each part its own.
    "train at four sigmas": ({"train": GOOD - 2**-5}, noise(train=2**-7), MASKED),
    "train outside four sigmas": ({"train": GOOD - 2**-5 - BIT}, noise(train=2**-7), SLOW),
    "test at four sigmas": ({"test": GOOD - 2**-5}, noise(test=2**-7), MASKED),
    "test outside four sigmas": ({"test": GOOD - 2**-5 - BIT}, noise(test=2**-7), LOW_TEST),
    "train outside, only the test accuracy noisy": ({"train": GOOD - TOLERANCE - BIT}, noise(test=0.25), SLOW),
    "test outside, only the train accuracy noisy": ({"test": GOOD - TOLERANCE - BIT}, noise(train=0.25), LOW_TEST),
    "at the tolerance, twins closer than it": ({"train": GOOD - TOLERANCE}, noise(train=2**-9), MASKED),
    "outside the tolerance, twins closer than it": ({"train": GOOD - TOLERANCE - BIT}, noise(train=2**-9), SLOW),
    # The end: means over the last three epochs.
    "bad up to the fourth epoch from the end": ({"train": [0.25, 0.25, GOOD, GOOD, GOOD]}, {}, MASKED),
    "the third from the end, at the tolerance": ({"train": [GOOD - 3 * TOLERANCE, GOOD, GOOD]}, {}, MASKED),
    "the third from the end, outside": ({"train": [GOOD - 3 * TOLERANCE - 3 * BIT, GOOD, GOOD]}, {}, SLOW),
    "the last, at the tolerance": ({"test": [GOOD, GOOD, GOOD - 3 * TOLERANCE]}, {}, MASKED),
    "the last, outside": ({"test": [GOOD, GOOD, GOOD - 3 * TOLERANCE - 3 * BIT]}, {}, LOW_TEST),
    # Rules 4 and 5: a collapse loses three quarters of what is above chance, in step 1 or 2 (here 1).
    "just short of a collapse": ({**LOW, "steps": [GOOD, COLLAPSED + BIT, GOOD, 0.25]}, {}, SLOW),
    "exactly a collapse": ({**LOW, "steps": [GOOD, COLLAPSED, GOOD, 0.25]}, {}, SHARP_SLOW),
    "more than a collapse": ({**LOW, "steps": [GOOD, COLLAPSED - BIT, GOOD, 0.25]}, {}, SHARP_SLOW),
    "collapsed at the faulty step only": ({**LOW, "steps": [0.25, GOOD]}, {}, SLOW),
    "collapsed at step 2": ({**LOW, "steps": [GOOD, GOOD, 0.25]}, {}, SHARP),
    "collapsed at step 3": ({**LOW, "steps": [GOOD, GOOD, GOOD, 0.25]}, {}, SLOW),
    "a collapse that ends inside the tolerance": ({"steps": [GOOD, 0.25]}, {}, MASKED),
    "a collapse that only the test accuracy shows at the end": ({"test": 0.25, "steps": [GOOD, 0.25]}, {}, LOW_TEST),
    # Rule 4: whether the last four steps are at the level of the four from the collapse on.
    "ends just inside above": ({**DOWN, "end": COLLAPSED + STAY - BIT}, {}, SHARP),
    "ends at the edge above": ({**DOWN, "end": COLLAPSED + STAY}, {}, SHARP),
    "recovered": ({**DOWN, "end": COLLAPSED + STAY + BIT}, {}, SHARP_SLOW),
    "ends just inside below": ({**DOWN, "end": COLLAPSED - STAY + BIT}, {}, SHARP),
    "ends at the edge below": ({**DOWN, "end": COLLAPSED - STAY}, {}, SHARP),
    "declined further": ({**DOWN, "end": COLLAPSED - STAY - BIT}, {}, SHARP_SLOW),
    "the level begins with the collapse, at the edge": (
        {**LOW, "steps": [GOOD, COLLAPSED - 4 * STAY, COLLAPSED]},
        {},
        SHARP,
    ),
    "the level begins with the collapse, outside": (
        {**LOW, "steps": [GOOD, COLLAPSED - 4 * STAY - 4 * BIT, COLLAPSED]},
        {},
        SHARP_SLOW,
    ),
    "the level ends four steps later": (
        {**LOW, "steps": [GOOD, *[COLLAPSED] * 4, 0.0], "end": COLLAPSED},
        {},
        SHARP,
    ),
    "the end is a mean, at the edge": ({**DOWN, "end": [*[COLLAPSED] * 3, COLLAPSED + 4 * STAY]}, {}, SHARP),
    "the end is a mean, outside": ({**DOWN, "end": [*[COLLAPSED] * 3, COLLAPSED + 4 * STAY + 4 * BIT]}, {}, SHARP_SLOW),
    "the end begins four steps before the last": ({**DOWN, "end": [1.0, *[COLLAPSED] * 4]}, {}, SHARP),
    "stayed, whatever the means of whole epochs": ({**DOWN, "train": 0.625}, {}, SHARP),
    # Rules 1 and 2: within one step.
    "non-finite at the faulty step": ({}, {"first_nonfinite": 0}, IMMEDIATE),
    "non-finite at the next": ({}, {"first_nonfinite": 1}, IMMEDIATE),
    "non-finite at the one after": ({}, {"first_nonfinite": 2}, SHORT_TERM),
    "non-finite much later": ({}, {"first_nonfinite": 2000}, SHORT_TERM),
    # The order of the rules.
    "non-finite, though cut": ({}, {"first_nonfinite": 1, "finished": False}, IMMEDIATE),
    "non-finite later, though cut and collapsed": (
        {**LOW, "steps": [GOOD, 0.25]},
        {"first_nonfinite": 7, "finished": False},
        SHORT_TERM,
    ),
    "exactly masked, though cut": ({}, {"exactly_masked_after": 0, "finished": False}, MASKED),
    "cut, though equal so far": ({}, {"finished": False}, UNDECIDED),
    "cut, though collapsed": ({**LOW, "steps": [GOOD, 0.25]}, {"finished": False}, UNDECIDED),
}


@pytest.mark.parametrize("edge", EDGES)
def test_the_verdict_at_an_edge(edge):
    faulty, known, outcome = EDGES[edge]
    found = verdict(trace(**faulty), **known)
    assert found.outcome == outcome, found.rule


def mirrored(run):
    """The same run by the share of errors, of which less is better: 1 − x is exact for the binary fractions here."""
    return Trace(*(1 - part for part in run))


@pytest.mark.parametrize("edge", EDGES)
def test_the_verdict_is_the_same_where_lower_is_better(edge):
    """Both sides of every threshold, with the errors' share in the place of the accuracy."""
    faulty, known, outcome = EDGES[edge]
    errors = Measure("errors", "lower", 1 - CHANCE, tolerance=0.02)
    known = {"finished": True, **known}
    found = classify(mirrored(trace()), mirrored(trace(**faulty)), errors, thresholds=EXACT, **known)
    expected = verdict(trace(**faulty), **known)
    assert found.outcome == expected.outcome == outcome, found.rule
    assert found.worse == expected.worse
    for word in ("recovered", "declined further"):
        assert (word in found.rule) == (word in expected.rule)


def test_the_tolerance_is_the_measures_unless_a_threshold_is_given():
    stated = Measure("accuracy", "higher", CHANCE, tolerance=TOLERANCE)
    for worse, outcome in ((TOLERANCE, MASKED), (TOLERANCE + BIT, SLOW)):
        found = classify(trace(), trace(train=GOOD - worse), stated, finished=True)
        assert found.outcome == outcome
        assert found.tolerance["train"] == found.thresholds.tolerance == TOLERANCE
    found = classify(trace(), trace(train=0.25), stated, finished=True, thresholds=Thresholds(tolerance=0.5))
    assert found.outcome == MASKED and found.thresholds.tolerance == 0.5


def test_every_outcome_can_be_reached():
    assert {outcome for _, _, outcome in EDGES.values()} == set(OUTCOMES)


def test_a_golden_run_no_better_than_chance_cannot_collapse():
    golden = trace(steps=CHANCE)
    found = classify(golden, trace(**LOW, steps=0.0), EDGE, finished=True, thresholds=EXACT)
    assert found.outcome == SLOW


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_a_run_that_ends_soon_after_its_collapse_has_stayed_there(steps):
    """The level at the end is taken from steps since the collapse, however few."""
    short = Trace(np.array([GOOD, *[0.25] * (steps - 1)]), np.array([0.25]), np.array([0.25]))
    found = classify(short_golden(steps), short, EDGE, finished=True, thresholds=EXACT)
    assert found.outcome == SHARP
    assert f"from 0.250 (mean of {min(4, steps - 1)} step(s)" in found.rule


def short_golden(steps):
    return Trace(np.full(steps, GOOD), np.array([GOOD]), np.array([GOOD]))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_exactly_the_tolerance_is_no_worse_whatever_the_rounding(kind):
    """Decimal fractions are no binary ones: 0.9 − 0.88 is more than 0.02, in either precision."""
    for thousandths in range(20, 1001):
        good, bad = (float(kind(n / 1000)) for n in (thousandths, thousandths - 20))
        golden, faulty = trace(good, good), trace(bad, bad)
        found = classify(golden, faulty, ACCURACY, finished=True)
        assert found.outcome == MASKED, thousandths
        # One image in a million is worse all the same.
        assert classify(golden, trace(bad - 1e-6, bad), ACCURACY, finished=True).outcome == SLOW, thousandths


# ---- Thresholds ---------------------------------------------------------------------------

HONOURED = {
    # field: (its value, the faulty run, what is known, verdict before and after)
    "immediate_steps": (2, {}, {"first_nonfinite": 2}, SHORT_TERM, IMMEDIATE),
    "final_epochs": (1, {"train": [0.25, GOOD]}, {}, SLOW, MASKED),
    "tolerance": (0.5, {"train": 0.25}, {}, SLOW, MASKED),
    "sigmas": (8.0, {"test": GOOD - 2**-4}, noise(test=2**-7), LOW_TEST, MASKED),
    "collapse_steps": (3, {**LOW, "steps": [GOOD, GOOD, GOOD, 0.25]}, {}, SLOW, SHARP),
    "collapse_share": (0.5, {"train": 0.5, "steps": [GOOD, 0.5]}, {}, SLOW, SHARP),
    "collapse_lead": (3.0, {**LOW, "steps": [GOOD, 0.25]}, {}, SHARP, SLOW),
    "level_steps": (
        5,
        {**LOW, "steps": [GOOD, *[COLLAPSED] * 4, 1.0], "end": [COLLAPSED] * 5},
        {},
        SHARP,
        SHARP_SLOW,
    ),
    "stay": (0.25, {**DOWN, "end": 0.5}, {}, SHARP_SLOW, SHARP),
}


def test_all_thresholds_are_examined():
    """But for what a run is ended by, which decides before a verdict does (tests/test_nonfinite.py)."""
    assert HONOURED.keys() == {field.name for field in dataclasses.fields(Thresholds)} - {"nonfinite"}


@pytest.mark.parametrize("field", HONOURED)
def test_each_threshold_decides(field):
    value, faulty, known, before, after = HONOURED[field]
    thresholds = dataclasses.replace(EXACT, **{field: value})
    assert verdict(trace(**faulty), **known).outcome == before
    found = verdict(trace(**faulty), thresholds, **known)
    assert found.outcome == after, found.rule
    assert found.thresholds == thresholds


# ---- What a verdict says ------------------------------------------------------------------

SAID = {
    "masked": ({"train": 0.74}, {}, ["train 0.7400 against 0.7500 (+0.0100 worse, tolerance 0.0156)", "test 0.7500"]),
    "low test": ({"test": 0.5}, {}, ["test 0.5000 against 0.7500 (+0.2500 worse, tolerance 0.0156)"]),
    "slow": ({"train": 0.5, "steps": 0.65625}, {}, ["train 0.5000 against 0.7500", "0.19 of", "a collapse is 0.75"]),
    "sharp": (
        {**LOW, "steps": [GOOD, 0.25]},
        {},
        [
            "1.00 of",
            "1 step(s)",
            "from 0.250 (mean of 4",
            "to 0.250 (of the last 4)",
            "by 0.00 of the lead over guessing, staying is 0.125",
            "train 0.2500",
        ],
    ),
    "recovered": (
        {"train": 0.5, "steps": [GOOD, GOOD, 0.25], "end": 0.5},
        {},
        ["2 step(s)", "recovered from 0.250", "to 0.500"],
    ),
    "declined": ({**DOWN, "end": 0.125}, {}, ["0.75 of", "declined further from 0.375", "to 0.125"]),
    "immediate": ({}, {"first_nonfinite": 0}, ["at the faulty step", "at most 1 "]),
    "short-term": ({}, {"first_nonfinite": 9}, ["9 step(s) after", "at most 1 "]),
    "exactly": ({}, {"exactly_masked_after": 5}, ["exactly masked", "5 step(s)", "bit-identical"]),
    "cut": ({"train": 0.5}, {"finished": False}, ["cut 19 step(s)", "train 0.5000 against 0.7500 (+0.2500 worse"]),
    "twins": ({}, noise(train=0.125), ["tolerance 0.5000", "tolerance 0.0156"]),
}


@pytest.mark.parametrize("case", SAID)
def test_the_rule_says_the_numbers_that_fired(case):
    faulty, known, fragments = SAID[case]
    rule = verdict(trace(**faulty), **known).rule
    assert [fragment for fragment in fragments if fragment not in rule] == [], rule


def test_a_run_cut_before_its_first_epoch_ended_says_so():
    one = Trace(np.full(3, GOOD), np.array([]), np.array([]))
    found = classify(one, one, ACCURACY, finished=False)
    assert found.outcome == UNDECIDED and found.final is None and found.worse is None
    assert "cut 2 step(s)" in found.rule and "no epoch" in found.rule


def test_a_verdict_carries_what_it_was_made_from():
    found = verdict(trace(train=0.5, test=0.625), exactly_masked_after=None, **noise(train=2**-3))
    assert found.final == {"golden": {"train": GOOD, "test": GOOD}, "faulty": {"train": 0.5, "test": 0.625}}
    assert found.worse == {"train": 0.25, "test": 0.125}
    assert found.tolerance == {"train": 0.5, "test": TOLERANCE, "twins": 3}


# ---- Laws ---------------------------------------------------------------------------------

ACCURACIES = st.lists(st.integers(0, 64).map(lambda n: n / 64), min_size=5, max_size=5)


@given(ACCURACIES, ACCURACIES, ACCURACIES)
def test_a_run_that_was_cut_is_never_masked_nor_degraded(train, test, steps):
    assert verdict(trace(train, test, steps), finished=False).outcome == UNDECIDED


@given(ACCURACIES, ACCURACIES, ACCURACIES)
def test_a_finished_run_is_masked_exactly_where_neither_end_is_worse_than_the_tolerance(train, test, steps):
    found = verdict(trace(train, test, steps))
    train_worse, test_worse = (3 * GOOD - sum(part[-3:]) > 3 * TOLERANCE for part in (train, test))
    assert (found.outcome == MASKED) == (not train_worse and not test_worse)
    assert (found.outcome == LOW_TEST) == (not train_worse and test_worse)
    assert (found.outcome in (SLOW, SHARP, SHARP_SLOW)) == train_worse


# ---- What is judged of recorded runs ------------------------------------------------------

STEPS = 10  # of an epoch


def recorded(first, metrics, evaluations):
    """A run whose epochs have these metrics of their steps; only those with an evaluation have ended."""
    epochs = []
    for i, steps in enumerate(metrics):
        rows = [StepRow(np.int32(n), np.float32(0), np.float32(m), *np.zeros((2, 1))) for n, m in enumerate(steps)]
        epochs.append(epoch_record(rows, *[Evaluation(0.0, m) for m in evaluations[i : i + 1]]))
    return Run(first, tuple(epochs), len(evaluations))


@given(
    st.lists(st.lists(st.integers(0, 64), min_size=STEPS, max_size=STEPS), min_size=3, max_size=3),
    st.lists(st.integers(0, 64), min_size=3, max_size=3),
    st.integers(0, STEPS - 1),
    st.integers(0, 3 * STEPS - 1),
    st.sampled_from(["higher", "lower"]),
)
def test_judge_gives_the_verdict_of_classify_on_the_steps_from_the_fault_on(steps, tests, step, more, better):
    """Whatever was recorded, however early the run ended."""
    measure = Measure("m", better, 0.25 if better == "higher" else 0.75, tolerance=TOLERANCE)
    fault, length = Address(4, step), min(step + 1 + more, 3 * STEPS)
    whole, begun = divmod(length, STEPS)
    metrics = [np.array(epoch) / 64 for epoch in steps]
    cut = [*metrics[:whole], *([metrics[whole][:begun]] if begun else [])]
    faulty = recorded(4, cut, [test / 64 for test in tests[:whole]])
    golden = recorded(0, np.full((7, STEPS), GOOD), np.full(7, GOOD))
    asked = []

    def spread(window):
        asked.append(window)
        return Noise(2, 2**-5, 2**-6)

    finished = length == 3 * STEPS
    found = verdict_of(faulty, golden.epochs.__getitem__, fault, measure, finished=finished, noise=spread)
    flat = np.concatenate(metrics)[step:length]
    ended = [
        np.array([metrics[i].mean(dtype=np.float64) for i in range(whole)]),
        np.array([test / 64 for test in tests[:whole]]),
    ]
    same = [np.full(len(part), GOOD) for part in (flat, *ended)]
    expected = classify(Trace(*same), Trace(flat, *ended), measure, finished=finished, noise=Noise(2, 2**-5, 2**-6))
    assert (found.outcome, found.rule, found.worse) == (expected.outcome, expected.rule, expected.worse)
    assert asked == [min(3, whole or 3)]  # over as many epochs as the verdict is a mean of


def test_judge_passes_on_what_ended_the_run():
    golden = recorded(0, np.full((2, STEPS), GOOD), np.full(2, GOOD))
    for known, outcome in (
        ({"first_nonfinite": 0}, IMMEDIATE),
        ({"first_nonfinite": 5}, SHORT_TERM),
        ({"exactly_masked_after": 0}, MASKED),
        ({}, UNDECIDED),
    ):
        found = verdict_of(golden, golden.epochs.__getitem__, Address(0, 3), EDGE, finished=False, **known)
        assert found.outcome == outcome
