"""What ends a run that is not finite, and what is said of it, by either rule; what a run can lose in a collapse."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from fault_injection.commands.main import main
from fault_injection.faults.injection import Injection
from fault_injection.faults.injection_file import format_injection, parse_injection, write_injection
from fault_injection.faults.scaling import scale
from fault_injection.machine.errors import InputError
from fault_injection.models.observe.reductions import OF_TENSORS, reduced, together
from fault_injection.runs.exits import NONFINITE, FirstNonFinite
from fault_injection.runs.outcome import (
    IMMEDIATE,
    MASKED,
    SHARP,
    SHORT_TERM,
    SLOW,
    UNDECIDED,
    NonFiniteLeaf,
    Thresholds,
    Trace,
    classify,
    first_nonfinite_leaf,
    verdict_of,
)
from fault_injection.runs.records import Run, StepRow, epoch_record
from fault_injection.runs.steps import Address
from fault_injection.seam.leaves import Leaf
from fault_injection.seam.measure import NONFINITE_RULES, Evaluation, Measure
from fault_injection.seam.report import StepReport
from fault_injection.workloads.registry import make_workload

ACCURACY = Measure("accuracy", "higher", chance=0.125, tolerance=0.02, limits=(0.0, 1.0))

# ---- What a step tells --------------------------------------------------------------------


@pytest.mark.parametrize("reduction", sorted({*OF_TENSORS} - {"histogram"}))
@pytest.mark.parametrize("size", [4_095, 4_096, 65_536])
def test_no_reduction_loses_a_nan_however_large_the_tensor_is(reduction, size):
    """XLA's maximum on CPUs loses a NaN among 4,096 numbers or more."""
    tensor = np.linspace(-1, 1, size, dtype=np.float32)
    tensor[size // 3] = np.nan
    told = together(reduced(frozenset({f"{reduction}/gradients"}), "gradients", "fc", jnp.asarray(tensor)))
    assert np.isnan(told[f"{reduction}/gradients/fc"]).all()


# ---- The observer -------------------------------------------------------------------------


def report(loss=1.0, *magnitude):
    return StepReport(np.float32(loss), np.float32(0), np.zeros(0, np.uint32), np.float32([2.0, *magnitude]))


VALUES = [np.nan, np.inf, -np.inf]


@pytest.mark.law
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("rule", NONFINITE_RULES)
def test_a_loss_that_is_not_finite_ends_a_run_by_either_rule(rule, value):
    nonfinite = FirstNonFinite(lambda at: at.step - 3, rule)
    assert nonfinite.after_step(Address(0, 3), None, report()) is None
    assert nonfinite.after_step(Address(0, 4), None, report(value)) == NONFINITE
    assert nonfinite.first == 1


@pytest.mark.law
@pytest.mark.parametrize("value", VALUES)
def test_an_array_that_is_not_finite_ends_a_run_only_by_the_rule_of_the_state(value):
    for rule, ended in (("loss", None), ("state", NONFINITE)):
        nonfinite = FirstNonFinite(lambda at: at.step, rule)
        assert nonfinite.after_step(Address(0, 2), None, report(1.0, value)) == ended
        assert nonfinite.first == (None if ended is None else 2)


@pytest.mark.law
@pytest.mark.parametrize("rule", NONFINITE_RULES)
def test_a_validation_loss_counts_as_seen_one_step_after_the_epochs_last(rule):
    nonfinite = FirstNonFinite(lambda at: at.step - 5, rule)
    nonfinite.after_step(Address(0, 9), None, report())
    assert nonfinite.after_epoch(0, None, lambda: Evaluation(np.nan, 0.5)) == NONFINITE
    assert nonfinite.first == 5


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match=r"^nonfinite 'los'; expected one of loss, state$"):
        Thresholds(nonfinite="los")


# ---- The first array ----------------------------------------------------------------------

WATCHED = [Leaf("gradient/w"), Leaf("params/w"), Leaf("opt_state/v/w")]


@pytest.mark.law
def test_the_first_array_is_that_of_the_first_step_and_a_gradient_before_the_state():
    magnitude = np.ones((4, 3))
    assert first_nonfinite_leaf(magnitude, WATCHED) is None
    magnitude[3] = np.nan
    assert first_nonfinite_leaf(magnitude, WATCHED) == NonFiniteLeaf("gradient/w", 3)
    magnitude[1, 2] = np.inf
    assert first_nonfinite_leaf(magnitude, WATCHED) == NonFiniteLeaf("opt_state/v/w", 1)


