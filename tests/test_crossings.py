"""Detectors × schedules × recoveries: a replay, an experiment of a campaign and a row of a scoreboard say the same."""

import dataclasses
import itertools

import momentum_training
import numpy as np
import pytest

from fault_injection.detection.checksum import Checksum
from fault_injection.detection.detector import STOP, Alarm
from fault_injection.detection.re_execution import ReExecutionSettings
from fault_injection.detection.recovery import RECOVERIES as BACK
from fault_injection.detection.signals import reductions_of
from fault_injection.detection.spike import LossSpike
from fault_injection.detection.watch import Undone, Watcher
from fault_injection.detection.watched_replay import Watched, detection_summary, sentences, watched_replay
from fault_injection.faults.schedule import SCHEDULE
from fault_injection.questions.outcomes.conditions import Conditions
from fault_injection.questions.outcomes.experiment import Laboratory, run_experiment
from fault_injection.questions.outcomes.plan import Model
from fault_injection.questions.outcomes.plan_file import parse_plan
from fault_injection.questions.outcomes.sampling import choose, draw_experiment, injection_of
from fault_injection.questions.scoreboard.settings import Settings
from fault_injection.questions.scoreboard.tasks import bench_of, watched
from fault_injection.runs.golden_run import Golden
from fault_injection.runs.outcome import MASKED, UNDECIDED
from fault_injection.runs.replay_run import replay
from fault_injection.runs.steps import Address
from fault_injection.seam.checkpoint_faults import restarted

pytestmark = pytest.mark.usefixtures("compiled_quickly")

DETECTORS = {"replay": ReExecutionSettings(every=1), "checksum": Checksum(), "loss_spike": LossSpike(warm_up=3)}
RECOVERIES = ("recompute", "rewind", "skip")
SCHEDULES = ("once", "permanent", "every 3", "probability 0.5")
BOUNDED = ("steps 3", "steps 3 at first attempt", "every 3 for 7 steps at every attempt")
SLOW = pytest.mark.slow
PLAN = f"""
workload = "{momentum_training.__file__}:training"
[faults]
experiments = 8
epochs = [1]
seed = 5
{{struck}}
[faults.models]
{{model}} = {{{{ weight = 1, values = "worst_case" }}}}
[run]
exit = "exact"
"""
SITE = "grad_wt:params/fc1"
OPERATION = PLAN.format(struck=f'sites = ["{SITE}"]', model="RD")
CHECKPOINT = PLAN.format(struck='stages = ["checkpoint"]\nsites = ["checkpoint/model/float32/1"]', model="FLIPS_2")
STATE = PLAN.format(struck='stages = ["state"]\nsites = ["params/*"]', model="FLIPS_2")


@pytest.fixture(scope="module")
def golden(cache):
    """A golden run whose steps tell all detectors, by a program that can strike the operation."""
    workload = parse_plan(OPERATION).workload
    wanted = reductions_of(kind for detector in DETECTORS.values() for kind in detector.signals)
    golden = Golden(workload, workload.program(frozenset({SITE}), 1, reductions=wanted), cache)
    golden.make(workload.epochs)
    return golden


@pytest.fixture(scope="module")
def benches(golden):
    """By plan and schedule, what makes its experiments and its rows of a scoreboard."""
    found = {}

    def bench(text, schedule):
        if (text, schedule) not in found:
            plan = dataclasses.replace(parse_plan(text), schedule=SCHEDULE.parse(schedule))
            found[text, schedule] = bench_of(laboratory(golden, plan), DETECTORS)
        return found[text, schedule]

    return bench


def laboratory(golden, plan):
    return Laboratory(plan, golden, Conditions(), golden.folder / "walks" / "tests")


RECOVERED = tuple((name, 8) for name in RECOVERIES)
SETTINGS = Settings(tuple(DETECTORS), window=20, recovered=RECOVERED, recovering=tuple(DETECTORS))


def stops(watcher, injection):
    """Steps from the fault to those with an alarm that stops, in order."""
    struck = injection.epoch * momentum_training.STEPS + injection.step
    return sorted({alarm.step - struck for alarm in watcher.alarms if alarm.level == STOP})


def agree(bench, number):
    """See that all three say the same of an experiment.

    Returns:
      Its result, its row, and the steps from the fault at which each detector stops the replay.
    """
    lab = bench.lab
    result, row = run_experiment(lab, number), watched(bench, SETTINGS, number)
    injection, said = injection_of(lab.plan, number), {}
    curve = np.frombuffer(result.curve, "<f4").reshape(-1, 2)[:, 0]
    both = slice(min(len(curve), len(row["loss"])))
    np.testing.assert_array_equal(curve[both], np.float32(row["loss"])[both])
    for name, recovery in itertools.product(DETECTORS, RECOVERIES):
        told = watched_replay(injection, lab.golden, DETECTORS[name], recovery)
        struck, found, recovered = told.replay.struck, stops(told.watch, injection), row["recovered"][recovery]
        bits = (int(struck.old[0]), int(struck.new[0]))
        assert bits == (row["old"], row["new"]) == (result.old_bits, result.new_bits)
        np.testing.assert_array_equal(told.replay.faulty.column("loss")[injection.step :][: len(curve)], curve)
        assert told.replay.outcome.outcome == result.outcome
        assert row["seen"][name]["stop"] == next(iter(found), None)
        assert (told.recovered is not None) == (name in recovered) == bool(found)
        if told.recovered is not None:
            assert recovered[name]["outcome"] == told.recovered.outcome.outcome
            assert recovered[name]["actions"] == len(told.recovering.actions) > 0
            assert recovered[name]["golden_after"] == told.recovered.outcome.exactly_masked_after
        said[name] = found
    return result, row, said


