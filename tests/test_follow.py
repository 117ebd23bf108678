"""The laws of the engine: what `follow` does, step by step, with a program that is quickly computed."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import STEPS, linear

from fault_injection.models.fault import Operand, inactive_fault
from fault_injection.models.site import make_fault
from fault_injection.runs.follow import follow
from fault_injection.runs.steps import Address, Observer, addresses, horizon_or_end, numbered
from fault_injection.seam.trees import same_bits

pytestmark = pytest.mark.law

WORKLOAD = linear()
PROGRAM = WORKLOAD.program()
LAST = Address(1, STEPS - 1)  # of two epochs


def start():
    return PROGRAM.place(PROGRAM.init())


def two_epochs():
    return addresses(Address(0, 0), LAST, STEPS)


class Asked(Observer):
    """Writes down what it is asked, and gives a reason at one address, or after one epoch."""

    def __init__(self, name="", log=None, at=None, epoch=None, evaluates=False):
        self.name, self.log = name, [] if log is None else log
        self.at, self.epoch, self.evaluates, self.evaluations = at, epoch, evaluates, []

    def after_step(self, at, state, report):
        self.log.append((self.name, at))
        return f"{self.name} at {tuple(at)}" if at == self.at else None

    def after_epoch(self, epoch, state, evaluate):
        self.log.append((self.name, epoch))
        if self.evaluates:
            self.evaluations.append(evaluate())
        return f"{self.name} after {epoch}" if epoch == self.epoch else None


def counting(program):
    """The program, and a list that gets a state for each evaluation."""
    states = []

    def evaluate(state):
        states.append(state)
        return program.evaluate(state)

    return dataclasses.replace(program, evaluate=evaluate), states


def test_it_is_a_fold_of_the_programs_step():
    state = start()
    for epoch, step in itertools.product(range(2), range(STEPS)):
        state, _ = PROGRAM.step(state, PROGRAM.batch(epoch, step), epoch, step)
    followed = follow(PROGRAM, start(), two_epochs())
    assert same_bits(followed.state, state)
    assert followed.ended is None and followed.seconds > 0


def test_observers_see_every_step_and_the_end_of_every_epoch_in_order():
    one = Asked()
    follow(PROGRAM, start(), two_epochs(), observers=[one])
    steps = [[("", Address(epoch, step)) for step in range(STEPS)] for epoch in range(2)]
    assert one.log == [*steps[0], ("", 0), *steps[1], ("", 1)]


def test_an_epoch_ends_only_with_its_last_step():
    one = Asked()
    follow(PROGRAM, start(), addresses(Address(0, 3), Address(1, 2), STEPS), observers=[one])
    assert [what for _, what in one.log if not isinstance(what, Address)] == [0]


def test_the_first_reason_ends_the_run_and_no_later_observer_is_asked():
    log, at = [], Address(0, 2)
    before, gives, also, after = Asked("a", log), Asked("b", log, at), Asked("c", log, at), Asked("d", log)
    followed = follow(PROGRAM, start(), two_epochs(), observers=[before, gives, also, after])
    assert followed.ended == "b at (0, 2)"
    assert [name for name, where in log if where == at] == ["a", "b"]
    assert [name for name, where in log if where == Address(0, 1)] == ["a", "b", "c", "d"]
    assert not [where for _, where in log if where not in (Address(0, 0), Address(0, 1), at)]
    expected = follow(PROGRAM, start(), addresses(Address(0, 0), at, STEPS)).state
    assert same_bits(followed.state, expected)  # the state is the one after the step that ended it


def test_a_run_that_ends_at_an_epochs_last_step_is_not_asked_about_the_epoch():
    one, other = Asked("a"), Asked("b", at=Address(0, STEPS - 1), evaluates=True)
    assert follow(PROGRAM, start(), two_epochs(), observers=[one, other]).ended == f"b at (0, {STEPS - 1})"
    assert ("a", 0) not in one.log and not other.evaluations


def test_a_reason_after_an_epoch_ends_the_run_there():
    log = []
    observers = [Asked("a", log, epoch=0), Asked("b", log, epoch=0)]
    assert follow(PROGRAM, start(), two_epochs(), observers=observers).ended == "a after 0"
    assert log[-1] == ("a", 0)


def test_a_state_is_evaluated_once_per_epoch_however_many_ask():
    program, states = counting(PROGRAM)
    observers = [Asked(evaluates=True), Asked(), Asked(evaluates=True)]
    follow(program, start(), two_epochs(), observers=observers)
    assert len(states) == 2
    first, _, third = (observer.evaluations for observer in observers)
    assert first == third and len(first) == 2 and first[0] != first[1]


def test_a_state_is_not_evaluated_if_nobody_asks():
    program, states = counting(PROGRAM)
    follow(program, start(), two_epochs(), observers=[Asked(), Asked()])
    assert not states


def test_a_state_given_to_a_step_with_a_fault_can_still_be_used():
    """So one state serves a control and a strike."""
    state, at = start(), Address(0, 0)
    before = jax.device_get(state)
    strike = make_fault(WORKLOAD.sites()["fc"], Operand.OUTPUT, 1, [3], flip=0x7F000000)
    struck = follow(PROGRAM, state, [at], {at: strike}).state
    control = follow(PROGRAM, state, [at], {at: inactive_fault()}).state
    assert same_bits(state, before)
    assert same_bits(control, follow(PROGRAM, start(), [at]).state)
    assert not same_bits(struck, control)


def test_faults_strike_at_their_steps_and_nowhere_else():
    """One that lasts stands at several."""
    fault = make_fault(WORKLOAD.sites()["fc"], Operand.OUTPUT, 0, [3], flip=0x40000000, keep=0xFFFFFFFF)
    faults = {Address(0, 2): fault, Address(1, 0): fault}

    found = {}

    class Hits(Observer):
        def after_step(self, at, state, report):
            if report.struck is not None:
                found[at] = int(report.struck.hits)

    follow(PROGRAM, start(), two_epochs(), faults, [Hits()])
    assert found == dict.fromkeys(faults, 1)


def test_reports_are_on_the_host():
    class Types(Observer):
        def after_step(self, at, state, report):
            assert all(isinstance(leaf, np.ndarray | np.generic) for leaf in jax.tree.leaves(report))

    follow(PROGRAM, start(), [Address(0, 0)], observers=[Types()])


def test_no_steps_leave_the_state_as_it_is():
    state = start()
    followed = follow(PROGRAM, state, [])
    assert (followed.state is state, followed.ended, followed.seconds) == (True, None, 0)


places = st.tuples(st.integers(0, 5), st.integers(0, 6)).map(lambda pair: Address(*pair))


@given(places, places)
def test_addresses_are_all_steps_from_the_first_to_the_last(first, last):
    found = list(addresses(first, last, 7))
    everything = [Address(epoch, step) for epoch in range(6) for step in range(7)]
    assert found == [at for at in everything if first <= at <= last]
    assert [numbered(at, 7) for at in found] == list(range(numbered(first, 7), numbered(first, 7) + len(found)))


@given(places, st.integers(0, 100))
def test_a_horizon_counts_from_the_fault_and_stops_at_the_end(fault, horizon):
    last = horizon_or_end(6, 7, fault, horizon)
    assert numbered(last, 7) == min(numbered(fault, 7) + horizon, 41)
    assert horizon_or_end(6, 7, fault, None) == Address(5, 6)


def test_what_an_observer_raises_comes_through():
    class Refuses(Observer):
        def after_step(self, at, state, report):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        follow(PROGRAM, start(), two_epochs(), observers=[Refuses()])