def test_the_first_array_is_found_in_the_record_of_epochs_before_an_interruption_too():
    """Steps of an epoch that is only kept on disk count like those that were just run."""

    def epoch(*magnitudes):
        rows = [StepRow(*map(np.float32, (i, 1.0, 0.5, 0.0, [1.0, m]))) for i, m in enumerate(magnitudes)]
        return epoch_record(rows, Evaluation(1.0, 0.5))

    golden, faulty = epoch(1, 1, 1), Run(4, (epoch(1, 1, np.inf), epoch(np.nan, 1, 1)), 2)
    found = verdict_of(faulty, lambda number: golden, Address(4, 1), ACCURACY, watched=WATCHED, finished=False)
    assert found.first_nonfinite_state == {"leaf": "params/w", "steps": 1} and found.first_nonfinite is None


def runs(golden=0.75, faulty=0.75, steps=20):
    """Golden and faulty run: their accuracies are the same in all steps, and at the end."""
    return tuple(Trace(np.full(steps, level), np.full(3, level), np.full(3, level)) for level in (golden, faulty))


@pytest.mark.parametrize(
    ("known", "outcome"),
    [
        ({"finished": True, "first_nonfinite": 2}, SHORT_TERM),
        ({"finished": True}, MASKED),  # such as a gradient that the user's optimizer clips
        ({"finished": False}, UNDECIDED),
    ],
)
def test_the_first_array_is_stated_whatever_the_verdict_and_decides_none(known, outcome):
    found = classify(*runs(), ACCURACY, first_nonfinite_state=NonFiniteLeaf("opt_state/v/w", 0), **known)
    assert found.outcome == outcome
    assert found.first_nonfinite_state == {"leaf": "opt_state/v/w", "steps": 0}
    assert found.rule.endswith(
        "; of gradients and state, opt_state/v/w was the first that was not finite, at the faulty step"
    )
    without = classify(*runs(), ACCURACY, **known)
    assert without.outcome == outcome and without.first_nonfinite_state is None and "of gradients" not in without.rule


@pytest.mark.parametrize(("rule", "what"), [("loss", "non-finite loss"), ("state", "non-finite value")])
def test_the_sentence_says_what_was_looked_at(rule, what):
    found = classify(*runs(), ACCURACY, finished=True, first_nonfinite=1, thresholds=Thresholds(nonfinite=rule))
    assert found.outcome == IMMEDIATE and f"first {what} 1 step(s) after" in found.rule
    assert found.thresholds.nonfinite == rule


# ---- Something to lose --------------------------------------------------------------------

LOSS = Measure("loss", "lower", chance=2.0, tolerance=0.02)
BIT = 2**-20
LEAST = Thresholds(collapse_lead=0.125, tolerance=0.015625)


@pytest.mark.law
@pytest.mark.parametrize(
    ("measure", "golden", "faulty", "outcome"),
    [
        (ACCURACY, 0.25, 0.0, SHARP),  # leads by an eighth, exactly
        (ACCURACY, 0.25 + BIT, 0.0, SHARP),
        (ACCURACY, 0.25 - BIT, 0.0, SLOW),
        (ACCURACY, 0.125, 0.0, SLOW),  # no lead at all
        (LOSS, 1.75, 2.0, SHARP),  # an eighth of what guessing gives, exactly
        (LOSS, 1.75 - BIT, 2.0, SHARP),
        (LOSS, 1.75 + BIT, 2.0, SLOW),
    ],
)
def test_a_collapse_needs_a_golden_lead_over_guessing(measure, golden, faulty, outcome):
    found = classify(*runs(golden, faulty), measure, finished=True, thresholds=LEAST)
    assert found.outcome == outcome, found.rule
    least = 0.125 * measure.span
    assert (f"did the golden run lead guessing by {least}, so there was too little to lose" in found.rule) == (
        outcome == SLOW
    )


def test_each_step_has_its_own_lead():
    golden, faulty = runs(0.75, 0.125)
    golden.steps[1] = 0.125  # nothing to lose in step 1, all lost in step 2
    found = classify(golden, faulty, ACCURACY, finished=True)
    assert found.outcome == SHARP and "1.00 of the lead over guessing was lost 2 step(s) after" in found.rule


def test_a_run_that_has_learnt_next_to_nothing_does_not_collapse():
    """This was once called 1.01 lost: the golden run leads guessing by .023."""
    measure = dataclasses.replace(ACCURACY, chance=0.1019)
    found = classify(*runs(0.125, 0.1016), measure, finished=True)
    assert found.outcome == SLOW and "lead guessing by 0.1" in found.rule


def test_a_lead_is_compared_with_the_range_of_a_metric_or_with_what_guessing_gives():
    assert ACCURACY.span == 1 and dataclasses.replace(ACCURACY, limits=(0.0, 100.0)).span == 100
    assert LOSS.span == 2 and dataclasses.replace(LOSS, chance=-3.0, better="higher").span == 3


# ---- The row of an injection file ---------------------------------------------------------

