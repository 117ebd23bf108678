"""Faults in the state and faults that last: what a step reads is struck, at the steps that a schedule says."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import toy
from hypothesis import given
from hypothesis import strategies as st
from injection_files import SCHEDULES
from small import small

from fault_injection.commands.main import main
from fault_injection.faults.element_bits import ElementBits
from fault_injection.faults.injection import ALL, Injection
from fault_injection.faults.injection_file import format_injection, parse_injection, read_injection
from fault_injection.faults.schedule import SCHEDULE, Schedule
from fault_injection.models.bits import ALL_ONES
from fault_injection.models.fault import Operand, inactive_fault, site_id
from fault_injection.models.site import make_fault
from fault_injection.runs.follow import follow
from fault_injection.runs.golden_run import Golden
from fault_injection.runs.outcome import MASKED
from fault_injection.runs.replay_files import write_replay
from fault_injection.runs.replay_run import replay
from fault_injection.runs.steps import Address, Back, Observer, addresses
from fault_injection.seam.stages import STATE
from fault_injection.seam.state_faults import state_sites
from fault_injection.seam.trees import same_bits
from fault_injection.workloads.registry import find_workload

TOY = find_workload(f"{toy.__file__}:linear")
PROGRAM = TOY.program(frozenset())
STEPS = 20
SLOPES = Injection(TOY, STATE, "", ALL, "slopes", 1, 2, ((2, 0),), bits=(ElementBits.inverted(1 << 30),))


def by_hand(strike, faulty):
    """The parameters after each step, by NumPy in float64; `strike(w, b)` gives those that a faulty step reads."""
    w, b, found = np.zeros(3), 0.0, []
    for number in range(STEPS):
        x, y = TOY.batch(*divmod(number, PROGRAM.steps_per_epoch))
        if number in faulty:
            w, b = strike(w.copy(), b)
        error = x @ w + b - y
        w = w - TOY.learning_rate * 2 * np.einsum("rbf,rb->f", x.astype(float), error) / error.size
        b = b - TOY.learning_rate * 2 * error.mean()
        found.append(np.append(w, b))
    return np.array(found)


class States(Observer):
    """Keeps the parameters after each step."""

    def __init__(self):
        self.seen = []

    def after_step(self, at, state, report):
        self.seen.append(np.append(np.asarray(state[0]).ravel(), np.asarray(state[1])))


def run(faults, observers=(), **options):
    states = States()
    steps = addresses(Address(0, 0), Address(*divmod(STEPS - 1, PROGRAM.steps_per_epoch)), PROGRAM.steps_per_epoch)
    follow(PROGRAM, jax.device_put(PROGRAM.init()), steps, faults, [states, *observers], **options)
    return np.array(states.seen)


def fault_of(name, index, **masks):
    return make_fault(state_sites(PROGRAM.state)[name], Operand.INPUT, ALL, [index], **masks)


@pytest.mark.law
@pytest.mark.parametrize("schedule", [Schedule(), Schedule(every=1), Schedule(every=3), Schedule(every=3, steps=8)])
def test_a_fault_in_the_state_is_what_arithmetic_says(schedule):
    """Also one that lasts: an element that is set to 2 again and again."""
    faulty = [10 + after for after in range(STEPS - 10) if schedule.strikes(after, 0)]
    two = fault_of("slopes", 1, flip=np.float32(2).view(np.uint32))

    def set_to_two(w, b):
        w[1] = 2
        return w, b

    found = run({Address(*divmod(number, PROGRAM.steps_per_epoch)): two for number in faulty})
    np.testing.assert_allclose(found, by_hand(set_to_two, faulty), rtol=1e-4, atol=1e-5)


@pytest.mark.law
def test_a_leaf_that_is_one_number_is_struck_too():
    sign = fault_of("offset", 0, keep=ALL_ONES, flip=1 << 31)
    expected = by_hand(lambda w, b: (w, -b), [5])
    np.testing.assert_allclose(run({Address(0, 5): sign}), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.law
def test_a_step_that_strikes_no_element_of_the_state_changes_no_bit():
    quiet = inactive_fault(1, np.int32(site_id("slopes")))
    np.testing.assert_array_equal(run({Address(0, 5): quiet}), run({}))


@pytest.mark.law
def test_the_state_before_a_faulty_step_can_still_be_used():
    state = jax.device_put(PROGRAM.init())
    before = jax.device_get(state)
    follow(PROGRAM, state, [Address(0, 0)], {Address(0, 0): fault_of("slopes", 0, flip=5)})
    assert same_bits(state, before)


@pytest.mark.law
@pytest.mark.parametrize("lasting", [False, True])
def test_a_step_executed_again_is_struck_again_by_a_permanent_fault_alone(lasting):
    class Once(Observer):
        seen = 0

        def after_step(self, at, state, report):
            self.seen += report.struck is not None
            return Back(1, again=True) if report.struck is not None and self.seen == 1 else None

    once = Once()
    faults = {Address(0, 5): fault_of("slopes", 0, flip=5)}
    run(faults, [once], keep=1, lasting=faults if lasting else None)
    assert once.seen == 1 + lasting


@pytest.mark.law
@given(SCHEDULES, st.integers(0, 2**31 - 1), st.integers(0, 10_000))
def test_a_schedule_is_written_as_it_is_read_and_addressed_by_the_step(schedule, seed, after):
    assert SCHEDULE.parse(str(schedule)) == schedule
    assert schedule.strikes(0, seed)
    assert schedule.strikes(after, seed) == schedule.strikes(after, seed)
    if schedule.steps is not None:
        assert not schedule.strikes(schedule.steps + after, seed)
    if schedule.single:
        assert not schedule.strikes(1 + after, seed)


@pytest.mark.law
def test_an_intermittent_fault_strikes_about_as_often_as_it_says():
    found = [Schedule(probability=0.2).strikes(after, seed=1) for after in range(1, 10_001)]
    assert abs(np.mean(found) - 0.2) < 4 * (0.2 * 0.8 / 10_000) ** 0.5
    assert found != [Schedule(probability=0.2).strikes(after, seed=2) for after in range(1, 10_001)]
    other = [Schedule(probability=0.2, device=3).strikes(after, seed=1) for after in range(1, 10_001)]
    both = np.mean(np.array(found) & other)  # each device has a chance of its own
    assert abs(both - 0.04) < 4 * (0.04 * 0.96 / 10_000) ** 0.5


# ---- Replays ------------------------------------------------------------------------------


def replayed(injection, tmp_path):
    """A replay of the toy."""
    result = replay(injection, Golden(TOY, PROGRAM, tmp_path / "cache"))
    write_replay(result, "example", tmp_path / "out")
    return result


def test_a_replay_strikes_the_state_and_says_so(tmp_path):
    result = replayed(SLOPES, tmp_path)
    old, new = (bits[:1].view(np.float32)[0] for bits in (result.struck.old, result.struck.new))
    golden, faulty = (run.epochs for run in (result.golden, result.faulty))
    before = run({})[8 + 2 - 1][2]
    assert (old, result.struck.hits, result.struck.operand_changed) == (np.float32(before), 1, 1)
    assert new.view(np.uint32) == old.view(np.uint32) ^ (1 << 30)
    assert golden[1]["loss"][1] == faulty[0]["loss"][1] and golden[1]["loss"][2] != faulty[0]["loss"][2]
    log = (tmp_path / "out" / "replay_example.txt").read_text()
    assert "Inject worker: all\nInject layer: slopes\nShape for target layer is (3, 1)\n" in log


def test_a_state_that_is_the_golden_one_again_ends_nothing_while_more_may_strike(tmp_path):
    """An element that is set to what it is, at every step, is masked only at the last one."""
    quiet = dataclasses.replace(SLOPES, bits=(ElementBits.inverted(0),), schedule=Schedule(every=4))
    result = replayed(quiet, tmp_path)
    first, steps = toy.STEPS + 2, TOY.epochs * toy.STEPS
    after = max(after for after in range(steps - first) if quiet.schedule.strikes(after, TOY.seed))
    assert (result.outcome.outcome, result.outcome.exactly_masked_after) == (MASKED, after)


def test_a_fault_whose_time_is_over_is_masked_like_one_that_strikes_once(tmp_path):
    """An element that is set to what it is for five steps: the state is the golden one after the last of them."""
    quiet = dataclasses.replace(SLOPES, bits=(ElementBits.inverted(0),), schedule=Schedule(every=1, steps=5))
    result = replayed(quiet, tmp_path)
    assert (result.outcome.outcome, result.outcome.exactly_masked_after) == (MASKED, 4)


def test_the_rows_of_a_file():
    rows = format_injection(dataclasses.replace(SLOPES, workload=small(epochs=3), layer="params/fc/kernel"))
    text = rows + "schedule,every 10\n"
    found = parse_injection(text)
    assert (found.layer, found.stage, found.worker, found.schedule) == (
        "params/fc/kernel",
        STATE,
        ALL,
        Schedule(every=10),
    )
    assert "before the step reads the state" in found.sentence() and ", and again every 10 steps." in found.sentence()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("params/fc/kernel", "params/fc/kernal"), "is no leaf of resnet18; did you mean 'params/fc/kernel'?"),
        (("inj_pos,2/0", "inj_pos,2/99"), "lies outside params/fc/kernel, which is"),
        (("target_epoch", "stage,fwrd_inject\ntarget_epoch"), "stage does not go with the row target"),
        (("target_epoch", "schedule,sometimes\ntarget_epoch"), "expected once, permanent, steps N (from 2), every"),
        (("target_epoch", "schedule,steps 1\ntarget_epoch"), "'steps 1'; expected once, permanent, steps N (from 2)"),
        (("target_epoch", "schedule,permanent for 5 steps\ntarget_epoch"), "steps N (from 2)"),
        (("target_epoch", "schedule,probability 1.5\ntarget_epoch"), "'probability 1.5'; expected once"),
        (("xor:40000000", "set:400000001"), "xor:, set: or clear: before them"),
    ],
)
def test_a_mistake_is_one_line(change, message, tmp_path, capsys):
    injection = dataclasses.replace(SLOPES, workload=small(epochs=3), layer="params/fc/kernel")
    path = tmp_path / "wrong.csv"
    path.write_text(format_injection(injection).replace(*change))
    assert main(["replay", str(path), "--check"]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_shipped_injections_are_valid_and_have_results(repository, results):
    files = sorted((repository / "injections" / "state").glob("*.csv"))
    for path in files:
        said = json.loads((results / "state" / path.stem / "provenance.json").read_text())["injection"]
        assert read_injection(path) == parse_injection("\n".join(said))
    assert [path.stem for path in files] == sorted(folder.name for folder in (results / "state").iterdir())


def test_leaves_are_listed(capsys):
    main(["sites", "resnet18", "--width", "4", "--stage", "state"])
    assert "opt_state/v/conv1/kernel" in capsys.readouterr().out
