"""The same fault at other places of its operand: whether a verdict is that of the fault, or of the place.

Whether an element's error goes on depends on what stands behind it: a ReLU that is closed there, dropout, a row that
nobody reads.  Which of these are open depends on images and random numbers, so another training has others.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..faults.element_bits import ravel, unravel
from ..faults.injection import Injection
from ..machine.errors import InputError
from ..models.fault import Struck
from ..seam.leaves import Role, State
from .course import Course
from .follow import follow
from .golden_run import Golden, Repeats
from .noise import noise_floor
from .outcome import Outcome
from .progress import Progress
from .records import Recorder, Run, rows_of
from .replay_run import complete_golden, recorded_beside
from .steps import Address, addresses, horizon_or_end, numbered
from .strikes import strikes_of


class AtPlace(NamedTuple):
    """What came of the fault at one place.

    Attributes:
      injection: the fault there.
      outcome: the verdict; *Undecided* where the steps did not suffice for one.
      steps: taken, the faulty one included.
      metric: on the training batch of the last step taken, of this run and of the golden one.
      struck: what the fault did.
      reached: parameters that the faulty step left other than the golden one did; the error has died before all others.
    """

    injection: Injection
    outcome: Outcome
    steps: int
    metric: tuple[float, float]
    struck: Struck
    reached: tuple[str, ...]


def other_places(injection: Injection, count: int, seed: int) -> list[Injection]:
    """The same fault at other places of the same operand, each as likely as any other, none twice.

    All elements move together.  Elements that lie side by side in a group, as in the published models of 16 or 64, move
    from group to group.

    >>> from fault_injection.workloads.registry import make_workload
    >>> site = {"stage": "fwrd_inject", "fmodel": "RD", "worker": 1, "layer": "fc", "epoch": 0, "step": 0}
    >>> own = Injection(make_workload("resnet18"), **site, positions=((0, 3),), values=(1e9,))
    >>> [one.positions for one in other_places(own, 2, seed=0)]
    [((109, 1),), ((81, 8),)]

    Args:
      count: how many; fewer where the operand has no more.

    Raises:
      InputError: the injection has several faults.
    """
    if injection.also:
        what = f"the file has {len(injection.every)} faults, and places moves one"
        raise InputError(f"{what}; write a file of the one that is to be moved")
    if injection.profile is not None:
        what = f"the file has the profile {injection.profile.name}, which finds its places by itself"
        raise InputError(f"{what}; places moves the listed elements of a fault: expected a file with inj_pos")
    shape = injection.tensor.shape
    index, size = ravel(injection.positions, shape), math.prod(shape)
    side_by_side = len(index) > 1 and (np.diff(index) == 1).all() and index[0] % len(index) == size % len(index) == 0
    each = len(index) if side_by_side else 1
    others, rng = size // each - 1, np.random.default_rng(seed)
    moves: dict[int, None] = {}  # in the order in which they are drawn
    while len(moves) < min(count, others):
        moves[int(rng.integers(1, others + 1))] = None
    moved = [(index.astype(np.int64) + move * each) % size for move in moves]
    return [dataclasses.replace(injection, positions=tuple(unravel(one, shape))) for one in moved]


def at_places(injections: list[Injection], golden: Golden, steps: int) -> Iterator[AtPlace]:
    """Follow faults of one operand and one step, each from the same golden state.

    Args:
      injections: alike but for their positions; none is followed where there are none.
      golden: of their workload, by a program that can strike their site.
      steps: followed after the fault, at most.

    Raises:
      NotRepeated: a step before the fault, or the control, differs from the golden run.
    """
    if not injections:
        return
    one, program = injections[0], golden.program
    at, per_epoch = Address(one.epoch, one.step), program.steps_per_epoch
    last = horizon_or_end(one.workload.epochs, per_epoch, at, steps)
    complete_golden(golden, at.epoch + 1, last.epoch + 1)
    before, control = _around(one, golden, at)
    missing = max(0, last.epoch + 1 - golden.recorded()) * per_epoch
    total = len(injections) * (numbered(last, per_epoch) - numbered(at, per_epoch) + 1) + missing
    with Progress("places", total) as progress:
        record = recorded_beside(golden, lambda: progress.beside("golden run"))
        parameters = program.state.places(Role.PARAMETER)
        names = np.array([leaf.name for leaf in program.state.leaves])
        for injection in injections:
            course = Course(
                golden,
                strikes_of(injection),
                injection.nonfinite,
                record=record,
                golden_after=lambda later: control if later == at else golden.fetch_state_after(later),
                noise=lambda window: noise_floor(golden, one.workload.epochs, window),
                recorder=Recorder(Run(at.epoch, (), 0), rows_of(record(at.epoch), at.step)),
            )
            course.take(jax.tree.map(jnp.copy, before), at, last, before=[progress])
            run = course.recorder.run
            differs = run.column("digest")[at.step] != record(at.epoch)["digest"][at.step]
            reached = names[[place for place in parameters if np.any(differs[place])]]
            taken = len(run.column("metric")) - at.step
            ended = course.later(taken - 1)
            metric = float(run.column("metric")[-1]), float(record(ended.epoch)["metric"][ended.step])
            outcome = course.verdict(finished=last == course.end)
            yield AtPlace(injection, outcome, taken, metric, course.struck, tuple(reached.tolist()))


def _around(injection: Injection, golden: Golden, at: Address) -> tuple[State, State]:
    """The golden states before and after the faulty step; the second by the program that can strike."""
    program, (strike,) = golden.program, strikes_of(injection)
    state = golden.fetch_state_before(at.epoch)
    if at.step:
        steps = addresses(Address(at.epoch, 0), Address(at.epoch, at.step - 1), program.steps_per_epoch)
        state = follow(program, state, steps, observers=[Repeats(golden)]).state
    nothing = {at: strike.inactive()}
    return state, follow(program, jax.tree.map(jnp.copy, state), [at], nothing, [Repeats(golden)]).state