@pytest.mark.parametrize(
    ("schedule", "text", "numbers"),
    [
        *(pytest.param(each, OPERATION, (0,), id=f"quick-{each}") for each in (*SCHEDULES, *BOUNDED)),
        *(pytest.param(each, OPERATION, (1, 2, 3), id=f"operation-{each}", marks=SLOW) for each in SCHEDULES),
        *(pytest.param(each, STATE, (0, 1, 2), id=f"state-{each}", marks=SLOW) for each in SCHEDULES),
    ],
)
def test_replay_campaign_and_scoreboard_say_the_same(benches, schedule, text, numbers):
    """And a step that is executed again differs where the fault struck, but for one that is still there: it recurs."""
    bench = benches(text, schedule)
    for number in numbers:
        result, row, said = agree(bench, number)
        when, seed = injection_of(bench.lab.plan, number).schedule, bench.lab.plan.workload.seed
        transient = [after for after in range(result.steps) if when.strikes(after, seed)]
        if when.lasting:
            assert said["replay"] == said["checksum"] == []
            assert said["loss_spike"]  # so that recoveries act, in vain
            for recovery in RECOVERIES:
                assert row["recovered"][recovery]["loss_spike"]["golden_after"] is None
        elif text == OPERATION:
            assert said["replay"] == said["checksum"] == transient
        else:  # what has the struck bits already does not change, and products of wrong numbers are right
            assert said["checksum"] == [] and 0 in said["replay"] and set(said["replay"]) <= set(transient)
        if schedule == "once":
            for recovery in ("recompute", "rewind"):
                recovered = row["recovered"][recovery]["replay"]
                assert (recovered["actions"], recovered["golden_after"], recovered["outcome"]) == (1, 0, MASKED)


# ---- A restart from an altered checkpoint --------------------------------------------------


@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize("step", [0, 3])
def test_nothing_is_undone_before_the_load_of_a_checkpoint(golden, benches, recovery, step):
    """What was before is another job's: an alarm at the first step gets the altered state back, and no golden one."""
    lab = benches(CHECKPOINT, "once").lab
    injection, back = dataclasses.replace(injection_of(lab.plan, 0), step=step), BACK[recovery]
    watching = Rings(golden.program, DETECTORS["replay"], recovery=back)
    watching.at = Address(injection.epoch, step)
    alone = replay(injection, golden)
    recovered = replay(injection, golden, watching=[watching], keep=back.steps)
    assert watching.actions == [Undone(watching.at, watching.at, back.again)]
    assert recovered.outcome.exactly_masked_after is None
    known = watched_replay(injection, golden, DETECTORS["replay"], recovery)
    assert stops(known.watch, injection) == []  # what was loaded is what is executed again
    if back.again:
        np.testing.assert_array_equal(recovered.faulty.column("loss"), alone.faulty.column("loss"))
        said = detection_summary(Watched(alone, watching, recovered, watching), "replay", recovery)
        assert said["actions"][0]["stopped_at_the_load"] == (recovery == "rewind")
        assert ("none before the load" in " ".join(sentences(said))) == (recovery == "rewind")
    else:  # the altered state meets the next batch
        before = golden.fetch_state_before(1) if step == 0 else golden.fetch_state_after(Address(1, step - 1))
        state, _ = restarted(golden.program, before, injection.fault())
        _, report = golden.program.step(state, golden.program.batch(1, step + 1), 1, step + 1)
        assert recovered.faulty.column("loss")[step + 1] == report.loss


class Rings(Watcher):
    """Stops at one step, each time."""

    def look(self, at, state, report):
        return [Alarm(self.number(at), "loss", 0.0, STOP, 0.0)] if at == self.at else [], 0.0


# ---- Faults that may strike beyond the horizon ---------------------------------------------


def test_a_fault_that_may_strike_beyond_the_horizon_is_not_masked(golden, benches):
    """A bit is stuck at the value that it has, so that the state is the golden one after each step."""
    stuck = Model("RD", 1.0, "stuck", (("bits", (30,)),))  # of gradients below 2 it is not set
    plan = dataclasses.replace(benches(OPERATION, "once").lab.plan, horizon=3, models=(stuck,))
    quiet = next(n for n in range(8) if not choose(plan, draw_experiment(plan, n)).bits.flip.any())
    for schedule, outcome in (("once", MASKED), ("permanent", UNDECIDED)):
        lab = laboratory(golden, dataclasses.replace(plan, schedule=SCHEDULE.parse(schedule)))
        assert run_experiment(lab, quiet).outcome == outcome
        assert replay(injection_of(lab.plan, quiet), golden).outcome.outcome == outcome