OVERFLOW = Injection(
    workload=make_workload("resnet18_nobn", dataset="digits", width=4, blocks=(1, 1, 1, 1), batch_size=128, epochs=2),
    stage="bkwd_inject",
    fmodel="RD",
    worker=1,
    layer="fc_grad_wt",
    epoch=0,
    step=4,
    positions=((3, 2),),
    values=(1e20,),  # finite, and its square is not
)


def test_the_rule_is_an_optional_row():
    assert OVERFLOW.nonfinite == "loss" and "nonfinite" not in format_injection(OVERFLOW)
    other = dataclasses.replace(OVERFLOW, nonfinite="state")
    assert format_injection(other).endswith("\nnonfinite,state\n")
    assert parse_injection(format_injection(other)) == other
    assert parse_injection(format_injection(OVERFLOW) + "nonfinite,loss\n") == OVERFLOW
    scaled, _ = scale(other, epochs=4)
    assert scaled.nonfinite == "state"


def test_an_unknown_rule_in_a_file_is_refused_in_a_line():
    with pytest.raises(InputError, match=r"nonfinite 'stat' is unknown; did you mean 'state'\?"):
        parse_injection(format_injection(OVERFLOW) + "nonfinite,stat\n")
    with pytest.raises(ValueError, match="nonfinite 'stat'"):
        dataclasses.replace(OVERFLOW, nonfinite="stat")


# ---- Replays ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def replays(tmp_path_factory, cache):
    """The replay of one fault by each rule: the folders."""
    folders = {}
    for rule in NONFINITE_RULES:
        folders[rule] = tmp_path_factory.mktemp(rule)
        file = folders[rule] / "overflow.csv"
        write_injection(file, dataclasses.replace(OVERFLOW, nonfinite=rule))
        assert main(["replay", str(file), "--cache", str(cache), "--out", str(folders[rule] / "out")]) == 0
    return folders


def outcome_of(folder):
    return json.loads((folder / "out" / "outcome.json").read_text())


def test_an_overflow_of_adams_v_ends_a_run_by_the_rule_of_the_state_at_the_faulty_step(replays):
    found = outcome_of(replays["state"])
    assert (found["outcome"], found["first_nonfinite"]) == (IMMEDIATE, 0)
    assert found["first_nonfinite_state"] == {"leaf": "opt_state/v/fc/kernel", "steps": 0}
    assert found["thresholds"]["nonfinite"] == "state"


def test_an_overflow_of_adams_v_ends_a_run_by_its_loss_two_steps_later(replays):
    found = outcome_of(replays["loss"])
    assert (found["outcome"], found["first_nonfinite"]) == (SHORT_TERM, 2)
    assert found["first_nonfinite_state"] == {"leaf": "opt_state/v/fc/kernel", "steps": 0}
    assert "first non-finite loss 2 step(s) after" in found["rule"] and "opt_state/v/fc/kernel" in found["rule"]
    with np.load(replays["loss"] / "out" / "record.npz") as record:
        at = list(zip(record["faulty/steps/epoch"], record["faulty/steps/step"], strict=True)).index((0, 4))
        v, loss = record["faulty/steps/largest_history_v"][at:], record["faulty/steps/loss"][at:]
        parameters = record["faulty/steps/largest_parameters"][at:]
        assert len(v) == 3
        assert np.isposinf(v[0]) and np.isnan(v[1])  # infinity less infinity
        assert np.isfinite(parameters[0]) and np.isnan(parameters[1])
        assert np.isfinite(loss[:2]).all() and np.isnan(loss[2])
    log = (replays["loss"] / "out" / "replay_overflow.txt").read_text()
    assert log.endswith("Encounter NaN! Terminate training!\n") and "step: 6/11, loss: nan" in log


def test_the_list_of_replays_says_what_was_not_finite(replays, capsys):
    assert main(["results", *map(str, replays.values())]) == 0
    out = capsys.readouterr().out
    assert "loss not finite 2 step(s) after the fault; opt_state/v/fc/kernel not finite 0 step(s) after it" in out
    assert "a value not finite 0 step(s) after the fault; opt_state/v/fc/kernel" in out


def test_a_run_that_is_cut_while_only_its_state_is_not_finite_is_undecided(tmp_path, cache):
    """By the rule of the loss; NaN parameters change nothing about what is written."""
    for rule in NONFINITE_RULES:
        file = tmp_path / f"{rule}.csv"
        write_injection(file, dataclasses.replace(OVERFLOW, horizon=1, nonfinite=rule))
        assert main(["replay", str(file), "--cache", str(cache), "--out", str(tmp_path / rule / "out")]) == 0
    cut = outcome_of(tmp_path / "loss")
    assert cut["outcome"] == UNDECIDED and cut["first_nonfinite"] is None and cut["exactly_masked_after"] is None
    assert cut["first_nonfinite_state"] == {"leaf": "opt_state/v/fc/kernel", "steps": 0}
    assert outcome_of(tmp_path / "state")["outcome"] == IMMEDIATE
