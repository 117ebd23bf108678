"""The outcome rules give the published verdicts on the published logs, as far as each log goes.

A log is that of a faulty run alone.  Where no fault-free log is published, the mean accuracy of the
steps before the fault stands in for the fault-free run: it goes on learning, so the faulty run
is compared with less than it should be.
"""

import json
from typing import NamedTuple

import numpy as np
import pytest
from conftest import HERE

from fault_injection.runs.exits import NONFINITE, FirstNonFinite
from fault_injection.runs.outcome import (
    IMMEDIATE,
    MASKED,
    SHARP,
    SHORT_TERM,
    SLOW,
    UNDECIDED,
    Thresholds,
    Trace,
    classify,
)
from fault_injection.runs.steps import Address, numbered
from fault_injection.seam.measure import Evaluation, Measure
from fault_injection.seam.report import StepReport

LOGS = json.loads((HERE / "data" / "published_traces.json").read_text())
ACCURACY = Measure("accuracy", "higher", chance=0.1, tolerance=0.02, limits=(0.0, 1.0))
STEPS = 49  # of an epoch
BATCH = 1024


class Expected(NamedTuple):
    """What the rules are to make of a log: the published verdict, and whether the log goes to the training's end."""

    outcome: str
    first_nonfinite: int | None = None
    too_short: str = ""  # what the log lacks


EXPECTED = {
    "masked": Expected(MASKED),
    "slow_degrade": Expected(SLOW),
    "immediate_infs_nans": Expected(IMMEDIATE, 0),
    "densenet/immediate_infs_nans": Expected(IMMEDIATE, 0),
    "densenet/slow_degrade": Expected(SLOW),
    "effnet/immediate_infs_nans": Expected(IMMEDIATE, 1),
    "resnet18_nobn/short_term_infs_nans": Expected(SHORT_TERM, 2),
    "resnet18_nobn/slow_degrade": Expected(SLOW, too_short="steps at hand end in epoch 31 of 40"),
    "resnet18_sgd/immediate_infs_nans": Expected(IMMEDIATE, 1),
    "resnet18_sgd/sharp_degrade": Expected(SHARP, too_short="the log ends after epoch 27 of 40, steps at hand in 24"),
}


def test_every_published_log_is_examined():
    assert EXPECTED.keys() == LOGS.keys() - {"about", "fault_free"} and len(EXPECTED) == 10


def of_each_step(log):
    """Loss and accuracy of each step; where the log has means since the epoch's start, they are undone."""
    values = np.array([[np.nan if loss is None else loss, accuracy] for loss, accuracy in log["steps"]])
    if not log["running_means"]:
        return values.T
    nth = 1 + np.arange(len(values)) % STEPS
    sums = nth[:, None] * values
    before = np.where(nth[:, None] > 1, np.roll(sums, 1, axis=0), 0)
    return (sums - before).T


@pytest.mark.parametrize("name", EXPECTED)
def test_accuracies_of_steps_are_whole_images_to_the_digits_of_the_log(name):
    """So the file says rightly which logs have running means.  Their five digits, 49 times, are ± 0.5 images."""
    _, accuracy = of_each_step(LOGS[name])
    images = BATCH * accuracy
    assert abs(images - images.round()).max() < (0.5 if LOGS[name]["running_means"] else 0.02)
    if LOGS[name]["running_means"]:
        logged = BATCH * np.array(LOGS[name]["steps"])[:, 1]
        assert np.mean(abs(logged - logged.round()) < 0.02) < 0.2


def paired(log):
    """Golden and faulty run from the fault on, as far as the log goes."""
    _, accuracy = of_each_step(log)
    before, since = np.split(accuracy, [log["step"]])
    level = before.mean() if len(before) else accuracy[0]  # the faulty step's own accuracy is before its update
    golden = {epoch: accuracies for epoch, *accuracies in LOGS["fault_free"]["epochs"]}
    known = [(golden[epoch], accuracies) for epoch, *accuracies in log["epochs"] if epoch in golden]
    if known:
        theirs, ours = np.array(known).transpose(1, 2, 0)
    else:  # whole epochs after the fault, by their steps; test accuracies are not published
        whole = [accuracy[i : i + STEPS].mean() for i in range(0, len(accuracy) - STEPS + 1, STEPS)]
        ours = np.array([whole, np.full(len(whole), level)])
        theirs = np.full_like(ours, level)
    return Trace(np.full(len(since), level), *theirs), Trace(since, *ours)


def first_nonfinite(log):
    """What the observer that ends runs sees of a log: steps from the fault to a loss that is not finite."""
    fault = Address(log["epoch"], log["step"])
    nonfinite = FirstNonFinite(lambda at: numbered(at, STEPS) - numbered(fault, STEPS), Thresholds().nonfinite)
    losses, ended = of_each_step(log)[0], None
    for number, loss in enumerate(losses):
        at = Address(fault.epoch + number // STEPS, number % STEPS)
        report = StepReport(np.float32(loss), np.float32(0), np.zeros(0, np.uint32), np.zeros(0, np.float32))
        ended = nonfinite.after_step(at, None, report)
        stopped_here = log["stopped"] and [*at] == log["last"]
        if ended is None and at.step == STEPS - 1:
            # Training stopped although the last step's loss was finite: at the validation loss.
            loss = np.nan if stopped_here else 0.0
            ended = nonfinite.after_epoch(at.epoch, None, lambda loss=loss: Evaluation(loss, 0.0))
        assert (ended == NONFINITE) == stopped_here, at
    return nonfinite.first


@pytest.mark.parametrize("name", EXPECTED)
def test_a_run_ends_where_the_published_one_ended(name):
    assert first_nonfinite(LOGS[name]) == EXPECTED[name].first_nonfinite


def verdict(name, finished):
    golden, faulty = paired(LOGS[name])
    first = first_nonfinite(LOGS[name])
    return classify(golden, faulty, ACCURACY, finished=finished, first_nonfinite=first)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_published_verdict_as_far_as_the_log_goes(name):
    """As if the training ended with the log; `too_short` names the logs in which it does not."""
    found = verdict(name, finished=True)
    assert found.outcome == EXPECTED[name].outcome, found.rule


@pytest.mark.parametrize("name", EXPECTED)
def test_a_log_that_does_not_reach_the_end_of_the_training_is_too_short_to_tell(name):
    log, expected = LOGS[name], EXPECTED[name]
    last_at_hand = divmod(log["epoch"] * STEPS + len(log["steps"]) - 1, STEPS)
    if log["epochs"]:
        last_at_hand = (log["epochs"][-1][0], STEPS - 1)
    reached = log["stopped"] or last_at_hand == (log["planned"] - 1, STEPS - 1)
    assert reached == (not expected.too_short)
    found = verdict(name, finished=reached)
    assert found.outcome == (expected.outcome if reached else UNDECIDED), found.rule


def test_the_numbers_of_the_published_examples():
    """Those that docs/science.md states."""
    masked, slow = (verdict(name, finished=True) for name in ("masked", "slow_degrade"))
    assert 0 < masked.worse["train"] < 0.01 and masked.worse["test"] < 0
    assert 0.44 < slow.worse["train"] < 0.46 and 0.39 < slow.worse["test"] < 0.41
    assert verdict("densenet/slow_degrade", finished=True).worse["train"] == pytest.approx(0.0950, abs=1e-3)
    sharp = verdict("resnet18_sgd/sharp_degrade", finished=True).rule
    assert "0.99 of the lead over guessing was lost 1 step(s) after" in sharp or "1.00 of" in sharp, sharp
